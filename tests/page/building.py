"""Run directories for the tests of the page, as small as a file can be that has all of a page's parts."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shardwise.job.load import dump, load
from shardwise.job.resolve import resolve

QUICKSTART = Path(__file__).parents[2] / "tests/job/golden/quickstart.yaml"
BEGAN = 1795000000.0
HOSTILE = "</script><script>document.title='taken over'</script><!-- \u2028 & <b>"
SIZES = {"params_bytes": 100, "optimizer_bytes": 200, "batch_bytes": 3, "temporary_bytes": 40}


def step(number: int, loss: float | None = None) -> dict[str, Any]:
    """Return the record of a step; its loss is its number unless another is given."""
    value = float(number) if loss is None else loss
    numbers = {"tokensPerSecond": 1000.0 + number, "stepSeconds": 0.5, "mfu": 0.25, "gradNorm": 1.0}
    return {"step": number, "loss": value, **numbers}


def started(number: int, attempt: int) -> dict[str, Any]:
    """Return the first event of an attempt, on four devices of which three are alike."""
    memory = [{"device": f"cpu:{device}", **SIZES, "batch_bytes": 3 + (device == 3)} for device in range(4)]
    facts = {"devices": 4, "mesh": {"replica": 1, "data_outer": 2, "data_inner": 1, "tensor": 2}, "memory": memory}
    return {"event": "restored" if number else "started", "step": number, "attempt": attempt, **facts}


def saved(number: int, at: float) -> dict[str, Any]:
    """Return the event of a committed checkpoint."""
    facts = {"savedAt": at, "blockedSeconds": 0.25, "durableSeconds": 1.5, "digest": "ab" * 16}
    return {"event": "saved", "step": number, **facts}


def host(number: int) -> dict[str, Any]:
    """Return a host's times, as a leader notes them at the end of an attempt."""
    phases = {"join": 1.0, "compile": 4.0, "step": 10.0, "wait": 2.0}
    return {"host": number, "step": 6, "stepSeconds": 0.5, "ownSeconds": 0.001 * (number + 1), "phases": phases}


METRICS = [
    started(0, 0),
    *(step(number) for number in range(1, 7)),
    {"event": "evaluated", "step": 2, "heldOutLoss": 4.8, "heldOutAccuracy": 0.1},  # of an older release
    {"event": "evaluated", "step": 4, "evaluatedAt": BEGAN + 18, "evaluationSeconds": 3.0, "heldOutLoss": 4.5},
    saved(4, BEGAN + 20),
    started(4, 1),
    step(5, 50.0),
    {"event": "saveFailed", "step": 5, "reason": HOSTILE, "inARow": 1},
    step(6, 60.0),
    {"event": "complete", "step": 6, "digest": "cd" * 16},
]
ENDED = {"cause": "failure", "rank": 1, "exit": "signal SIGKILL", "message": "rank 1 ended with signal SIGKILL"}
EVENTS = [
    {"time": BEGAN - 1, "event": "session", "session": 1, "seconds": 1.0},
    {"time": BEGAN, "event": "attempt", "attempt": 0, "sinceEndSeconds": None},
    {"time": BEGAN + 10, "event": "running", "attempt": 0, "fromStep": 0, "sinceEndSeconds": None},
    {"time": BEGAN + 12, "event": "slow", "host": 1, "message": "its devices take 2.0 times as long as the others'"},
    {"time": BEGAN + 15, "event": "save"},
    {"time": BEGAN + 30, "event": "hosts", "attempt": 0, "hosts": [host(0), host(1)]},
    {"time": BEGAN + 31, "event": "ended", "attempt": 0, **ENDED},
    {"time": BEGAN + 31, "event": "restarting", "cause": "failure", "message": ENDED["message"], "waitSeconds": 0.0},
    {"time": BEGAN + 32, "event": "attempt", "attempt": 1, "sinceEndSeconds": 1.0},
    {"time": BEGAN + 35, "event": "running", "attempt": 1, "fromStep": 4, "sinceEndSeconds": 4.0},
    {"time": BEGAN + 40, "event": "done", "code": 0, "message": "complete", "cause": None, "rank": None, "exit": None},
]
SUMMARY = {
    "name": "quickstart",
    "status": "complete",
    "steps": 6,
    "digest": "cd" * 16,
    "entropy": {"unigram": 3.0},
    "restarts": {"failure": 1},
    "goodput": {"start": 10.0, "step": 25.0, "lostSteps": 1.0, "recovery": 4.0},
}


def lines(records: Iterable[Mapping[str, Any]]) -> str:
    """Return the records as a file has them."""
    return "".join(json.dumps(record) + "\n" for record in records)


def make_run(directory: Path) -> Path:
    """Make the directory of a run whose second rank was killed after step 6, and which then came to its end."""
    logs = directory / "logs"
    for attempt in (0, 1):
        (logs / f"attempt-{attempt}").mkdir(parents=True)
        for rank in (0, 1):
            text = f"\x1b[31mlog {attempt} {rank}\x1b[0m {HOSTILE}\n"
            (logs / f"attempt-{attempt}" / f"host-{rank}.log").write_text(text, encoding="utf-8")
    (directory / ".lock").touch()
    (directory / "job.yaml").write_text(dump(resolve(load(QUICKSTART))), encoding="utf-8")
    (directory / "metrics.jsonl").write_text(lines(METRICS), encoding="utf-8")
    (logs / "launcher.jsonl").write_text(lines(EVENTS), encoding="utf-8")
    (directory / "summary.json").write_text(json.dumps(SUMMARY), encoding="utf-8")
    committed = directory / "checkpoints" / "step-00000004"
    committed.mkdir(parents=True)
    (committed / "COMMITTED").touch()
    return directory


def lose_number(directory: Path) -> None:
    """Append a step and its evaluation to a run, whose losses are no numbers."""
    results = {"heldOutLoss": None, "heldOutAccuracy": 0.1, "sets": {"books": {"loss": None, "accuracy": 0.1}}}
    with (directory / "metrics.jsonl").open("a", encoding="utf-8") as metrics:
        metrics.write(lines([{**step(7), "loss": None}, {"event": "evaluated", "step": 7, **results}]))


def make_program_run(directory: Path, **numbers: float) -> Path:
    """Make the directory of a run of an own program, which reports these numbers at each of four steps."""
    directory.mkdir()
    begun = {"event": "started", "step": 0, "attempt": 0, "devices": 4, "program": True}
    steps = [{"step": number, **numbers, "stepSeconds": 0.5} for number in range(1, 5)]
    (directory / "metrics.jsonl").write_text(lines([begun, *steps]), encoding="utf-8")
    return directory
