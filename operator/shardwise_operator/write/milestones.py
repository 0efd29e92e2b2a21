"""The life of a job as Events: what `kubectl describe` shows of placing, starting, saving and restarting.

They follow from a status that was written and the one before it: so a start that took a moment is one event. The events
of what a policy decides (a loss, a suspend, the end) are in its plan.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from shardwise.protocol import eta
from shardwise_operator import reasons
from shardwise_operator.decide.plan import Event
from shardwise_operator.observe.state import Phase
from shardwise_operator.reasons import FALSE, TRUE, Lost
from shardwise_operator.runtime.kinds import Object, condition_of, seconds_of

_FAULTS = (reasons.UNSCHEDULABLE, reasons.IMAGE, reasons.CONTAINER, reasons.QUOTA, reasons.REFUSED)
_WAITS = (reasons.WAITING_FOR_SLICE, *_FAULTS)


def milestones(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Event]:
    """Yield an event for each milestone between two statuses."""
    yield from _queue(before, after)
    yield from _waits(before, after)
    yield from _progress(before, after)
    yield from _restarted(before, after)
    saved = after.get("checkpoint", {})
    if saved.get("step", -1) > before.get("checkpoint", {}).get("step", -1):
        seconds = f" in {saved['seconds']} s" if "seconds" in saved else ""
        yield Event(reasons.SAVED, f"a checkpoint of step {saved['step']}{seconds}")
    failed = after.get("failedSaves", {})
    if failed.get("inARow", 0) > before.get("failedSaves", {}).get("inARow", 0):
        yield Event(reasons.SAVE_FAILED, _save_failed(failed, saved))


def _save_failed(failed: Mapping[str, Any], saved: Mapping[str, Any]) -> str:
    """Return why the last save failed, and how much work depends on the next one."""
    count = failed["inARow"]
    many = f"{count} saves in a row have failed, the last one" if count > 1 else "a save has failed"
    newest = "there is no checkpoint yet"
    if saved:
        newest = f"the newest checkpoint is that of step {saved['step']}"
        if "time" in saved:
            age = max(0.0, seconds_of(failed["time"]) - seconds_of(saved["time"]))
            newest += f", {eta.words(age)} old"
    return f"{many}: {failed['reason']}; {newest}"


def _waits(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Event]:
    known, latest = _scheduled(before), _scheduled(after)
    reason = latest.get("reason", "")
    if reason != known.get("reason") and reason in _WAITS:
        yield Event(reason, latest.get("message", ""))


def _queue(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Event]:
    known, latest = (condition_of({"status": status}, reasons.ADMITTED) for status in (before, after))
    if latest.get("status") == TRUE != known.get("status"):
        yield Event(reasons.ADMITTED, latest["message"])
    elif latest.get("status") == FALSE and latest.get("reason") == reasons.QUEUED and not known:
        yield Event(reasons.QUEUED, latest["message"])


def _progress(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the furthest milestone that was reached: those before it are implied."""
    was, phase = before.get("phase"), after.get("phase")
    progress, hosts = after.get("progress", {}), after.get("hosts", {}).get("of", 0)
    if phase == Phase.RUNNING and was != phase:
        step = f"step {progress['step']} of {progress['of']}" if {"step", "of"} <= progress.keys() else "the first step"
        yield Event(reasons.RECOVERED if was == Phase.RECOVERING else reasons.RUNNING, f"training: {step}")
    elif phase == Phase.STARTING and was != phase:
        yield Event(reasons.STARTED, f"all {hosts} hosts run")
    elif _scheduled(after).get("status") == TRUE != _scheduled(before).get("status"):
        yield Event(reasons.PLACED, f"each of the {hosts} hosts has a node")


def _restarted(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Event]:
    """Yield restarts other than by lost pods, which have events already; the run counts those as lost hosts.

    While the run recovers, host 0 says why, and what is left of the budget.
    """
    said = after.get("message", "") if after.get("phase") == Phase.RECOVERING else ""
    for cause, count in after.get("restarts", {}).items():
        more, lost = (
            after.get(name, {}).get(cause, 0) - before.get(name, {}).get(cause, 0) for name in ("restarts", "losses")
        )
        if more > lost and cause != Lost.HOST_LOST:
            why = f"; {said}" if said else ""
            yield Event(reasons.RESTARTED, f"the trainers ended and start again: {cause} ({count} so far){why}")


def _scheduled(status: Mapping[str, Any]) -> Object:
    return condition_of({"status": status}, reasons.SCHEDULED)
