"""The demo: train on real text over 8 simulated devices, stop half-way, go on with another mesh, show the result.

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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from shardwise.job.contract import (
    CHECKPOINTS,
    JOB_FILE,
    LOGS,
    METRICS,
    PLOT,
    SUMMARY,
    ExitCode,
    progress_name,
    read_progress,
)
from shardwise.job.errors import ShardwiseError
from shardwise.train.metrics import records, steps
from shardwise.train.run_directory import RunDirectory

JOB = Path(__file__).with_name("python.yaml")
MARK = ".made-by-demo"
MIN_STEPS, STEPS = 60, 600
NUM_AVERAGED = 20
"""Steps whose losses are averaged: one batch is small, so one loss says little."""
POLL_SECONDS = 0.1

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
    parser = argparse.ArgumentParser(description="Train, stop, go on with another mesh, and show the result.")
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
    run = ["run", *job, "--dir", str(directory)]

    _title("The job")
    CONSOLE.print(
        f"{os.path.relpath(JOB)} is a whole job. --set changes a field of it. Nothing starts before it is right."
    )
    _call("check", *job)

    middle = num_steps // 2
    _title(f"Training on data 4 x tensor 2, stopped with SIGTERM at step {middle}")
    CONSOLE.print("Each matrix is split over tensor and over data (FSDP), the batch over data.")
    CONSOLE.print("A stop saves first. Exit code 80 says: saved, can go on.")
    stopped_at = _run_until(middle, directory, run)
    first = _summary(directory)

    _title(f"The same run goes on with data 8 x tensor 1, from step {stopped_at}")
    CONSOLE.print(
        "A checkpoint belongs to no mesh: each device reads its new share, and the digest of every array is compared."
    )
    _call(*run, "--set", "training.mesh.tensor=1")
    _check_resumed(directory, stopped_at, num_steps)

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
    _title("Where the time went (seconds)")
    CONSOLE.print(_phases_table(first, _summary(directory)))
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
    with RunDirectory.held(directory):
        if mark.exists():
            CONSOLE.print(f"The run that an earlier demo left in {directory} is removed; this one begins anew.")
        mark.touch()
        for folder in (CHECKPOINTS, LOGS):
            shutil.rmtree(directory / folder, ignore_errors=True)
        for name in (JOB_FILE, METRICS, SUMMARY, PLOT):
            (directory / name).unlink(missing_ok=True)


def _run_until(middle: int, directory: Path, run: Sequence[str]) -> int:
    """Start the run, send SIGTERM when the middle step is complete, and return the step at which it was saved."""
    with _started(*run) as process:
        while process.poll() is None and _completed(directory) < middle:
            time.sleep(POLL_SECONDS)
        process.send_signal(signal.SIGTERM)
        code = process.wait()
    if code != ExitCode.SAVED:
        raise DemoError(
            f"the run ended with {code}; expected {ExitCode.SAVED:d}, which says that it was stopped and saved"
        )
    return int(_summary(directory)["steps"])


def _completed(directory: Path) -> int:
    progress = read_progress(directory / LOGS / progress_name(0))
    return progress.step if progress else 0


def _check_resumed(directory: Path, stopped_at: int, num_steps: int) -> None:
    restored = [record["step"] for record in records(directory / METRICS) if record.get("event") == "restored"]
    if restored != [stopped_at]:
        raise DemoError(f"the run went on from step {restored}; expected {stopped_at}, where it was stopped")
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
    for event in records(directory / METRICS):
        held: dict[tuple[str, ...], list[str]] = {}
        for row in event.get("memory", ()):
            sizes = (row["params_bytes"], row["optimizer_bytes"], row["batch_bytes"], row["temporary_bytes"])
            written = tuple(f"{size / 2**20:.2f}" for size in (*sizes, sum(sizes)))
            held.setdefault(written, []).append(row["device"])
        for written, devices in held.items():
            alike = devices[0] if len(devices) == 1 else f"{len(devices)} alike"
            table.add_row(f"{event['mesh']['data']} x {event['mesh']['tensor']}", alike, *written)
    return table


def _phases_table(first: dict[str, Any], second: dict[str, Any]) -> Table:
    table = Table()
    table.add_column("phase")
    table.add_column("first start", justify="right")
    table.add_column("second start", justify="right")
    names = dict.fromkeys([*first["phases"], *second["phases"]])
    for name in names:
        table.add_row(name, *(f"{start['phases'].get(name, 0):.2f}" for start in (first, second)))
    return table


def _show_files(directory: Path) -> None:
    for path in sorted(directory.glob(f"{CHECKPOINTS}/*")):
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


def _summary(directory: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((directory / SUMMARY).read_text(encoding="utf-8"))
    return summary


def _title(text: str) -> None:
    CONSOLE.print()
    CONSOLE.rule(f"[bold]{text}", align="left")


if __name__ == "__main__":
    sys.exit(main())
