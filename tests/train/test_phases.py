"""The progress record: where a process is, and that it gets on."""

import itertools
from pathlib import Path

import pytest

from shardwise.protocol.contract import Phase, read_progress
from shardwise.train import phases


def test_what_a_phase_is_at_is_told_until_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record has the words, which are news like a beat, and none once the phase is over."""
    path, clock = tmp_path / "progress.json", itertools.count(100.0, 2.0)
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    mine = phases.Phases(path, attempt=0, rank=0, pid=1)
    with mine.entered(Phase.DATA):
        mine.say("tokenising web: 1 of 2 MB")
        during = read_progress(path)
    after = read_progress(path)

    assert during is not None
    assert after is not None
    assert (during.doing, after.doing) == ("tokenising web: 1 of 2 MB", "")


def test_a_beat_shows_that_a_phase_gets_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one changes the record, but for those within a second of the last: there may be thousands."""
    path, clock = tmp_path / "progress.json", itertools.count(100.0, 0.25)
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    mine = phases.Phases(path, attempt=0, rank=0, pid=1)
    seen = []
    with mine.entered(Phase.SAVE):
        for _ in range(12):
            mine.beat()
            record = read_progress(path)
            assert record is not None
            seen.append((record.phase, record.monotonic_seconds))
    assert {phase for phase, _ in seen} == {Phase.SAVE}
    times = sorted({seconds for _, seconds in seen})
    assert len(times) == 4
    assert all(after - before >= 1.0 for before, after in itertools.pairwise(times))


def test_steps_that_are_complete_at_once(tmp_path: Path) -> None:
    """A program may report only some: the record says of how many the seconds are, from the step it goes on after."""
    mine = phases.Phases(tmp_path / "progress.json", attempt=0, rank=0, pid=1)
    mine.step, seen = 99, []
    for step, seconds in ((100, 0.5), (120, 1.0), (121, 0.25)):
        mine.completed(step, seconds)
        record = read_progress(tmp_path / "progress.json")
        assert record is not None
        seen.append((record.step_seconds, record.steps, record.each_seconds))

    assert seen == [(0.5, 1, 0.5), (1.0, 20, 0.05), (0.25, 1, 0.25)]
