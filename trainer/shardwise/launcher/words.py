"""The launcher's events in words, for the person who started the run.

Called by the command as it follows `launcher.jsonl`. An event that needs no word has none.
"""

from collections.abc import Mapping
from typing import Any

from shardwise.job.contract import Cause, ExitCode


def said(event: Mapping[str, Any]) -> str | None:
    """What a person is told of an event."""
    text: str | None = None
    match event["event"]:
        case "restarting":
            wait = f" in {event['waitSeconds']:g} s" if event["waitSeconds"] else ""
            text = f"{event['words']} ({event['cause']}); starting again{wait}"
        case "running" if event["sinceEndSeconds"] is not None:
            text = f"recovered: training goes on from step {event['fromStep']}, {event['sinceEndSeconds']:.1f} s later"
        case "stalled":
            text = f"stalled: {event['words']}"
        case "goesOn":
            text = "the stall is over"
        case "slow":
            text = f"host {event['host']} is slow: {event['words']}"
        case "stacks":
            text = f"the stacks of all ranks are in {event['file']}"
        case "epochFailed":
            text = f"Ray did not start ({event['reason']}); trying again"
        case "notStarted":
            text = f"the trainers could not be started ({event['reason']}); trying again"
        case "done":
            text = _last(event)
    return text


def _last(event: Mapping[str, Any]) -> str | None:
    code = event["code"]
    if code == ExitCode.OK:
        return None
    if code == ExitCode.SAVED:
        return f"{event['words']}; the same command goes on"
    if event.get("cause") == Cause.BAD_INPUT and event.get("rank") == 0:
        return None  # its own words have been shown, and say what to do
    restarts = ", ".join(f"{cause} {count}" for cause, count in event["used"].items()) or "none"
    lines = [f"the run has failed: {event['words']} (restarts: {restarts})"]
    if event.get("rank") and event.get("logTail"):
        lines += [f"the end of rank {event['rank']}'s log:", event["logTail"]]
    return "\n".join([*lines, "once the cause is gone, the same command goes on from the last checkpoint"])
