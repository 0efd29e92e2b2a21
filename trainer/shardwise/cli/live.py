"""The leader of a live run, found through the run directory: its status, and requests to it."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from shardwise.launcher.agent.client import NoLeaderError, read_status, request
from shardwise.protocol.contract import LOGS, STATUS
from shardwise.protocol.run_status import RunStatus


def live_status(directory: Path) -> RunStatus | None:
    """Return the leader's status of the run; None if no leader answers."""
    try:
        return read_status(*_leader(directory))
    except NoLeaderError:
        return None


def ask(directory: Path, method: str, path: str) -> dict[str, Any]:
    """Return the leader's answer; NoLeaderError if there is none."""
    return request(*_leader(directory), method, path)


def _leader(directory: Path) -> tuple[str, str]:
    """Return where the leader listens, "ip:port", and the token that it asks for; NoLeaderError if there is none."""
    try:
        where = json.loads((directory / LOGS / STATUS).read_text(encoding="utf-8"))
        token = Path(where["tokenFile"]).read_text(encoding="utf-8")
    except OSError as error:  # no launcher is at work, or it is on another machine, or another user's
        raise NoLeaderError(f"{directory}: its launcher cannot be asked from here: {error}") from error
    return urlsplit(where["url"]).netloc, token
