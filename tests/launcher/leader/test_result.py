"""What the summary says at the very end."""

import json
from pathlib import Path
from typing import Any

import pytest

from shardwise.launcher.leader.causes import Ending
from shardwise.launcher.leader.result import (
    complete_summary,
    failed,
    hosts_released,
    read_summary,
    saved,
    stopped_badly,
)
from shardwise.protocol.contract import SUMMARY, Cause, ExitCode
from shardwise.protocol.leader_record import RunResult
from shardwise.protocol.report import Exit

KILLED = Exit(attempt=2, code=None, signal=9, asked=False, out_of_memory=False, log_tail="the end")
FAILED = failed(Ending(cause=Cause.FAILURE, rank=1, exit=KILLED, message="rank 1 was killed"))


@pytest.mark.parametrize(
    ("word", "now", "before", "status"),
    [
        (RunResult(code=0, message=""), "complete", None, "complete"),
        (RunResult(code=0, message=""), "stopped", None, "stopped"),
        (saved(""), "stopped", None, "stopped"),
        (saved(""), "starting", None, "stopped"),
        (saved(""), "starting", "complete", "complete"),
        (saved(""), None, None, "stopped"),
        (saved(""), "failed", None, "stopped"),
        (FAILED, None, None, "failed"),
        (FAILED, "running", "stopped", "failed"),
        (FAILED, "nonfinite", None, "nonfinite"),
        (FAILED, "complete", "complete", "complete"),
        (hosts_released(""), "running", None, "stopped"),
        (hosts_released(""), "starting", "stopped", "stopped"),
        (hosts_released(""), None, None, "stopped"),
        (hosts_released(""), "complete", None, "complete"),
    ],
)
def test_status(tmp_path: Path, word: RunResult, now: str | None, before: str | None, status: str) -> None:
    """The trainers' own word stays; where they had none, the launcher's stands; what was reached before is kept."""
    path = tmp_path / SUMMARY
    if now:
        path.write_text(json.dumps({"status": now}))
    complete_summary(tmp_path, {"status": before} if before else {}, "name", word, {"hosts": 2})
    summary: dict[str, Any] = json.loads(path.read_text())

    assert summary["status"] == status
    assert summary["hosts"] == 2
    assert now or summary["name"] == "name"
    if status == "failed":
        assert (summary["cause"], summary["rank"], summary["exit"]) == ("failure", 1, "signal SIGKILL")
        assert summary["logTail"] == "the end"


def test_a_bad_end_without_a_cause(tmp_path: Path) -> None:
    """It is the launcher's own, and the summary says what it was, whatever the trainers have said."""
    (tmp_path / SUMMARY).write_text(json.dumps({"status": "stopped"}))
    complete_summary(tmp_path, {}, "name", RunResult(code=ExitCode.FAILURE, message="the copy is incomplete"), {})

    assert json.loads((tmp_path / SUMMARY).read_text()) == {"status": "failed", "error": "the copy is incomplete"}


def test_a_run_that_can_be_resumed_has_not_failed(tmp_path: Path) -> None:
    """What a trainer said of its end is no longer said."""
    (tmp_path / SUMMARY).write_text(json.dumps({"status": "failed", "error": "a peer is gone", "steps": 5}))
    complete_summary(tmp_path, {}, "name", saved(""), {})

    assert json.loads((tmp_path / SUMMARY).read_text()) == {"status": "stopped", "steps": 5}


def test_the_trainer_s_own_words_stay(tmp_path: Path) -> None:
    """They say more than the launcher knows, which adds what it does."""
    (tmp_path / SUMMARY).write_text(json.dumps({"status": "failed", "error": "no such file: a.txt"}))
    complete_summary(tmp_path, {}, "name", FAILED, {})
    summary = json.loads((tmp_path / SUMMARY).read_text())

    assert (summary["error"], summary["logTail"]) == ("no such file: a.txt", "the end")


def test_a_summary_that_is_not_there_or_half_written_is_empty(tmp_path: Path) -> None:
    """A run begins and ends without it."""
    absent = read_summary(tmp_path)
    (tmp_path / SUMMARY).write_text('{"status": "run')

    assert absent == read_summary(tmp_path) == {}


def test_a_program_s_own_file_under_the_name_of_the_summary(tmp_path: Path) -> None:
    """It is no summary, and the run ends with one."""
    (tmp_path / SUMMARY).write_text('[{"accuracy": 0.9}]')
    before = read_summary(tmp_path)
    complete_summary(tmp_path, before, "name", RunResult(code=0, message=""), {"hosts": 2})

    assert before == {}
    assert json.loads((tmp_path / SUMMARY).read_text()) == {"name": "name", "status": "complete", "hosts": 2}


@pytest.mark.parametrize(
    ("ending", "code", "exit_", "tail"),
    [
        (Ending(cause=Cause.FAILURE, rank=1, exit=KILLED, message="it ended"), 1, KILLED.message, "the end"),
        (Ending(cause=Cause.HANG, rank=None, exit=None, message="it ended"), 1, None, ""),
    ],
)
def test_a_bad_end_in_a_result(ending: Ending, code: int, exit_: str | None, tail: str) -> None:
    """With the ending's own words, or those that were given instead; and a trainer's exit where one explains it."""
    result, said = failed(ending), failed(ending, "said")

    assert (result.code, result.message, result.exit, result.log_tail) == (code, "it ended", exit_, tail)
    assert (result.cause, result.rank) == (ending.cause, ending.rank)
    assert said.message == "said"


@pytest.mark.parametrize(
    ("word", "status", "error"),
    [
        (RunResult(code=0, message=""), "complete", None),
        (saved("asked to stop"), "stopped", None),
        (FAILED, "failed", FAILED.message),
    ],
    ids=("well", "stopped", "in another way"),
)
def test_a_program_that_was_mended(tmp_path: Path, word: RunResult, status: str, error: str | None) -> None:
    """It writes no summary, and how the command before this one ended is not said of this one."""
    earlier = {"name": "name", "status": "failed", "error": "no such file", "cause": "badInput", "rank": 0, "exit": "2"}
    before = {**earlier, "logTail": "can't open file", "initialDigest": "ab"}
    (tmp_path / SUMMARY).write_text(json.dumps(before))
    complete_summary(tmp_path, before, "name", word, {})
    summary = json.loads((tmp_path / SUMMARY).read_text())

    assert (summary["status"], summary.get("error"), summary["initialDigest"]) == (status, error, "ab")
    assert summary.get("cause") == (word.cause or None)


@pytest.mark.parametrize("cause", Cause)
@pytest.mark.parametrize("stepped", [True, False])
@pytest.mark.parametrize("restarts", [True, False])
def test_a_stop_that_ends_badly(cause: Cause, *, stepped: bool, restarts: bool) -> None:
    """It can be resumed where nothing is lost, or what a lost host, a device, storage or a hang has cost.

    Where no restart is left for that, or the run itself has failed, it is as failed as without the stop.
    """
    ending = Ending(cause=cause, rank=1, exit=None, message="it ended")
    result = stopped_badly(ending, stepped=stepped, restarts=restarts)

    of_a_machine = cause in (Cause.HOST_LOST, Cause.DEVICE, Cause.STORAGE, Cause.HANG)
    resumable = of_a_machine and restarts if stepped else cause != Cause.BAD_INPUT
    assert (result.code == ExitCode.SAVED, result.cause) == ((True, None) if resumable else (False, cause))
    assert "it ended" in result.message
