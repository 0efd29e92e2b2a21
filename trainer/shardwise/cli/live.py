"""What the launcher of a live run says, and what it can be asked; found through the run directory.

Called by `status` and `stop`.
"""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from shardwise.job.contract import LOGS, STATUS
from shardwise.launcher.client import NoLeaderError, request


def live_status(directory: Path) -> dict[str, Any] | None:
    """The launcher's own status of the run; None where none answers."""
    try:
        return ask(directory, "GET", "/status")
    except NoLeaderError:
        return None


def ask(directory: Path, method: str, path: str) -> dict[str, Any]:
    """The launcher's answer; NoLeaderError where there is none."""
    try:
        where = json.loads((directory / LOGS / STATUS).read_text(encoding="utf-8"))
        token = Path(where["tokenFile"]).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise NoLeaderError(f"{directory}: no launcher is at work here") from error
    return request(urlsplit(where["url"]).netloc, token, method, path)
