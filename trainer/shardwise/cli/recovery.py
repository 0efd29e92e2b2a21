"""What a live run recovers from, as its events tell."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from shardwise.page.events import launcher_events
from shardwise.protocol.eta import clock
from shardwise.protocol.run_status import RunStatus


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """Why the processes are started again: since when, in seconds since the epoch, and by which cause, if it is known.

    Nothing is known of what ended while no leader was there to note it.
    """

    since: float | None
    cause: str | None
    message: str

    @classmethod
    def of(cls, directory: Path, live: RunStatus) -> Self:
        """Return the recovery of a run whose leader says that it recovers."""
        newest: Mapping[str, Any] = {}
        for event in launcher_events(directory):
            if event["event"] in ("restarting", "running"):
                newest = event if event["event"] == "restarting" else {}
        return cls(since=newest.get("time"), cause=newest.get("cause"), message=newest.get("message") or live.reason)

    def words(self, now: float) -> str:
        """Return it for people; `now` is in seconds since the epoch."""
        lasted = "" if self.since is None else f"for {clock(max(0.0, now - self.since))}"
        why = self.message + (f" ({self.cause})" if self.cause else "")
        return ": ".join(part for part in (lasted, why) if part) or "all processes are started again"

    def as_json(self) -> dict[str, Any]:
        """Return what `status --json` prints."""
        return asdict(self)
