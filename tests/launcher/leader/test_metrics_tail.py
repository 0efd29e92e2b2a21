"""What the leader learns from metrics as they are written."""

import asyncio
import errno
import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest

from shardwise.launcher.leader import metrics_tail
from shardwise.launcher.leader.metrics_tail import MetricsTail
from shardwise.launcher.system import lines
from shardwise.protocol.contract import METRICS
from shardwise.protocol.eta import RECENT_STEPS
from shardwise.protocol.leader_record import LeaderRecord
from shardwise.protocol.run_status import CheckpointStatus, FailedSaves


def step(number: int, seconds: float) -> dict[str, float]:
    """Return a step's record."""
    return {"step": number, "stepSeconds": seconds}


def test_lost_steps_and_commits(tmp_path: Path) -> None:
    """Steps after the restored one were lost; commits count; what an earlier command wrote does not."""
    path = tmp_path / METRICS
    before = json.dumps({"event": "saved", "step": 90, "durableSeconds": 0.5}) + "\n"
    path.write_text(before)
    tail = MetricsTail(tmp_path, len(before))
    assert (tail.attempt, tail.first_step, tail.stepped, tail.committed) == (-1, 0, False, -1)
    records = [
        {"event": "started", "step": 0, "attempt": 3},
        *(step(number, 1.5) for number in range(1, 8)),
        {"event": "saved", "step": 5, "durableSeconds": 0.5},
    ]
    with path.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    tail.read()
    assert (tail.attempt, tail.stepped, tail.committed, tail.lost_seconds) == (3, True, 5, 0.0)
    assert tail.checkpoint == CheckpointStatus(step=5, seconds=0.5)

    with path.open("a") as file:
        file.write(json.dumps({"event": "restored", "step": 5, "attempt": 4}) + "\n" + '{"step": 6, "ste')
    tail.read()
    assert (tail.attempt, tail.stepped, tail.first_step, tail.lost_seconds) == (4, False, 5, 3.0)

    with path.open("a") as file:
        file.write('pSeconds": 2.0}\n')
    tail.read()
    assert tail.stepped
    assert tail.last == step(6, 2.0)
    with path.open("a") as file:
        file.write(json.dumps({"event": "saved", "step": 6, "durableSeconds": 0.5}) + "\n")
    tail.read()
    assert MetricsTail(tmp_path, 0, tail.known).lost_seconds == 3.0


def test_what_the_last_steps_took(tmp_path: Path) -> None:
    """As far as they say it, which a program's need not; and what is no step, and new here, is passed over."""
    records = [step(1, 1.5), {"step": 2, "loss": 1.0}, {"event": "ofALaterRelease"}, step(3, 2.5)]
    (tmp_path / METRICS).write_text("".join(json.dumps(record) + "\n" for record in records))
    tail = MetricsTail(tmp_path, 0)
    tail.read()

    assert list(tail.recent_seconds) == [1.5, 2.5]
    assert tail.last == step(3, 2.5)
    later = [{"event": "restored", "step": 0, "attempt": 1}, *(step(number, 0.5) for number in range(1, 100))]
    with (tmp_path / METRICS).open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in later)
    tail.read()
    assert tail.lost_seconds == 4.0
    assert list(tail.recent_seconds) == [0.5] * RECENT_STEPS


def test_the_newest_checkpoint_and_failed_saves(tmp_path: Path) -> None:
    """The restored checkpoint is known too; saves that fail are kept until one succeeds or the trainers start again."""
    path = tmp_path / METRICS
    tail = MetricsTail(tmp_path, 0)
    failed = {"event": "saveFailed", "step": 9, "inARow": 1, "reason": "503"}
    seen = []
    for record in (
        {"event": "restored", "step": 5, "attempt": 0, "savedAt": 100.5},
        failed,
        failed | {"step": 12, "inARow": 2},
        {"event": "saved", "step": 15, "savedAt": 200.0, "durableSeconds": 0.5},
        failed,
        {"event": "restored", "step": 15, "attempt": 1, "savedAt": 200.0},
    ):
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        tail.read()
        seen.append((tail.checkpoint, tail.failed_saves))
    old = CheckpointStatus(step=5, saved_at=100.5)
    new = CheckpointStatus(step=15, saved_at=200.0, seconds=0.5)
    one, two = FailedSaves(in_a_row=1, reason="503"), FailedSaves(in_a_row=2, reason="503")
    assert seen == [(old, None), (old, one), (old, two), (new, None), (new, one), (new, None)]


def test_a_local_checkpoint_loses_fewer_steps_and_is_no_save(tmp_path: Path) -> None:
    """What an attempt goes on from need not be where the job says, and the newest that is stays the newest."""
    records = [
        {"event": "started", "step": 0, "attempt": 0},
        *(step(number, 1.5) for number in range(1, 6)),
        {"event": "saved", "step": 5, "savedAt": 100.0, "durableSeconds": 0.5},
        *(step(number, 1.5) for number in range(6, 10)),
        {"event": "savedLocally", "step": 8},
    ]
    path = tmp_path / METRICS
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    tail = MetricsTail(tmp_path, 0)
    tail.read()
    newest = CheckpointStatus(step=5, saved_at=100.0, seconds=0.5)
    assert (tail.local_step, tail.committed, tail.checkpoint) == (8, 5, newest)

    with path.open("a") as file:
        file.write(json.dumps({"event": "restored", "step": 8, "savedAt": 200.0, "local": True, "attempt": 1}) + "\n")
    tail.read()
    assert (tail.first_step, tail.local_step, tail.committed, tail.checkpoint) == (8, None, 5, newest)
    assert tail.lost_seconds == 1.5
    assert tail.take_way_back() is None

    anew = MetricsTail(tmp_path, path.read_text().index('{"event": "restored"'))
    anew.read()
    assert (anew.first_step, anew.committed, anew.checkpoint) == (8, -1, None)


def test_a_run_that_starts_anew_has_no_checkpoint(tmp_path: Path) -> None:
    """Before its first save nothing could be restored."""
    (tmp_path / METRICS).write_text(json.dumps({"event": "started", "step": 0, "attempt": 0}) + "\n")
    tail = MetricsTail(tmp_path, 0)
    tail.read()

    assert (tail.checkpoint, tail.known) == (None, None)


def test_the_last_evaluation(tmp_path: Path) -> None:
    """The loss on held-out documents is known until the next one, and to the leader that comes after a save."""
    path = tmp_path / METRICS
    tail = MetricsTail(tmp_path, 0)
    seen = []
    for record in (
        step(1, 1.0),
        {"event": "evaluated", "step": 1, "heldOutLoss": 2.5, "sets": {"web": {"loss": 3.0}}},
        step(2, 1.0),
        {"event": "saved", "step": 2, "durableSeconds": 0.5},
        {"event": "evaluated", "step": 2, "heldOutLoss": None},
    ):
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        tail.read()
        seen.append(tail.held_out_loss)
    assert seen == [None, 2.5, 2.5, 2.5, None]
    assert MetricsTail(tmp_path, 0, tail.known).held_out_loss == 2.5


def test_what_an_attempt_has_gone_back_from_is_told_no_more(tmp_path: Path) -> None:
    """Its steps and its evaluation do not count; an evaluation of a step that stays does."""
    tail = MetricsTail(tmp_path, 0)

    def write(*records: Mapping[str, object]) -> None:
        with (tmp_path / METRICS).open("a") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
        tail.read()

    write(step(100, 1.0), {"event": "evaluated", "step": 100, "heldOutLoss": 2.5}, step(150, 1.0))
    write({"event": "restored", "step": 120, "attempt": 1})
    assert (tail.last["step"], tail.held_out_loss) == (120, 2.5)
    write(step(150, 1.0), {"event": "evaluated", "step": 150, "heldOutLoss": 1.5})
    write({"event": "restored", "step": 120, "attempt": 2})
    assert (tail.last["step"], tail.held_out_loss) == (120, None)


def test_a_line_that_a_kill_cut_short(tmp_path: Path) -> None:
    """The next trainer removes the half line; the records after it are read as they are."""
    path = tmp_path / METRICS
    path.write_text(json.dumps(step(1, 1.0)) + '\n{"step": 2, "loss": 0.123456')
    tail = MetricsTail(tmp_path, 0)
    tail.read()
    with path.open("r+") as file:
        file.truncate(len(json.dumps(step(1, 1.0))) + 1)
    tail.read()
    with path.open("a") as file:
        file.write(json.dumps(step(2, 1.0)) + "\n")
    tail.read()
    assert tail.last["step"] == 2


def test_a_successor_reads_on_from_the_newest_checkpoint(tmp_path: Path) -> None:
    """It knows what the lines before have said, and reads none of them again."""
    path = tmp_path / METRICS
    records = [
        {"event": "started", "step": 0, "attempt": 0, "of": 90},
        *(step(number, 1.5) for number in range(1, 8)),
        {"event": "saved", "step": 5, "savedAt": 200.0, "durableSeconds": 0.5},
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    tail = MetricsTail(tmp_path, 0)
    assert tail.known is None
    assert not tail.read()
    written = LeaderRecord(
        run="r", scratch="/sw", leader_pid=1, port=1, started_at=1.0, metrics=tail.known
    ).model_dump_json()
    known = LeaderRecord.model_validate_json(written).metrics
    assert known is not None
    assert known.offset == path.stat().st_size

    with path.open("r+") as file:  # what comes before is not looked at
        file.write("x" * 20)
    with path.open("a") as file:
        file.write(json.dumps({"event": "restored", "step": 5, "attempt": 1}) + "\n")
    successor = MetricsTail(tmp_path, 0, known)
    assert successor.last == step(7, 1.5)
    assert MetricsTail(tmp_path, 0, known).of == tail.of == 90
    successor.read()

    assert (successor.committed, successor.of, successor.lost_seconds) == (5, None, 3.0)
    assert successor.checkpoint == tail.checkpoint == CheckpointStatus(step=5, saved_at=200.0, seconds=0.5)


def test_lines_of_weeks_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two pieces the leader's loop serves others; a line that is longer than a piece is a whole line too."""
    monkeypatch.setattr(metrics_tail, "_PIECE_BYTES", 500)
    long = {"event": "evaluated", "step": 3, "note": "x" * 3000}
    records = [*(step(number, 1.0) for number in range(1, 200)), long, step(200, 1.0)]
    (tmp_path / METRICS).write_text("".join(json.dumps(record) + "\n" for record in records))
    tail, others = MetricsTail(tmp_path, 0), 0

    async def serve() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    async def both() -> None:
        serving = asyncio.create_task(serve())
        await tail.read_all()
        serving.cancel()

    assert tail.read()
    asyncio.run(both())
    assert tail.last == step(200, 1.0)
    assert others >= 5


def test_a_volume_that_fails_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While an attempt runs that is as if nothing new were there; before one it is told, and so is what stays."""
    path = tmp_path / METRICS
    path.write_text(json.dumps(step(1, 1.0)) + "\n")
    tail = MetricsTail(tmp_path, 0)
    tail.read()
    with path.open("a") as file:
        file.write(json.dumps(step(2, 1.0)) + "\n")
    for number in (errno.EIO, errno.ESTALE, errno.EACCES):
        with monkeypatch.context() as failing:
            failing.setattr(lines, "content_of", Mock(side_effect=OSError(number, "no")))
            with nullcontext() if number != errno.EACCES else pytest.raises(PermissionError):
                assert not tail.read()
            with pytest.raises(OSError, match="no"):
                asyncio.run(tail.read_all())
        assert tail.last == step(1, 1.0)

    tail.read()
    assert tail.last == step(2, 1.0)


def test_an_attempt_that_passes_over_a_damaged_checkpoint(tmp_path: Path) -> None:
    """It goes on from an earlier one, which is then the newest; going back to the same one again is no progress."""
    path = tmp_path / METRICS
    tail = MetricsTail(tmp_path, 0)
    seen = []
    for record in (
        {"event": "restored", "step": 40, "attempt": 0},
        {"event": "saved", "step": 50, "durableSeconds": 0.5},
        {"event": "saved", "step": 100, "durableSeconds": 0.5},
        {"event": "restored", "step": 50, "attempt": 1, "savedAt": 7.0},
        {"event": "saved", "step": 58, "durableSeconds": 0.5},
        {"event": "restored", "step": 58, "attempt": 2},
        {"event": "restored", "step": 50, "attempt": 3},
        {"event": "started", "step": 0, "attempt": 4},
    ):
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        tail.read()
        assert tail.checkpoint is not None
        seen.append((tail.committed, tail.checkpoint.step, tail.take_way_back()))

    assert seen == [
        (-1, 40, None),
        (50, 50, None),
        (100, 100, None),
        (50, 50, 50),
        (58, 58, None),
        (58, 58, None),
        (58, 50, None),
        (58, 50, None),
    ]


@pytest.mark.parametrize("first", [0, 99])
def test_a_program_that_reports_each_hundredth_step(tmp_path: Path, first: int) -> None:
    """Its seconds are those of all steps since the last report, and the time of one is what tells what is left."""
    path = tmp_path / METRICS
    began = {"event": "started", "step": first, "attempt": 0, "of": 10_000}
    path.write_text("".join(json.dumps(line) + "\n" for line in (began, step(100, 150.0), step(200, 100.0))))
    tail = MetricsTail(tmp_path, 0)
    tail.read()

    assert tail.recent_seconds[-1] == 1.0
    assert max(tail.recent_seconds) < 2.0, "of how many steps the first one tells is not known, if it begins there"
    with path.open("a") as file:
        file.write(
            json.dumps({"event": "restored", "step": 100, "attempt": 1}) + "\n" + json.dumps(step(150, 25.0)) + "\n"
        )
    tail.read()
    assert tail.recent_seconds[-1] == 0.5
    assert tail.lost_seconds == 100.0


def test_a_successor_knows_how_many_steps_a_report_is_about(tmp_path: Path) -> None:
    """It reads on in the middle of an attempt, whose steps it has not counted."""
    path = tmp_path / METRICS
    saved = {"event": "saved", "step": 200, "durableSeconds": 0.5}
    path.write_text("".join(json.dumps(line) + "\n" for line in (step(100, 100.0), step(200, 100.0), saved)))
    tail = MetricsTail(tmp_path, 0)
    tail.read()
    with path.open("a") as file:
        file.write(json.dumps(step(300, 50.0)) + "\n")
    successor = MetricsTail(tmp_path, 0, tail.known)
    successor.read()

    assert list(successor.recent_seconds) == [0.5]
