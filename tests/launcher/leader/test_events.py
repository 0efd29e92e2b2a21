"""shardwise.launcher.leader.events: what is in the file, whatever the storage takes."""

import json
import resource
from pathlib import Path

from shardwise.launcher.leader.events import Events
from shardwise.protocol.contract import EVENTS, LOGS


def test_a_disk_that_has_room_for_half_an_event(tmp_path: Path) -> None:
    """That event is lost, and no other with it: each is a line of its own."""
    (tmp_path / LOGS).mkdir()
    path, events = tmp_path / LOGS / EVENTS, Events(tmp_path)
    events.write("before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, hard))
    try:
        events.write("lost")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    events.write("after")

    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["before", "after"]
