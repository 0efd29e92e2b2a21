"""`import shardwise` in a script that is run by itself: a run of one process, with the same ends as under an agent."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from shardwise.protocol.contract import ExitCode

LIMIT_SECONDS = 120.0
COUNTS = """
import sys, time, shardwise
run = shardwise.init(steps=int(sys.argv[1]), save_every_seconds=None)
state, step = shardwise.checkpoint.restore(like={"n": 0})
print("from", step, state["n"], run.rank, run.num_processes, run.attempt, run.directory, flush=True)
while step < int(sys.argv[1]):
    step += 1
    time.sleep(0.01)
    shardwise.report(step=step, loss=1 / step, grad_norm=2.0)
    if step % 10 == 0:
        shardwise.save_now()
    if shardwise.should_save():
        shardwise.checkpoint.save({"n": step}, step)
    if shardwise.should_stop():
        break
"""


def start(folder: Path, script: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a script in a folder, as a person does."""
    (folder / "my script.py").write_text(script)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHARDWISE_")}
    return subprocess.Popen(
        [sys.executable, "my script.py", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for the end: exit code, output, errors."""
    out, error = process.communicate(timeout=LIMIT_SECONDS)
    return process.returncode, out, error


def summary(folder: Path) -> dict[str, Any]:
    """The summary of the script's run."""
    read: dict[str, Any] = json.loads((folder / "runs" / "my-script" / "summary.json").read_text())
    return read


def test_a_script_by_itself(tmp_path: Path) -> None:
    """It has a directory of its own, and goes on there from its last checkpoint when it is started again."""
    code, out, error = ended(start(tmp_path, COUNTS, "25"))
    directory = tmp_path / "runs" / "my-script"
    assert (code, out, error) == (0, f"from 0 0 0 1 0 {directory}\n", "")
    assert (summary(tmp_path)["status"], summary(tmp_path)["steps"], summary(tmp_path)["of"]) == ("complete", 25, 25)
    assert ended(start(tmp_path, COUNTS, "25"))[1] == f"from 21 21 0 1 1 {directory}\n"

    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines if "event" not in line]
    assert steps == [*range(1, 26), *range(22, 26)]
    assert {**lines[1], "stepSeconds": 0} == {"step": 1, "loss": 1.0, "gradNorm": 2.0, "stepSeconds": 0}
    assert [line["event"] for line in lines if "event" in line] == ["started", "saved", "saved", "restored"]


def test_a_start_that_finds_nothing_left(tmp_path: Path) -> None:
    """A run that is complete and started again keeps its steps and its digest."""
    script = COUNTS.replace("step % 10 == 0", "step % 10 == 4")
    assert ended(start(tmp_path, script, "25"))[0] == 0
    first = summary(tmp_path)
    saved = json.loads((tmp_path / "runs" / "my-script" / "metrics.jsonl").read_text().splitlines()[-1])
    assert ended(start(tmp_path, script, "25"))[0] == 0

    assert (saved["event"], saved["step"], saved["digest"]) == ("saved", 25, first["digest"])
    assert summary(tmp_path) == first


SAVES = """
import time, shardwise
shardwise.init(save_every_seconds=None)
shardwise.report(step=1)
began = time.perf_counter()
shardwise.checkpoint.save({"n": 1}, 1)
seconds = time.perf_counter() - began
shardwise.report(step=2)
print(seconds)
"""


def test_no_step_is_charged_for_a_save(tmp_path: Path) -> None:
    """The step after a save takes less time than the save: its time is the script's own."""
    code, out, error = ended(start(tmp_path, SAVES))
    assert (code, error) == (0, "")
    lines = (tmp_path / "runs" / "my-script" / "metrics.jsonl").read_text().splitlines()
    (seconds,) = [record["stepSeconds"] for record in map(json.loads, lines) if record.get("step") == 2]
    assert seconds < float(out)


TOO_MANY = """
import sys, shardwise
from shardwise.protocol.errors import UsageError
def refused(call):
    try:
        call()
    except UsageError as error:
        print(error)
refused(lambda: shardwise.init(steps=sys.maxsize))
shardwise.init(steps=2**31 - 1)
refused(lambda: shardwise.report(step=3_000_000_000))
shardwise.report(step=2**31 - 1)
"""


def test_steps_beyond_what_a_status_holds(tmp_path: Path) -> None:
    """They are refused in words, and the script may go on with others."""
    code, out, error = ended(start(tmp_path, TOO_MANY))
    assert (code, error) == (0, "")
    assert out.splitlines() == [
        "init(steps=9223372036854775807): expected at most 2147483647; leave it out if the run has no end",
        "report(step=3000000000): expected a step of at most 2147483647",
    ]
    assert summary(tmp_path)["steps"] == 2**31 - 1


def test_too_many_steps_are_told_in_one_line(tmp_path: Path) -> None:
    """The code says that the program must be mended: no restart would help."""
    code, out, error = ended(start(tmp_path, "import sys, shardwise\nshardwise.init(steps=sys.maxsize)\n"))
    assert (code, out) == (ExitCode.USAGE, "")
    assert error.startswith("error: init(steps=9223372036854775807): expected at most 2147483647")
    assert "Traceback" not in error


def test_sigterm_saves(tmp_path: Path) -> None:
    """SIGTERM: it saves after the step it is in, and ends with the code that says so; nothing is lost."""
    process = start(tmp_path, COUNTS, "100000")
    metrics = tmp_path / "runs" / "my-script" / "metrics.jsonl"
    end = time.monotonic() + LIMIT_SECONDS
    while not metrics.exists() or '"step": 30' not in metrics.read_text():
        assert process.poll() is None, ended(process)
        assert time.monotonic() < end
        time.sleep(0.01)  # a poll, not a wait: the condition decides
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == ExitCode.SAVED
    assert summary(tmp_path)["status"] == "stopped"
    last = json.loads(metrics.read_text().splitlines()[-1])
    assert (last["event"], last["step"]) == ("saved", summary(tmp_path)["steps"])


UNWRITTEN = "TypeError: Object of type set is not JSON serializable"
BAD = "import sys, shardwise\nrun = shardwise.init()\nshardwise.report(step=1)\n"


@pytest.mark.parametrize(
    ("lines", "code", "words"),
    [
        ("raise ValueError('mine')", 1, "ValueError: mine"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        ("raise MemoryError('all of it')", 83, "MemoryError: all of it"),
        ("raise RuntimeError('RESOURCE_EXHAUSTED: Out of memory')", 83, "RESOURCE_EXHAUSTED"),
        ("raise OSError(28, 'No space left on device')", 84, "No space left"),
        ("raise RuntimeError('Gloo all-reduce failed: closed by peer')", 86, "closed by peer"),
        ("shardwise.report(step=1)", 2, "error: report(step=1): expected the number of steps"),
        ("shardwise.report(step=2, loss='low')", 2, "error: report(loss=...): given str, expected a number"),
        ("shardwise.report(step=2, event=1)", 2, "error: report(event=...): expected another name"),
        ("shardwise.report(step=2, Step=0.5)", 2, "error: report(Step=...): expected another name"),
        ("shardwise.report(step=2, step_seconds=0.5)", 2, "error: report(step_seconds=...): expected another name"),
        ("shardwise.report(step=2, stepSeconds=0.5)", 2, "error: report(stepSeconds=...): expected another name"),
        (
            *("shardwise.report(step=2, gradNorm=0.5, loss=1, grad_norm=0.25)", 2),
            "error: report(gradNorm=..., grad_norm=...): expected one of them, since both are gradNorm in",
        ),
        ("run.mesh(a=3, b=5)", 2, "error: mesh(a=3, b=5): expected axes whose sizes multiply to the run's "),
        ("shardwise.init()", 2, "error: shardwise.init() was called before"),
        ("shardwise.report(step=2.5)", 2, "error: report(step=2.5): expected a whole number"),
        ("shardwise.checkpoint.save({}, 1)", 2, "error: checkpoint: the tree has no array"),
        ("shardwise.checkpoint.save({'n': 1}, '1')", 2, "error: checkpoint.save(step='1'): expected a whole number"),
        ("shardwise.checkpoint.save({'n': 1}, -1)", 2, "error: checkpoint.save(step=-1): expected a step from 0 on"),
        ("shardwise.checkpoint.restore({'n': 1}, step=-1)", 2, "error: checkpoint.restore(step=-1): expected a step"),
    ],
)
def test_an_error_has_the_exit_code_of_its_cause(tmp_path: Path, lines: str, code: int, words: str) -> None:
    """What nothing catches ends the process with the code by which an agent knows the cause, and in words."""
    given, _, error = ended(start(tmp_path, f"{BAD}{lines}\n"))
    assert (given, words in error) == (code, True), error
    assert ("Traceback" in error) == (code not in (2, 86))
    assert summary(tmp_path)["status"] == "failed"
    assert words.removeprefix("error: ") in summary(tmp_path)["error"]


@pytest.mark.parametrize(("error", "code"), [("StorageError('the volume is full')", 84), ("ValueError('mine')", 1)])
def test_an_error_that_cannot_be_shown_has_its_exit_code_all_the_same(tmp_path: Path, error: str, code: int) -> None:
    """A log on a full disk takes no words: the run has failed for its own cause, and is not complete."""
    lines = "from shardwise.protocol.errors import StorageError\nsys.stderr = sys.stdout = open('/dev/full', 'w')\n"
    process = start(tmp_path, f"{BAD}{lines}raise {error}\n")

    assert ended(process)[0] == code
    assert summary(tmp_path)["status"] == "failed"


EXITS = {
    "sys.exit(3)": 3,
    "sys.exit(True)": 1,
    "sys.exit('no data')": 1,
    "import argparse; argparse.ArgumentParser().error('no data')": 2,
    "signal.raise_signal(signal.SIGTERM); shardwise.report(step=2); shardwise.should_stop(); sys.exit(3)": 3,
}
GOOD_EXITS = {
    "sys.exit()": (0, "complete"),
    "sys.exit(0)": (0, "complete"),
    "try: sys.exit(3)\nexcept SystemExit: shardwise.report(step=2)": (0, "complete"),
    "threading.Thread(target=sys.exit, args=(3,)).start()": (0, "complete"),
    "signal.raise_signal(signal.SIGTERM); shardwise.report(step=2); shardwise.should_stop(); sys.exit(80)": (
        ExitCode.SAVED,
        "stopped",
    ),
}


WORKERS = """
import multiprocessing, time, shardwise

def work(ready):
    ready.set()
    time.sleep(600)

shardwise.init()
for step in (1, 2):
    ready = multiprocessing.Event()
    worker = multiprocessing.Process(target=work, args=(ready,), daemon=True)
    worker.start()
    ready.wait()
    worker.terminate()
    worker.join(20)
    print(worker.exitcode)
    worker.kill()
    shardwise.report(step=step)
"""


def test_forked_workers(tmp_path: Path) -> None:
    """SIGTERM ends a child that the script has forked, before the first step and after it, and no stop is asked for."""
    code, out, error = ended(start(tmp_path, WORKERS))
    assert (code, out) == (0, "-15\n-15\n")
    assert "StoppedError" not in error


def test_steps_of_any_whole_type(tmp_path: Path) -> None:
    """A step may be counted by numpy or by JAX: it is written as a number, and is the one that was meant."""
    script = """
import jax.numpy as jnp, numpy as np, shardwise
shardwise.init(steps=3)
for step in (np.int64(1), jnp.int32(2), np.asarray(3)):
    shardwise.report(step=step, loss=0.5)
    shardwise.checkpoint.save({"n": int(step)}, step)
print(shardwise.checkpoint.restore({"n": 0}, step=jnp.int32(2)), flush=True)
"""
    assert ended(start(tmp_path, script)) == (0, "({'n': 2}, 2)\n", "")
    assert summary(tmp_path)["steps"] == 3


@pytest.mark.parametrize("line", ["", "raise ValueError('mine')"])
def test_an_error_at_the_very_end(tmp_path: Path, line: str) -> None:
    """A record that cannot be written is no good end, and takes no error's place."""
    spoilt = "run._record._of = {1}\n"
    code, _, error = ended(start(tmp_path, f"{BAD}{spoilt}{line}\n"))
    assert (code, error.splitlines()[-1]) == (1, "ValueError: mine" if line else UNWRITTEN)


@pytest.mark.parametrize("line", EXITS)
def test_an_exit_by_the_script_is_no_good_end(tmp_path: Path, line: str) -> None:
    """A script that gives itself a code ends with that, and its run has failed."""
    code, _, error = ended(start(tmp_path, f"import signal\n{BAD}{line}\n"))
    assert (code, summary(tmp_path)["status"]) == (EXITS[line], "failed")
    assert ("no data" in line) == (error.count("no data") == 1)
    assert "Traceback" not in error


@pytest.mark.parametrize("line", GOOD_EXITS)
def test_an_exit_that_is_a_good_end(tmp_path: Path, line: str) -> None:
    """One without a code, one that the script catches and goes on, and one of a thread, are none."""
    code, _, error = ended(start(tmp_path, f"import signal, threading\n{BAD}{line}\n"))
    assert ((code, summary(tmp_path)["status"]), error) == (GOOD_EXITS[line], "")


WRITES = """
import atexit, signal, sys
rows = open("rows.csv", "w")
atexit.register(lambda: rows.write("first"))
import shardwise
shardwise.init()
atexit.register(lambda: rows.write("last, "))
shardwise.report(step=1)
signal.raise_signal(signal.SIGTERM) if "stop" in sys.argv else None
shardwise.report(step=2)

def main(own=open("own.csv", "w")):
    own.write("a row")
    sys.exit(0 if shardwise.should_stop() else 3)

main()
"""


@pytest.mark.parametrize(("word", "code"), [("stop", ExitCode.SAVED), ("exit", 3)])
def test_an_end_with_a_code_is_a_whole_one(tmp_path: Path, word: str, code: int) -> None:
    """The script's other exit handlers run, each once, and what its files still hold is written."""
    assert ended(start(tmp_path, WRITES, word))[::2] == (code, "")
    assert summary(tmp_path)["status"] == ("stopped" if word == "stop" else "failed")
    assert ((tmp_path / "rows.csv").read_text(), (tmp_path / "own.csv").read_text()) == ("last, first", "a row")


def test_before_init(tmp_path: Path) -> None:
    """A function that is called before init() says so."""
    _, _, error = ended(start(tmp_path, "import shardwise\nshardwise.report(step=1)\n"))
    assert "UsageError: expected shardwise.init() first" in error


def test_what_is_imported(tmp_path: Path) -> None:
    """`import shardwise` imports no JAX, and the library nothing that the trainer's models are made of."""
    script = (
        "import sys, shardwise\nassert 'jax' not in sys.modules\nshardwise.init()\n"
        "print(sorted({'jax', 'haliax', 'equinox', 'optax', 'ray', 'shardwise.launcher'} & sys.modules.keys()))\n"
    )
    assert ended(start(tmp_path, script))[:2] == (0, "['jax']\n")


def test_two_at_once(tmp_path: Path) -> None:
    """A second start in the same directory is refused while the first one lives."""
    waiting = "import sys, shardwise\nshardwise.init()\nprint('in', flush=True)\nsys.stdin.read()\n"
    (tmp_path / "first.py").write_text(waiting)
    first = subprocess.Popen(
        [sys.executable, "first.py"], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None
    assert first.stdout.readline() == "in\n"
    code, _, error = ended(start(tmp_path, "import shardwise\nshardwise.init(directory='runs/first')\n"))
    first.communicate("", timeout=LIMIT_SECONDS)
    assert first.returncode == 0
    assert code == ExitCode.BAD_INPUT
    assert "error: runs/first: a live run (process" in error
