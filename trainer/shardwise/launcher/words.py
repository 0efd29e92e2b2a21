"""The launcher's events in words, for the person who started the run.

Called by the command as it follows `launcher.jsonl`. An event that needs no word has none.
"""

from collections.abc import Mapping
from typing import Any

from shardwise.job.contract import Cause, ExitCode

_PLAIN = {
    "stalled": "stalled: {words}",
    "goesOn": "the stall is over",
    "slow": "host {host} is slow: {words}",
    "stuck": "host {host} can start no trainer: {words}",
    "stacks": "the stacks of all ranks are in {file}",
    "epochFailed": "Ray did not start ({reason}); trying again",
    "notStarted": "the trainers could not be started ({reason}); trying again",
}


def said(event: Mapping[str, Any]) -> str | None:
    """What a person is told of an event."""
    text: str | None = None
    match event["event"]:
        case "restarting":
            wait = f" in {event['waitSeconds']:g} s" if event["waitSeconds"] else ""
            text = f"{event['words']} ({event['cause']}); starting again{wait}"
        case "running" if event["sinceEndSeconds"] is not None:
            text = f"recovered: training goes on from step {event['fromStep']}, {event['sinceEndSeconds']:.1f} s later"
        case "done":
            text = _last(event)
        case name if name in _PLAIN:
            text = _PLAIN[name].format_map(event)
    return text


def _last(event: Mapping[str, Any]) -> str | None:
    code = event["code"]
    if code == ExitCode.OK:
        return None
    if code == ExitCode.SAVED:
        return f"{event['words']}; the same command goes on"
    if code == ExitCode.HOSTS_MISSING:
        return f"{event['words']}; the others are given back until all can be had"
    if event.get("cause") == Cause.BAD_INPUT and event.get("rank") == 0:
        return None  # its own words have been shown, and say what to do
    restarts = ", ".join(f"{cause} {count}" for cause, count in event["used"].items()) or "none"
    lines = [f"the run has failed: {event['words']} (restarts: {restarts})"]
    if event.get("rank") and event.get("logTail"):
        lines += [f"the end of rank {event['rank']}'s log:", event["logTail"]]
    return "\n".join([*lines, "once the cause is gone, the same command goes on from the last checkpoint"])
