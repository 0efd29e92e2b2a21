"""What is shown of a run: a host's log, the launcher's events as text, and the status as a line.

It only reads files, and never shows the same line twice. What went wrong goes to standard error: the error that the
trainer ends with, and why the run has failed.
"""

import asyncio
import json
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from shardwise.launcher.agent.client import NoLeaderError, read_status
from shardwise.launcher.system.lines import GrowingFile, GrowingLog, size_of
from shardwise.protocol.contract import EVENTS, LOGS, Cause, ExitCode, log_path, trainer_logs
from shardwise.protocol.leader_record import RunResult
from shardwise.protocol.run_status import RunStatus
from shardwise.protocol.storage import passing_over

# The library that joins simulated devices of several processes logs each connection, and not in whole lines.
_NOISE = ("[Gloo]", "connected peer ranks")
_STATUS_SECONDS = 0.5
_ERROR = "error: "  # begins the error that a trainer ends with
_WELL = (ExitCode.OK, ExitCode.SAVED)
_PLAIN = {
    "stalled": "stalled: {message}",
    "goesOn": "the stall is over",
    "slow": "host {host} is slow: {message}",
    "stuck": "host {host} can start no trainer: {message}",
    "stacks": "the stacks of all ranks are in {file}",
    "sessionFailed": "Ray did not start ({reason}); trying again",
    "notStarted": "the trainers could not be started ({reason}); trying again",
}


class Output:
    """Shows what is added from now on."""

    def __init__(
        self,
        directory: Path,
        console: Console,
        errors: Console,
        *,
        host: int,
        sees_events: bool = True,
        in_pod: bool = False,
    ) -> None:
        """Show nothing of what was there before; the log is that of the host's trainer.

        Without `sees_events` this host's folder has none, and each new log is found by its name. `in_pod` is for
        readers who have started the run by a job in a cluster, and not by a command.
        """
        events = directory / LOGS / EVENTS
        self._directory, self._console, self._errors = directory, console, errors
        self._host, self._sees_events, self._in_pod = host, sees_events, in_pod
        self._path = None if sees_events else self._newest_log()
        self._events = GrowingFile(events, size_of(events))
        self._log: GrowingLog | None = None
        self._failing = False

    def show(self) -> None:
        """Show what is new."""
        for event in _new_events(self._events):
            self._show_log()
            if event["event"] == "attempt":
                self._end_log()
                self._log = GrowingLog(log_path(self._directory, event["attempt"], self._host))
            if text := describe(event, in_pod=self._in_pod):
                self._print(text, self._errors if event.get("code", ExitCode.OK) not in _WELL else self._console)
        if not self._sees_events and (newest := self._newest_log()) != self._path:
            self._show_log()
            self._end_log()
            self._path, self._log = newest, GrowingLog(newest) if newest else None
        self._show_log()

    def end(self) -> None:
        """Show the rest."""
        self.show()
        self._end_log()

    def _newest_log(self) -> Path | None:
        return max(trainer_logs(self._directory, self._host), default=(-1, self._host, None))[2]

    def _show_log(self) -> None:
        for line in _new_lines(self._log) if self._log else []:
            self._print_log(line)

    def _end_log(self) -> None:
        if self._log and (rest := self._log.rest()):
            self._print_log(rest)
        self._log, self._failing = None, False

    def _print_log(self, line: str) -> None:
        if any(noise in line for noise in _NOISE):
            return
        self._failing = self._failing or line.startswith(_ERROR)
        self._print(line, self._errors if self._failing else self._console)

    def _print(self, line: str, console: Console) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _new_lines(file: GrowingFile) -> list[str]:
    """Return what was added; nothing while the volume fails, for it is looked for again in a moment."""
    with passing_over():
        return file.lines()
    return []


def _new_events(file: GrowingFile) -> list[dict[str, Any]]:
    """Return the events that were added, without one that a loss of power has cut short and joined to the next."""
    events = list[dict[str, Any]]()
    for line in _new_lines(file):
        with suppress(json.JSONDecodeError):
            events.append(json.loads(line))
    return events


def status_line(status: RunStatus) -> Text:
    """Return the status of a run in one line."""
    progress = status.progress
    parts = [status.phase + (f" ({status.reason})" if status.reason else "")]
    if progress.step is not None:
        # A program may not say how many steps it has.
        parts.append(f"step {progress.step:,}" + (f" of {progress.of:,}" if progress.of else ""))
    if isinstance(progress.loss, float):
        parts.append(f"loss {progress.loss:.4f}")
    if isinstance(progress.tokens_per_second, float):
        parts.append(f"{progress.tokens_per_second:,.0f} tokens/s")
    if status.slowest_host is not None:
        parts.append(f"host {status.slowest_host} is slow")
    return Text("  ".join(parts), no_wrap=True, overflow="ellipsis")


def describe(event: Mapping[str, Any], *, in_pod: bool = False) -> str | None:
    """Return an event as text for people, `in_pod` for those of a job; None for one that is not shown."""
    text: str | None = None
    match event["event"]:
        case "restarting":
            wait = f" in {event['waitSeconds']:g} s" if event["waitSeconds"] else ""
            text = f"{event['message']} ({event['cause']}); starting again{wait}"
        case "running" if event["sinceEndSeconds"] is not None:
            # Step 0 is all that is known of a program that reports none.
            began = (
                f"training goes on from step {event['fromStep']}" if event["fromStep"] else "all processes run again"
            )
            text = f"recovered: {began}, {event['sinceEndSeconds']:.1f} s later"
        case "done":
            text = _end(RunResult.model_validate(event), event["used"], in_pod=in_pod)
        case name if name in _PLAIN:
            text = _PLAIN[name].format_map(event)
    return text


def _end(result: RunResult, used: Mapping[str, int], *, in_pod: bool) -> str | None:
    if result.code == ExitCode.OK:
        return None
    if result.code == ExitCode.SAVED:
        return result.message if in_pod else f"{result.message}; the same command goes on"
    if result.code == ExitCode.HOSTS_MISSING:
        return f"{result.message}; the others are given back until all can be had"
    # The trainer's own error has been shown, and says what to do; one of a program, which python ends so, may not.
    if result.cause == Cause.BAD_INPUT and result.rank == 0 and result.code != ExitCode.USAGE:
        return None
    restarts = ", ".join(f"{cause} {count}" for cause, count in used.items()) or "none"
    lines = [f"the run has failed: {result.message} (restarts: {restarts})"]
    if result.rank and result.log_tail:
        lines += [f"the end of rank {result.rank}'s log:", result.log_tail]
    # Nothing is done for a job that has failed: the same file applied once more would change nothing.
    again = "delete the job and apply it again: it" if in_pod else "the same command"
    return "\n".join([*lines, f"once the cause is gone, {again} goes on from the last checkpoint, if one is there"])


async def show_status(console: Console, leader: str, token: str) -> None:
    """Show the status of the run as a line, on a terminal, until cancelled; `leader` is where it is asked."""
    if not console.is_terminal:
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while True:
            with suppress(NoLeaderError):
                live.update(status_line(await asyncio.to_thread(read_status, leader, token)))
            await asyncio.sleep(_STATUS_SECONDS)


def tell_unshown(errors: Console, showing: "asyncio.Task[None]") -> None:
    """Say that the line is gone because of an error, which is a fault of ours: the run itself goes on."""
    if not showing.cancelled() and (error := showing.exception()):
        words = "".join(traceback.format_exception(error))
        errors.print(
            f"the line with the status has failed, and the run goes on without it; please report this:\n{words}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
