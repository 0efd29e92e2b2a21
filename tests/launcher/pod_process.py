"""A pod's first process as the tests start it: the real agent with fake trainers and no Ray, unless told.

python pod_process.py POD OPTIONS

POD is a folder that stands for the pod's root, with its mounts below it. OPTIONS is JSON: {"ray": bool, "refusesRay":
bool, "unheardSeconds": float, "copySeconds": float, "writeSeconds": float, "outrun": bool, "trains": bool}.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.launcher.stand_in_agent import StandInSession, stand_in

from shardwise.launcher import pod
from shardwise.launcher.agent import config, run_copy
from shardwise.launcher.leader import channel, wait_for_hosts
from shardwise.launcher.ray.session import RaySessionError
from shardwise.protocol import pods
from shardwise.protocol.contract import LEADER_RECORD, LOGS

LEADER_RECORD_FILE = f"{LOGS}/{LEADER_RECORD}"
HERE = Path(__file__).parent


def main() -> None:
    """Be the pod."""
    root, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    for name in ("JOB_MOUNT", "TOKEN_MOUNT", "SCRATCH_MOUNT", "TERMINATION_LOG"):
        setattr(pods, name, str(root / name.lower()))
    if not options.get("trains"):
        config.TRAINER = (sys.executable, str(HERE / "fake_trainer.py"))
    run_copy.COPY_SECONDS = options.get("copySeconds", run_copy.COPY_SECONDS)
    if "writeSeconds" in options:
        slow_down(options["writeSeconds"])
    if options.get("outrun"):
        be_outrun()
    wait_for_hosts.UNHEARD_SECONDS = options.get("unheardSeconds", wait_for_hosts.UNHEARD_SECONDS)
    if not options.get("ray"):
        stand_in()
        StandInSession.scratch_of = staticmethod(scratch_of)  # type: ignore[assignment]
    if options.get("refusesRay"):
        StandInSession.open = refused  # type: ignore[method-assign,assignment]
        channel._BACKOFF_SECONDS = 0.01
    pod.main()


async def refused(*_place: Any, **_session: Any) -> None:
    """Ray does not start."""
    raise RaySessionError("host 1 did not join Ray")


def slow_down(seconds: float) -> None:
    """The bucket takes so much longer for each write of what a successor needs."""
    write = run_copy.RunCopy._write_kept

    def slow(copy: run_copy.RunCopy, name: str, content: bytes) -> None:
        time.sleep(seconds)
        write(copy, name, content)

    run_copy.RunCopy._write_kept = slow  # type: ignore[method-assign,assignment]


def be_outrun() -> None:
    """The host 0 before writes its record once more between the first look of this one and its first write."""
    take = run_copy.RunCopy.take_kept

    def slowly(copy: run_copy.RunCopy) -> None:
        take(copy)
        taken = copy._read(LEADER_RECORD_FILE).value
        while copy._read(LEADER_RECORD_FILE).value == taken:
            time.sleep(0.05)
        run_copy.RunCopy.take_kept = take  # type: ignore[method-assign]

    run_copy.RunCopy.take_kept = slowly  # type: ignore[method-assign,assignment]


def scratch_of(own: Path, host: int) -> Path:
    """The scratch folder of another pod."""
    return own.parent.parent / str(host) / own.name


if __name__ == "__main__":
    main()
