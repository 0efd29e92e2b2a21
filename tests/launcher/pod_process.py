"""A pod's first process as the tests start it: the real agent with fake trainers and, unless told, no Ray.

python pod_process.py POD NAMES OPTIONS

POD is a folder that stands for the pod's root, with its mounts below it. NAMES is a file of names and addresses: it
stands for the cluster's DNS. OPTIONS is JSON: {"ray": bool, "refusesRay": bool, "sharedSeconds": float}.
"""

import json
import socket
import sys
from pathlib import Path
from typing import Any

from tests.launcher.stand_in_agent import StandInEpoch, stand_in

from shardwise.job import pods
from shardwise.launcher import config, gathering, pod, reach
from shardwise.launcher.epoch import EpochError

HERE = Path(__file__).parent


def main() -> None:
    """Be the pod."""
    root, names, options = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    for name in ("JOB_MOUNT", "TOKEN_MOUNT", "SCRATCH_MOUNT", "TERMINATION_LOG"):
        setattr(pods, name, str(root / name.lower()))
    config.TRAINER = (sys.executable, str(HERE / "fake_trainer.py"))
    gathering.SHARED_SECONDS = options.get("sharedSeconds", gathering.SHARED_SECONDS)  # type: ignore[attr-defined]
    if not options.get("ray"):
        stand_in()
        StandInEpoch.scratch_of = staticmethod(scratch_of)  # type: ignore[assignment]
    if options.get("refusesRay"):
        StandInEpoch.open = refused  # type: ignore[method-assign,assignment]
        reach._BACKOFF_SECONDS = 0.01
    look_up_in(names)
    pod.main()


async def refused(*_place: Any, **_epoch: Any) -> None:
    """Ray does not start."""
    raise EpochError("host 1 did not join Ray")


def scratch_of(own: Path, host: int) -> Path:
    """The scratch folder of another pod."""
    return own.parent.parent / str(host) / own.name


def look_up_in(names: Path) -> None:
    """Have names looked up in the file, as long as it knows them."""
    real = socket.getaddrinfo

    def looked_up(host: Any, *rest: Any, **more: Any) -> Any:
        known = json.loads(names.read_text())
        if str(host).endswith(".test") and host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(known.get(host, host), *rest, **more)

    socket.getaddrinfo = looked_up


if __name__ == "__main__":
    main()
