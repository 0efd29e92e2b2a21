"""How a run ended for its command: the exit code and the words, and what the launcher adds to summary.json.

Made by the leader, at the very end.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM
from typing import Any

from shardwise.job.contract import SUMMARY, Cause, ExitCode
from shardwise.job.files import replace_file
from shardwise.launcher.causes import Ending

LEFT = 128 + SIGTERM  # an agent whose host goes away ends with it; the run has no last word yet
_UNFINISHED = (None, "starting", "running", "failed")
_ENDED_WELL = ("complete", "stopped")


@dataclass(frozen=True, kw_only=True)
class LastWord:
    """`ending` is the bad end that is not followed by a restart, None for a good one."""

    code: int
    words: str
    ending: Ending | None = None

    def as_json(self) -> dict[str, Any]:
        """What the last event says."""
        return {"code": self.code, "words": self.words, **(_ending(self.ending) if self.ending else {})}


def saved(words: str) -> LastWord:
    """A stop that was asked for."""
    return LastWord(code=ExitCode.SAVED, words=words)


def failed(cause: Cause, host: int, words: str) -> LastWord:
    """A bad end that is about a host, not a trainer."""
    ending = Ending(cause=cause, rank=host, exit=None, words=words)
    return LastWord(code=ending.exit_code, words=words, ending=ending)


def given_back(words: str) -> LastWord:
    """The end of a run in a cluster that has waited for a host in vain: nothing has failed, and it goes on later."""
    return LastWord(code=ExitCode.HOSTS_MISSING, words=words)


def read_summary(directory: Path) -> dict[str, Any]:
    """The summary as it stands, empty before the first."""
    try:
        read: dict[str, Any] = json.loads((directory / SUMMARY).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # the trainer writes it anew, or there is nothing to keep
        return {}
    return read


def complete_summary(
    directory: Path, before: Mapping[str, Any], name: str, word: LastWord, added: Mapping[str, Any]
) -> None:
    """Put the last word into the summary, where the trainers could not, and add what only the launcher knows.

    `before` is the summary of when the command started: a start that came to nothing does not take away what an
    earlier one reached.
    """
    now = read_summary(directory) or {"name": name}
    if word.code == ExitCode.SAVED and now.get("status") in (None, "starting"):
        now = dict(before) if before.get("status") in _ENDED_WELL else {**now, "status": "stopped"}
    if word.code == ExitCode.HOSTS_MISSING and now.get("status") in _UNFINISHED:
        now |= {"status": "stopped"}
    if word.ending and now.get("status") in _UNFINISHED:
        now |= {"status": "failed", "error": now.get("error") or word.words, **_ending(word.ending)}
    elif word.code == ExitCode.FAILURE and not word.ending:
        now |= {"status": "failed", "error": word.words}
    replace_file(directory / SUMMARY, json.dumps({**now, **added}, indent=2) + "\n", durable=True)


def _ending(ending: Ending) -> dict[str, Any]:
    return {
        "cause": ending.cause,
        "rank": ending.rank,
        "exit": ending.exit.words if ending.exit else None,
        "logTail": ending.exit.log_tail if ending.exit else "",
    }
