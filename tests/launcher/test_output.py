"""shardwise.launcher.output: how a run and its end read."""

import errno
import io
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from shardwise.launcher.output import Output, describe, status_line
from shardwise.launcher.system import lines
from shardwise.protocol.contract import EVENTS, LOGS, Cause, ExitCode, log_path
from shardwise.protocol.run_status import RunPhase, RunProgress, RunStatus


def done(code: int, rank: int) -> dict[str, Any]:
    """The event of a run that ends with wrong input."""
    message = f"rank {rank} ended with exit code {code}"
    return {"event": "done", "code": code, "message": message, "cause": Cause.BAD_INPUT, "rank": rank, "used": {}}


@pytest.mark.parametrize(
    ("code", "rank", "is_told"),
    [(ExitCode.BAD_INPUT, 0, False), (ExitCode.BAD_INPUT, 1, True), (ExitCode.USAGE, 0, True)],
    ids=("shown already", "of a rank whose log is not shown", "of a program that python did not find"),
)
def test_the_end_is_told(code: int, rank: int, *, is_told: bool) -> None:
    """Unless the trainer whose output is shown has said what to do; python's exit code of a wrong script does not."""
    said = describe(done(code, rank))

    assert (said is not None) == is_told
    assert said is None or said.startswith(
        f"the run has failed: rank {rank} ended with exit code {code} (restarts: none)"
    )


@pytest.mark.parametrize(
    ("in_pod", "words"),
    [(False, "the same command goes on"), (True, "delete the job and apply it again: it goes on")],
)
def test_how_to_go_on(words: str, *, in_pod: bool) -> None:
    """A command is given again; a job that has failed is not started by being applied once more."""
    said = describe(done(ExitCode.FAILURE, 0) | {"cause": Cause.FAILURE}, in_pod=in_pod)

    assert said is not None
    assert said.endswith(f"once the cause is gone, {words} from the last checkpoint, if one is there")


@pytest.mark.parametrize(("of", "words"), [(2000, "step 7 of 2,000"), (None, "step 7")])
def test_a_line_without_an_end(of: int | None, words: str) -> None:
    """A program that does not say how many steps it has is shown with those that it has made."""
    status = RunStatus(
        name="mine",
        ray_session=1,
        hosts=(),
        phase=RunPhase.RUNNING,
        progress=RunProgress(step=7, of=of, loss=0.5),
    )

    assert status_line(status).plain == f"running  {words}  loss 0.5000"


def test_a_volume_that_fails_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends no command that shows a run: what it held back is shown afterwards, once. What stays is an error."""
    log, shown = log_path(tmp_path, 0, 0), io.StringIO()
    log.parent.mkdir(parents=True)
    output = Output(tmp_path, Console(file=shown), Console(file=shown), host=0)
    (tmp_path / LOGS / EVENTS).write_text(json.dumps({"event": "attempt", "attempt": 0}) + "\n")
    log.write_text("one\n")
    output.show()
    with log.open("a") as file:
        file.write("two\n")
    with (tmp_path / LOGS / EVENTS).open("a") as file:
        file.write(json.dumps({"event": "goesOn", "attempt": 0}) + "\n")
    for number in (errno.EIO, errno.ESTALE, errno.EACCES):
        with monkeypatch.context() as failing:
            failing.setattr(lines, "content_of", Mock(side_effect=OSError(number, "no")))
            with nullcontext() if number != errno.EACCES else pytest.raises(PermissionError):
                output.show()
        assert shown.getvalue() == "one\n"

    output.end()
    assert shown.getvalue() == "one\ntwo\nthe stall is over\n"


def test_an_event_that_was_cut_short(tmp_path: Path) -> None:
    """It is passed over, with the one that was joined to it; the command or the pod that shows the run goes on."""
    shown, events = io.StringIO(), tmp_path / LOGS / EVENTS
    events.parent.mkdir()
    output = Output(tmp_path, Console(file=shown), Console(file=shown), host=0)
    over = json.dumps({"event": "goesOn", "attempt": 0})
    events.write_text(f"{over[:9]}{over}\n{over}\n")

    output.end()
    assert shown.getvalue() == "the stall is over\n"
