"""The demo: train on real text on 2 simulated hosts, kill a trainer, stop, go on on one host, show the result.

`make demo` starts it. It runs the command `shardwise` as a person would and shows each command line, so that each can
be typed again. It trains nothing itself, and ends with 1 if any part of it fails.
"""

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from shardwise.cli.live import live_status
from shardwise.protocol.contract import CHECKPOINTS, EVENTS, JOB_FILE, LOGS, METRICS, PLOT, SUMMARY, ExitCode
from shardwise.protocol.errors import ShardwiseError
from shardwise.protocol.takeover import ATTEMPT_FILE, hold
from shardwise.train.metrics import records, steps

JOB = Path(__file__).with_name("python.yaml")
MARK = ".made-by-demo"
MIN_STEPS, STEPS = 60, 320
SAVES = 8
KILLED_RANK = 1
NUM_AVERAGED = 20
"""Steps whose losses are averaged: one batch is small, so one loss says little."""
POLL_SECONDS = 0.2
START_PHASES = ("interpreter", "imports", "join", "data", "init", "restore", "compile")
BEFORE_ORDERS = ("interpreter", "imports")
"""Done already by a process that stands by when it is needed."""

CONSOLE = Console(highlight=False, soft_wrap=True)


class DemoError(Exception):
    """A part of the demo did not do what it promises."""


def main() -> int:
    """Run the demo; returns the exit code."""
    options = _options()
    began = time.monotonic()
    try:
        _demo(options.dir, options.steps, options.text)
    except (DemoError, ShardwiseError) as error:
        CONSOLE.print(f"\nThe demo failed: {error}", style="bold red", markup=False)
        return ExitCode.FAILURE
    except KeyboardInterrupt:
        CONSOLE.print("\nThe demo was interrupted.")
        return 128 + signal.SIGINT
    CONSOLE.print(f"The demo took {time.monotonic() - began:.0f} seconds.")
    return ExitCode.OK


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train on two hosts, kill a trainer, stop, and go on on one host.")
    parser.add_argument("--dir", type=Path, default=Path("runs/demo"), help="the run directory (default: runs/demo)")
    parser.add_argument("--steps", type=_num_steps, default=STEPS, help=f"training steps (default: {STEPS})")
    parser.add_argument("--text", metavar="PATH", help="a text or JSONL file of your own, or a glob")
    return parser.parse_args()


def _num_steps(text: str) -> int:
    if not text.isdecimal() or int(text) < MIN_STEPS:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number from {MIN_STEPS}, so that there is a middle")
    return int(text)


def _demo(directory: Path, num_steps: int, text: str | None) -> None:
    _title("The text")
    pattern = os.path.abspath(text) if text else f"{sysconfig.get_path('stdlib')}/*.py"  # noqa: PTH100  may be a glob
    _show_text(pattern)
    _empty(directory)
    job = [os.path.relpath(JOB), "--set", f"training.data.train.0.paths={json.dumps([pattern])}"]
    if num_steps != STEPS:
        job += ["--set", f"training.steps={num_steps}"]
        job += ["--set", f"training.checkpoint.everySteps={num_steps // SAVES}"]
    run = ["run", *job, "--dir", str(directory)]

    _title("The job")
    CONSOLE.print(
        f"{os.path.relpath(JOB)} is a whole job. --set changes a field of it. Nothing starts before it is right."
    )
    _call("check", *job)

    _title("Training on 2 hosts x 4 devices, data 4 x tensor 2")
    CONSOLE.print("Each host is a process of its own here. Each matrix is split over tensor and over data (FSDP).")
    starts = {}
    with _started(*run) as process:
        _wait_for_steps(process, directory, num_steps // 6)
        starts["first start"] = _summary(directory)["phases"]
        killed_at = _kill(directory)
        _wait_for_recovery(process, directory)
        starts["after the kill"] = _summary(directory)["phases"]
        _title("How it recovered (seconds)")
        CONSOLE.print(_recovery_table(killed_at, _events(directory), starts["after the kill"]))
        _wait_for_steps(process, directory, num_steps // 4)
        _title("The same run is stopped")
        CONSOLE.print(f"A stop saves first. Exit code {ExitCode.SAVED:d} says: saved, can go on.")
        _call("stop", str(directory))
        stopped_at = _stopped(process.wait(), directory)
    goodput = _summary(directory)["goodput"]

    _title(f"It goes on on 1 host x 8 devices, data 8 x tensor 1, from step {stopped_at}")
    CONSOLE.print(
        "A checkpoint belongs to no mesh: each device reads its new share, and the digest of every array is compared."
    )
    _call(*run, "--set", "hardware.topology=1x8", "--set", "training.mesh.tensor=1")
    starts["on 1 host"] = _summary(directory)["phases"]
    _check_result(directory, stopped_at, num_steps)

    _title("The result")
    _call("status", str(directory), "--plot")
    _show_loss(directory)
    _title("A sample")
    CONSOLE.print("So small a model, trained so briefly, has the look of its text and not the sense.")
    _call(
        "generate", str(directory), "--tokens", "300", "--temperature", "0.8", *([] if text else ["--prompt", "def "])
    )
    _title("What each device held (MiB; the mesh is data x tensor)")
    CONSOLE.print(_memory_table(directory))
    _title("Where the time of each start went (seconds of rank 0, up to the first step)")
    CONSOLE.print(_starts_table(starts))
    CONSOLE.print("After the kill, interpreter and imports were done already: that process stood by.")
    _title("Where the time on two hosts went (seconds, adding up to the wall time)")
    CONSOLE.print(", ".join(f"{name} {seconds:.1f}" for name, seconds in goodput.items() if seconds))
    _title("What was saved")
    _show_files(directory)


def _show_text(pattern: str) -> None:
    """Say which files are trained on. The command finds them again by the same pattern."""
    files = sorted(path for path in Path("/").glob(pattern.lstrip("/")) if path.is_file())
    if not files:
        raise DemoError(f"no file matches {pattern}")
    num_bytes = sum(path.stat().st_size for path in files)
    count = "1 file" if len(files) == 1 else f"{len(files)} files"
    CONSOLE.print(f"{count}, {num_bytes:,} bytes: {pattern}", markup=False)
    CONSOLE.print(", ".join(path.name for path in files[:6]) + (", ..." if len(files) > 6 else ""), markup=False)


def _empty(directory: Path) -> None:
    """Begin anew: what an earlier demo left in the directory goes, and nothing that is not the demo's is touched."""
    mark = directory / MARK
    if not mark.exists() and directory.exists() and any(directory.iterdir()):
        raise DemoError(f"{directory} holds something that no demo made; give another --dir, or move it away")
    with hold(directory):
        if mark.exists():
            CONSOLE.print(f"The run that an earlier demo left in {directory} is removed; this one begins anew.")
        mark.touch()
        for folder in (CHECKPOINTS, LOGS):
            shutil.rmtree(directory / folder, ignore_errors=True)
        for name in (JOB_FILE, METRICS, SUMMARY, PLOT, ATTEMPT_FILE):
            (directory / name).unlink(missing_ok=True)


def _wait_for_steps(process: subprocess.Popen[bytes], directory: Path, num_steps: int) -> None:
    """Wait until so many steps are complete and a checkpoint holds the first of them."""
    while process.poll() is None:
        status = live_status(directory)
        if status and (status.progress.step or 0) >= num_steps and _saved(directory):
            return
        time.sleep(POLL_SECONDS)
    raise DemoError(f"the run ended with {process.returncode} before step {num_steps}")


def _saved(directory: Path) -> bool:
    return any(record.get("event") == "saved" for record in records(directory / METRICS))


def _kill(directory: Path) -> float:
    """End one trainer as a crash would; when (seconds since the epoch)."""
    _call("status", str(directory))
    status = live_status(directory)
    pid = status.hosts[KILLED_RANK].trainer_pid if status else None
    if pid is None:
        raise DemoError(f"the status names no trainer of host {KILLED_RANK}")
    CONSOLE.print(
        f"\nThe trainer of host {KILLED_RANK} is process {pid}, as `shardwise status --json` says. "
        "Without it the other one may fail too, and show where."
    )
    CONSOLE.print(f"\n$ kill -9 {pid}", style="bold")
    killed_at = time.time()
    os.kill(pid, signal.SIGKILL)
    return killed_at


def _wait_for_recovery(process: subprocess.Popen[bytes], directory: Path) -> None:
    """Wait until the second attempt has completed a step."""
    while process.poll() is None:
        if any(event["event"] == "running" and event["attempt"] > 0 for event in _events(directory)):
            return
        time.sleep(POLL_SECONDS)
    raise DemoError(f"the run ended with {process.returncode}; expected it to recover")


def _recovery_table(killed_at: float, events: Sequence[dict[str, Any]], phases: Mapping[str, float]) -> Table:
    """From the kill to the next completed step, in parts that follow each other."""
    ended = next(event for event in events if event["event"] == "ended")
    ordered, running = (
        next(event for event in events if event["event"] == name and event["attempt"] > 0)
        for name in ("attempt", "running")
    )
    after_orders = {name: phases.get(name, 0.0) for name in START_PHASES if name not in BEFORE_ORDERS}
    parts = {
        "noticed, and the other trainer ended": ended["time"] - killed_at,
        "new orders, to processes that stood by": ordered["time"] - ended["time"],
        **{name: seconds for name, seconds in after_orders.items() if seconds},
        "first step, and what is between": running["time"] - ordered["time"] - sum(after_orders.values()),
    }
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("cause, rank and how it ended", f"{ended['cause']}, {ended['rank']}, {ended['exit']}")
    table.add_row("goes on from the checkpoint of step", str(running["fromStep"]))
    for name, seconds in parts.items():
        table.add_row(name, f"{seconds:.2f}")
    table.add_row("from the kill to the next completed step", f"{running['time'] - killed_at:.2f}", style="bold")
    return table


def _stopped(code: int, directory: Path) -> int:
    """The step at which the run was saved and stopped."""
    if code != ExitCode.SAVED:
        raise DemoError(
            f"the run ended with {code}; expected {ExitCode.SAVED:d}, which says that it was stopped and saved"
        )
    summary = _summary(directory)
    if summary["restarts"] != {"failure": 1}:
        raise DemoError(f"the run counts restarts {summary['restarts']}; expected one for the trainer that was killed")
    return int(summary["steps"])


def _check_result(directory: Path, stopped_at: int, num_steps: int) -> None:
    """The run went on from where it stood each time, and came to its end."""
    restored = [record["step"] for record in records(directory / METRICS) if record.get("event") == "restored"]
    if len(restored) != 2 or restored[-1] != stopped_at:
        raise DemoError(
            f"the run went on from the steps {restored}; expected a checkpoint, then step {stopped_at}, where it was "
            "stopped"
        )
    if _summary(directory)["status"] != "complete" or len(steps(directory / METRICS)) != num_steps:
        raise DemoError(f"the run did not come to its end at step {num_steps}; see {directory / SUMMARY}")
    if not (directory / PLOT).exists():
        raise DemoError(f"{directory / PLOT} was not drawn")


def _show_loss(directory: Path) -> None:
    entropy = _summary(directory)["entropy"]
    losses = [record["loss"] for record in steps(directory / METRICS)[-NUM_AVERAGED:]]
    CONSOLE.print(f"Loss over the last {len(losses)} steps: {sum(losses) / len(losses):.3f} nats a byte.")
    CONSOLE.print(f"Knowing only how frequent bytes are gives {entropy['unigram']:.3f} (unigram entropy of the text),")
    CONSOLE.print(f"knowing the byte before as well gives {entropy['bigram']:.3f} (bigram entropy).")
    CONSOLE.print(f"The same as a picture: {directory / PLOT}")


def _memory_table(directory: Path) -> Table:
    """One row for each kind of device, for each of the two meshes (data x tensor), as the compiled programs have it."""
    table = Table()
    for column in ("mesh", "devices", "params", "optimizer", "batch", "temporaries", "total"):
        table.add_column(column, justify="left" if column in ("mesh", "devices") else "right")
    starts = [event for event in records(directory / METRICS) if "memory" in event]
    for event in {json.dumps(event["mesh"]): event for event in starts}.values():
        held: dict[tuple[str, ...], list[str]] = {}
        for row in event["memory"]:
            sizes = (row["params_bytes"], row["optimizer_bytes"], row["batch_bytes"], row["temporary_bytes"])
            written = tuple(f"{size / 2**20:.2f}" for size in (*sizes, sum(sizes)))
            held.setdefault(written, []).append(row["device"])
        for written, devices in held.items():
            alike = devices[0] if len(devices) == 1 else f"{len(devices)} alike"
            mesh = event["mesh"]
            table.add_row(f"{mesh['data_outer'] * mesh['data_inner']} x {mesh['tensor']}", alike, *written)
    return table


def _starts_table(starts: Mapping[str, Mapping[str, float]]) -> Table:
    table = Table()
    table.add_column("phase")
    for name in starts:
        table.add_column(name, justify="right")
    for phase in START_PHASES:
        table.add_row(phase, *(f"{phases.get(phase, 0):.2f}" for phases in starts.values()))
    return table


def _show_files(directory: Path) -> None:
    for path in sorted(directory.glob(f"{CHECKPOINTS}/step-*")):
        files = [file for file in path.rglob("*") if file.is_file()]
        num_bytes = sum(file.stat().st_size for file in files)
        CONSOLE.print(f"{path}  {num_bytes / 2**20:.1f} MiB in {len(files)} files")
    for name in (JOB_FILE, METRICS, SUMMARY, PLOT):
        CONSOLE.print(f"{directory / name}  {(directory / name).stat().st_size / 1024:.0f} KiB")


def _call(*arguments: str) -> None:
    with _started(*arguments) as process:
        code = process.wait()
    if code != ExitCode.OK:
        raise DemoError(f"`shardwise {arguments[0]}` ended with {code}")


@contextlib.contextmanager
def _started(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command of the installed `shardwise`, its output on our own; ended with SIGTERM if we end before it."""
    command = [os.path.relpath(Path(sys.executable).with_name("shardwise")), *arguments]
    CONSOLE.print(f"\n$ {shlex.join(command)}", style="bold", markup=False)
    with subprocess.Popen(command) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()


def _events(directory: Path) -> list[dict[str, Any]]:
    """What the launcher of the run has written so far."""
    return [json.loads(line) for line in (directory / LOGS / EVENTS).read_text(encoding="utf-8").splitlines()]


def _summary(directory: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((directory / SUMMARY).read_text(encoding="utf-8"))
    return summary


def _title(text: str) -> None:
    CONSOLE.print()
    CONSOLE.rule(f"[bold]{text}", align="left")


if __name__ == "__main__":
    sys.exit(main())
