"""shardwise.page.gather: the document of a page says what the files of the run say."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.page.building import BEGAN, HOSTILE, QUICKSTART, SUMMARY, lines, make_program_run, make_run, saved, started

from shardwise.job.load import dump, load
from shardwise.job.resolve import resolve
from shardwise.launcher.system import log_bound
from shardwise.page.gather import gather
from shardwise.page.log_tails import MOST_LOGS, TAIL_BYTES, log_tails


def test_numbers_are_those_of_the_files(tmp_path: Path) -> None:
    """Step, loss, goodput, restarts, mesh, memory and checkpoints equal what the run has written."""
    known = gather(make_run(tmp_path / "run"), status="complete", checkpoints=lambda _: [4])
    assert (known.name, known.step, known.num_steps, known.live) == ("quickstart", 6, 100, False)
    assert (known.loss, known.held_out_loss, known.mfu) == (60.0, 4.5, 0.25)
    assert (known.goodput, known.entropy) == (SUMMARY["goodput"], SUMMARY["entropy"])
    assert (known.restarts, known.resumed, known.attempts_made) == ({"failure": 1}, [4], 2)
    assert (known.devices, known.mesh) == (4, {"replica": 1, "data": 2, "tensor": 2})
    assert [(row.devices, row.count, row.batch_bytes) for row in known.memory] == [("cpu:0", 3, 3), ("cpu:3", 1, 4)]
    (save,) = known.saves
    assert (save.step, save.saved_at, save.blocked_seconds, save.kept) == (4, BEGAN + 20, 0.25, True)
    assert [(one.step, one.evaluated_at) for one in known.evaluations] == [(4, BEGAN + 18)]
    assert [(notice.event, notice.step) for notice in known.notices] == [("save", None), ("saveFailed", 5)]
    assert HOSTILE in known.notices[-1].text


def test_of_thousands_of_devices_that_hold_the_same_a_few_are_named(tmp_path: Path) -> None:
    """The trainer writes a row for each of the first; the page counts them all."""
    directory = make_run(tmp_path / "run")
    event = started(6, 2)
    alike = [{**event["memory"][0], "device": f"tpu:{device}"} for device in range(16)]
    with (directory / "metrics.jsonl").open("a") as metrics:
        metrics.write(json.dumps({**event, "devices": 8192, "memory": alike}) + "\n")
    known = gather(directory, status="running")

    assert [(row.devices, row.count) for row in known.memory] == [("tpu:0", 8192)]


def test_a_checkpoint_that_was_deleted_is_not_there(tmp_path: Path) -> None:
    """A commit says whether its checkpoint is still there, and nothing where that is not known."""
    directory = make_run(tmp_path / "run")
    assert [save.kept for save in gather(directory, status="complete", checkpoints=lambda _: []).saves] == [False]
    assert [save.kept for save in gather(directory, status="complete").saves] == [None]


def test_a_checkpoint_that_was_set_aside_is_not_there(tmp_path: Path) -> None:
    """A run that went back has what it went back to and what it has saved since, whether or not they are listed."""
    events = [
        started(0, 0),
        *(saved(number, BEGAN + number) for number in (2, 4, 6)),
        {"event": "setAside", "step": 2, "steps": [4, 6]},
        started(2, 1),
        saved(4, BEGAN + 10),
    ]
    (tmp_path / "metrics.jsonl").write_text(lines(events), encoding="utf-8")

    saves = gather(tmp_path, status="running").saves

    assert [(save.step, save.kept) for save in saves] == [(2, None), (6, False), (4, None)]


def test_a_run_that_has_written_nothing(tmp_path: Path) -> None:
    """Of a directory without any file of a run everything is empty, and nothing is made up."""
    known = gather(tmp_path, status="ready")
    assert (known.name, known.step, known.num_steps, known.loss) == (tmp_path.name, 0, None, None)
    parts = (known.series, known.attempts, known.goodput, known.memory, known.saves, known.logs, known.notices)
    assert not any(parts)


def test_a_run_that_was_killed_has_the_goodput_of_its_leader(tmp_path: Path) -> None:
    """Without an end the wall time is what the leader last noted, and the page says so."""
    directory = make_run(tmp_path / "run")
    noted = {"run": "r", "scratch": "", "leaderPid": 1, "port": 1, "startedAt": BEGAN, "goodput": {"step": 5.0}}
    (directory / "logs" / "leader.json").write_text(json.dumps(noted), encoding="utf-8")
    known = gather(directory, status="dead")
    assert (known.goodput, "sudden end" in known.goodput_of) == ({"step": 5.0}, True)


def test_logs_are_the_newest_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank that ended an attempt comes first; of long logs whole lines at the end stay, and of many the newest."""
    directory = make_run(tmp_path / "run")
    long = directory / "logs" / "attempt-1" / "host-0.log"
    long.write_text("".join(f"line {number}\n" for number in range(10_000)), encoding="utf-8")
    logs = log_tails(directory, {0: 1, 1: None})["logs"]
    assert [(log.attempt, log.host) for log in logs] == [(1, 0), (1, 1), (0, 1), (0, 0)]
    assert (logs[0].size, len(logs[0].text) < TAIL_BYTES) == (long.stat().st_size, True)
    assert logs[0].text.endswith("line 9999\n")
    assert logs[0].text.startswith("line ")
    assert logs[1].text == f"log 1 1 {HOSTILE}\n"
    monkeypatch.setattr(log_bound, "KEPT_BYTES", 1000)
    log_bound.cut(long)
    now = log_tails(directory, {0: 1, 1: None})["logs"][0]
    assert "line 9999\n[shardwise: the log was cut here" in now.text
    assert now.size >= logs[0].size
    for rank in range(2, MOST_LOGS + 1):
        (long.parent / f"host-{rank}.log").touch()
    told = log_tails(directory, {})
    assert (len(told["logs"]), told["logs_left_out"]) == (MOST_LOGS, 3)


@pytest.mark.parametrize("module", ["gather", "render"])
def test_no_array_library_is_imported(module: str) -> None:
    """The page is made without JAX and numpy: an agent can make it."""
    code = f"import sys, shardwise.page.{module}; print({{'jax', 'numpy', 'ray'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_time_left_of_a_run_within_its_ramp(tmp_path: Path) -> None:
    """Each later step, of twice the sequences, takes twice as long."""
    directory = make_run(tmp_path / "run")
    alike = gather(directory, status="running")
    ramp_up = "training.batch.rampUp=[{untilStep: 20, sequences: 8}]"
    (directory / "job.yaml").write_text(dump(resolve(load(QUICKSTART, [ramp_up]))))
    ramped = gather(directory, status="running")

    assert alike.eta_seconds is not None
    assert ramped.eta_seconds == pytest.approx(alike.eta_seconds * (14 + 2 * 80) / 94)


def test_the_time_left_of_a_program_that_reports_each_hundredth_step(tmp_path: Path) -> None:
    """Its seconds are those of a hundred steps."""
    began = {"event": "started", "step": 0, "attempt": 0, "of": 10_000, "program": True}
    reports = [{"step": 100 * number, "loss": 1.0, "stepSeconds": 100.0} for number in range(1, 51)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (began, *reports)))
    (tmp_path / "summary.json").write_text(json.dumps({"name": "own", "status": "running", "of": 10_000}))

    assert gather(tmp_path, status="running").eta_seconds == 5000.0


def test_events_that_no_run_writes(tmp_path: Path) -> None:
    """A program that writes metrics.jsonl itself has events of the same names; of them the page has what fits."""
    directory = make_program_run(tmp_path / "run", loss=1.5)
    events = [
        {"event": "started", "step": 2, "mesh": [2, 4], "memory": "80 GB", "program": True},
        {"event": "saved", "step": 2, "savedAt": "2026-11-29T06:00:00Z", "digest": None},
        {"event": "evaluated", "step": 2, "sets": ["books"], "heldOutLoss": "2.5"},
        {"event": "evaluated", "step": 2, "sets": {"books": {"loss": 2.5}}},
        {"event": "slower", "step": 2, "time": "06:00", "reason": "a new learning rate"},
    ]
    with (directory / "metrics.jsonl").open("a", encoding="utf-8") as metrics:
        metrics.write(lines(events) + "[" * 100_000 + "\n")

    known = gather(directory, status="running")

    assert (known.step, [save.step for save in known.saves], known.mesh) == (2, [2], {})
    assert (known.held_out_loss, known.set_losses) == (None, {"books": 2.5})
    assert [(notice.event, notice.text) for notice in known.notices] == [("slower", "a new learning rate")]


DAMAGED: list[dict[str, Any]] = [
    {"time": BEGAN, "event": "attempt", "attempt": "first"},
    {"time": BEGAN, "event": "attempt"},
    {"time": BEGAN + 1, "event": "slow", "host": [1], "message": "slow"},
    {"time": BEGAN + 1, "event": "slow"},
    {"time": BEGAN + 2, "event": "hosts", "attempt": 1, "hosts": None},
    {"time": BEGAN + 2, "event": "hosts", "attempt": 1, "hosts": [{"host": 0, "step": "six"}]},
    {"time": BEGAN + 3, "event": "running", "fromStep": "four", "sinceEndSeconds": None},
    {"time": BEGAN + 3, "event": "running", "fromStep": 4, "sinceEndSeconds": "long"},
    {"time": BEGAN + 3, "event": "running"},
    {"time": BEGAN + 4, "event": "noAnswer", "step": "last"},
    {"time": BEGAN + 4, "event": ["noAnswer"]},
    {"time": BEGAN + 4, "message": "no event"},
    {"time": True, "event": "noAnswer"},
    {"time": "06:00", "event": "noAnswer"},
    {"time": BEGAN + 5, "event": "ended", "attempt": 1, "cause": 7, "rank": "1", "exit": None, "message": {}},
    {"time": BEGAN + 6, "event": "restarting", "cause": "failure", "message": None, "waitSeconds": "1"},
    {"time": BEGAN + 6, "event": "restarting"},
]
"""Events of a launcher, each of which has a field of another kind than it writes, or lacks one."""


@pytest.mark.parametrize("where", ["before", "after"])
def test_events_that_no_launcher_writes(tmp_path: Path, where: str) -> None:
    """A damaged line of launcher.jsonl is passed over: the page says what the others say."""
    directory = make_run(tmp_path / "run")
    sound = gather(directory, status="complete")
    path = directory / "logs" / "launcher.jsonl"
    whole, damaged = path.read_text(encoding="utf-8"), lines(DAMAGED)
    path.write_text(damaged + whole if where == "before" else whole + damaged, encoding="utf-8")

    assert gather(directory, status="complete").model_copy(update={"made_at": sound.made_at}) == sound
