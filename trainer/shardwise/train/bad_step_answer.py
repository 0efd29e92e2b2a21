"""What a run does about a step that must not be trained on: it goes on, ends, or goes back and leaves the batch out."""

from collections.abc import Mapping
from typing import Any

from shardwise.protocol.errors import NonFiniteError
from shardwise.train.bad_steps import Verdict
from shardwise.train.peers import Peers
from shardwise.train.report import Report
from shardwise.train.run_directory import RunDirectory


def answer(verdict: Verdict, event: Mapping[str, Any], report: Report, directory: RunDirectory, peers: Peers) -> None:
    """Report the step; raise NonFiniteError unless it is skipped, which its program has done already."""
    report.event(event)
    if verdict.action == "skip":
        return
    reason, batch = event["reason"], event["batch"]
    if verdict.action == "rollBack":
        if peers.writes:
            directory.leave_out(batch)
        # Wait for rank 0: the first process that exits ends all others, and rank 0 must have written by then.
        peers.exchange("leave out", "")
        raise NonFiniteError(f"{reason}. The run goes back to its newest checkpoint, and leaves out batch {batch}")
    raise NonFiniteError(
        f"{reason}. Nothing of this step was saved: lower optimizer.learningRate, lengthen the warm-up, "
        "look at the data, or set training.badSteps, and run again"
    )
