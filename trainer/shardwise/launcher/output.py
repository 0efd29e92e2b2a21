"""What is shown of a run: a host's log, the launcher's events in words, and a line of how it stands.

Called by `local.py`, and in a pod by `pod.py`, again and again. It only reads files, and never shows the same line
twice. What went wrong goes to standard error: the error that the trainer ends with, and why the run has failed.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from shardwise.job.contract import LOGS, ExitCode, log_path
from shardwise.launcher.lines import GrowingFile, size_of
from shardwise.launcher.record import EVENTS
from shardwise.launcher.words import said

# The library that joins simulated devices of several processes tells of each connection, and not in whole lines.
_NOISE = ("[Gloo]", "connected peer ranks")
_ERROR = "error: "  # begins the last words of a trainer
_WELL = (ExitCode.OK, ExitCode.SAVED)


class Output:
    """Shows what is added from now on."""

    def __init__(self, directory: Path, console: Console, errors: Console, *, host: int) -> None:
        """Nothing is shown of what was there before; the log is that of the host's trainer."""
        events = directory / LOGS / EVENTS
        self._directory, self._console, self._errors = directory, console, errors
        self._host = host
        self._events = GrowingFile(events, size_of(events))
        self._log: GrowingFile | None = None
        self._failing = False

    def show(self) -> None:
        """Show what is new."""
        for line in self._events.lines():
            event = json.loads(line)
            self._show_log()
            if event["event"] == "incarnation":
                self._end_log()
                self._log = GrowingFile(log_path(self._directory, event["incarnation"], self._host))
            if words := said(event):
                self._print(words, self._errors if event.get("code", ExitCode.OK) not in _WELL else self._console)
        self._show_log()

    def end(self) -> None:
        """Show the rest."""
        self.show()
        self._end_log()

    def _show_log(self) -> None:
        for line in self._log.lines() if self._log else []:
            self._print_log(line)

    def _end_log(self) -> None:
        if self._log and (rest := self._log.rest()):
            self._print_log(rest)
        self._log, self._failing = None, False

    def _print_log(self, line: str) -> None:
        if any(words in line for words in _NOISE):
            return
        self._failing = self._failing or line.startswith(_ERROR)
        self._print(line, self._errors if self._failing else self._console)

    def _print(self, line: str, console: Console) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def status_line(status: Mapping[str, Any]) -> Text:
    """How a run stands, in one line."""
    progress = status["progress"]
    parts = [status["phase"] + (f" ({status['reason']})" if status["reason"] else "")]
    if progress.get("step") is not None:
        parts.append(f"step {progress['step']:,} of {progress['of']:,}")
    if progress.get("loss") is not None:
        parts.append(f"loss {progress['loss']:.4f}")
    if progress.get("tokensPerSecond"):
        parts.append(f"{progress['tokensPerSecond']:,.0f} tokens/s")
    if status["slowestHost"] is not None:
        parts.append(f"host {status['slowestHost']} is slow")
    return Text("  ".join(parts), no_wrap=True, overflow="ellipsis")
