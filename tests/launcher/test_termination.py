"""What an agent leaves of its run: the end of its metrics."""

import json
from pathlib import Path

from shardwise.launcher.termination import termination_record
from shardwise.protocol.contract import METRICS


def test_the_end_of_the_metrics(tmp_path: Path) -> None:
    """The last step, the last save and the last evaluation, each wherever it stands; None before there is one."""
    record = termination_record(tmp_path, 0, None, "told to go")
    assert (record.step, record.loss, record.held_out_loss, record.checkpoint_step) == (0, None, None, None)

    lines = (
        {"event": "evaluated", "step": 1, "heldOutLoss": 9.0},
        {"event": "evaluated", "step": 2, "heldOutLoss": 2.5},
        {"event": "saved", "step": 2},
        {"step": 3, "loss": 1.5},
        {"event": "restored", "step": 2},
    )
    (tmp_path / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    record = termination_record(tmp_path, 0, None, "told to go")
    assert (record.step, record.loss, record.held_out_loss, record.checkpoint_step) == (3, "1.5", "2.5", 2)
