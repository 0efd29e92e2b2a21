"""shardwise.page.status: one word for how a run stands."""

from typing import Any

import pytest

from shardwise.page.status import status_word
from shardwise.protocol.run_status import RunStatus


def leader(phase: str) -> RunStatus:
    """Return the status of a leader."""
    return RunStatus(phase=phase, name="x", ray_session=1, hosts=())


@pytest.mark.parametrize(
    ("summary", "alive", "phase", "word"),
    [
        ({}, False, None, "ready"),
        ({}, True, None, "starting"),
        ({"status": "running"}, False, None, "dead"),
        ({"status": "running"}, True, None, "running"),
        ({"status": "running"}, True, "recovering", "recovering"),
        ({"status": "running"}, True, "starting", "running"),
        ({"status": "stopped"}, True, "starting", "starting"),
        ({"status": "stopped"}, True, "waiting", "starting"),
        ({"status": "failed"}, True, "running", "running"),
        ({}, True, "stalled", "running"),
        ({"status": "complete"}, True, "done", "complete"),
        ({"status": "nonfinite"}, False, None, "nonfinite"),
    ],
)
def test_word(summary: dict[str, Any], *, alive: bool, phase: str | None, word: str) -> None:
    """What the leader says goes before what the summary says, and a run that no process holds never runs."""
    assert status_word(summary, alive=alive, live=leader(phase) if phase else None) == word
