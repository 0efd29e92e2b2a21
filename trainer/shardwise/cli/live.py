"""The leader of a live run, found through the run directory: its status, and requests to it."""

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from shardwise.cli.run_directory import Fetched
from shardwise.launcher.agent.client import NoLeaderError, read_status, request
from shardwise.protocol.contract import LOGS, STATUS, STATUS_TOKEN
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
    """Return where the leader listens, "ip:port", and the token that it asks for; NoLeaderError if there is none.

    Whoever may write to the directory could name any address, and any file of this person's to be sent there.
    """
    if fetched := Fetched.read(directory):  # what is fetched belongs to this person, whoever has written it
        raise NoLeaderError(f"{fetched.url}: the launcher of a run in a bucket cannot be asked from here")
    try:
        text, owner = _read(directory / LOGS / STATUS)
        where = json.loads(text)
        path, address = Path(where["tokenFile"]), urlsplit(where["url"]).netloc
        token, owner_of_token = _read(path, os.O_NOFOLLOW) if path.name == STATUS_TOKEN else ("", None)
    except OSError as error:  # no launcher is at work, or it is on another machine, or another user's
        raise NoLeaderError(f"{directory}: its launcher cannot be asked from here: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NoLeaderError(
            f"{directory / LOGS / STATUS}: does not say where the launcher listens: {error!r}"
        ) from error
    if owner_of_token != owner:
        raise NoLeaderError(f"{directory}: its launcher cannot be asked from here: {path} is not its launcher's")
    return address, token


def _read(path: Path, flags: int = 0) -> tuple[str, int]:
    """Return what is in a file, and the number of the user whose it is."""
    with open(path, encoding="utf-8", opener=lambda name, mode: os.open(name, mode | flags)) as file:
        return file.read(), os.fstat(file.fileno()).st_uid
