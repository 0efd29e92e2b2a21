"""The life of a job as Events: what `kubectl describe` shows of placing, starting, saving and restarting.

Told when the status that says it is written, from that and the one before it: so a start that took a moment is one
event. What a policy decides (a loss, a suspend, the end) it tells itself.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from shardwise_operator.plan import Event
from shardwise_operator.state import Phase
from shardwise_operator.words import (
    CONTAINER,
    IMAGE,
    PLACED,
    QUOTA,
    RECOVERED,
    REFUSED,
    RESTARTED,
    RUNNING,
    SAVED,
    SCHEDULED,
    SLICE_WAITS,
    STARTED,
    TRUE,
    UNSCHEDULABLE,
    Lost,
)

_WAITS = {
    SLICE_WAITS: "Normal",
    UNSCHEDULABLE: "Warning",
    IMAGE: "Warning",
    CONTAINER: "Warning",
    QUOTA: "Warning",
    REFUSED: "Warning",
}


def milestones(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Event]:
    """What a status says that the one before it did not."""
    yield from _waits(before, after)
    yield from _gets_on(before, after)
    yield from _restarted(before, after)
    saved = after.get("checkpoint", {})
    if saved.get("step", -1) > before.get("checkpoint", {}).get("step", -1):
        seconds = f" in {saved['seconds']} s" if "seconds" in saved else ""
        yield Event("Normal", SAVED, f"a checkpoint of step {saved['step']}{seconds}")


def _waits(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Event]:
    known, said = _scheduled(before), _scheduled(after)
    reason = said.get("reason", "")
    if reason != known.get("reason") and reason in _WAITS:
        yield Event(_WAITS[reason], reason, said.get("message", ""))


def _gets_on(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Event]:
    """The furthest thing that was reached: what came before it is implied."""
    was, phase = before.get("phase"), after.get("phase")
    progress, hosts = after.get("progress", {}), after.get("hosts", {}).get("of", 0)
    if phase == Phase.RUNNING and was != phase:
        step = f"step {progress['step']} of {progress['of']}" if {"step", "of"} <= progress.keys() else "the first step"
        yield Event("Normal", RECOVERED if was == Phase.RECOVERING else RUNNING, f"training: {step}")
    elif phase == Phase.STARTING and was != phase:
        yield Event("Normal", STARTED, f"all {hosts} hosts run")
    elif _scheduled(after).get("status") == TRUE != _scheduled(before).get("status"):
        yield Event("Normal", PLACED, f"each of the {hosts} hosts has a node")


def _restarted(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Event]:
    """Without the losses of pods, which are told already; to the run's own count they are lost hosts."""
    for cause, count in after.get("restarts", {}).items():
        more, lost = (
            after.get(name, {}).get(cause, 0) - before.get(name, {}).get(cause, 0) for name in ("restarts", "losses")
        )
        if more > lost and cause != Lost.HOST_LOST:
            yield Event("Warning", RESTARTED, f"the trainers ended and start again: {cause} ({count} so far)")


def _scheduled(status: Mapping[str, Any]) -> Mapping[str, Any]:
    conditions = status.get("conditions", [])
    found: Mapping[str, Any] = next((each for each in conditions if each["type"] == SCHEDULED), {})
    return found
