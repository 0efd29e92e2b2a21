"""Files that a program may have written, under names that a run has for its own."""

import json
from typing import Any

import pytest

from shardwise.protocol.shared_files import line_of_run, summary_of_run


@pytest.mark.parametrize(
    "line",
    [
        [],
        {"epoch": 1},
        {"step": "4/30", "loss": 1.0},
        {"step": True},
        {"step": -1},
        {"step": 2**40},
        {"step": 1, "event": 7},
    ],
)
def test_a_line_of_something_else(line: object) -> None:
    """It is no step of the run, and no event."""
    assert line_of_run(line) is None


def test_numbers_of_a_step() -> None:
    """What is no number is left out; null stays, which a run writes for what is none."""
    line = json.loads(
        '{"step": 3, "loss": NaN, "huge": 1' + "0" * 400 + ', "text": "x", "ok": true, "gone": null, "mfu": 0.5}'
    )
    assert line_of_run(line) == {"step": 3, "gone": None, "mfu": 0.5}
    assert line_of_run({"step": 3, "event": "saved", "digest": "ab"}) == {"step": 3, "event": "saved", "digest": "ab"}


def test_names_are_kept_once() -> None:
    """Half a million steps of a run have one text for each name: of each line's own they would be half the memory."""
    first, second = (line_of_run(json.loads(f'{{"step": {step}, "loss": 1.5}}')) for step in (1, 2))
    assert first is not None
    assert second is not None
    assert all(one is other for one, other in zip(first, second, strict=True))


def test_fields_of_an_event() -> None:
    """Each is there if it is of its kind; what a program has added stays."""
    wrong: dict[str, Any] = {
        "attempt": "first",
        "devices": [0, 1],
        "savedAt": "2026-11-29T06:00:00Z",
        "time": "06:00",
        "durableSeconds": "2.5",
        "evaluatedAt": None,
        "digest": 7,
        "heldOutLoss": "2.5",
        "sets": {"books": 2.5},
        "program": "my.py",
        "mesh": [2, 4],
        "memory": {"gpu": 80},
    }
    event = {"step": 3, "event": "saved", "mine": [1]}
    assert line_of_run({**event, **wrong}) == event
    right = {"savedAt": 1.5, "devices": 8, "sets": {"books": {"loss": None, "accuracy": 0.5, "tokens": 3}}}
    assert line_of_run({**event, **right}) == {**event, **right}


def test_fields_of_a_summary() -> None:
    """Each is there if it is of its kind; what a program has added stays."""
    wrong: dict[str, Any] = {
        "name": 5,
        "status": 3,
        "steps": None,
        "of": "ten",
        "restarts": 3,
        "phases": ["a"],
        "goodput": 0.5,
        "entropy": 1.25,
        "error": ["x"],
        "digest": 7,
    }
    assert summary_of_run({**wrong, "mine": [1]}) == {"mine": [1]}
    right = {"name": "a", "status": "complete", "steps": 3, "restarts": {"hang": 1}, "goodput": {"step": 1.5}}
    assert summary_of_run(right) == right
