"""The orders of an attempt: what the command line asked of the start is obeyed once."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.launcher.leader.test_state import state_in

from shardwise.launcher.leader.orders import orders_of
from shardwise.protocol.contract import METRICS


@pytest.mark.parametrize("saved", [False, True])
def test_a_start_that_was_asked_for_is_made_until_the_first_save(tmp_path: Path, *, saved: bool) -> None:
    """Also where that save was committed so late that the record of the run does not know it yet."""
    asked: dict[str, Any] = {"fork": True, "step": 50}
    state = state_in(tmp_path, scratch=tmp_path, address="127.0.0.1", job_file=tmp_path / "job.yaml", **asked)
    state.members = Mock(addresses=Mock(return_value=["127.0.0.1"]))
    lines = [{"event": "restored", "step": 50, "attempt": 0}, {"event": "saved", "step": 60, "durableSeconds": 1.0}]
    (tmp_path / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines[: 2 if saved else 1]))
    state.metrics.read()

    orders = orders_of(1, state)(0)

    assert state.record.fresh
    assert (orders.fork, orders.step, orders.committed) == ((False, None, 60) if saved else (True, 50, None))
