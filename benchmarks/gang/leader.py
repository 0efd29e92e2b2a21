"""The agent of host 0, the leader of a gang, whose Ray is a wire to `crowd.py`; all else of it is the real one.

Started by `stage.py` in the place of `shardwise.launcher.agent_main`. On SIGUSR1 it writes to the file `figures` of its
scratch folder how long its looks took since the last time: the watchdog's judgement, all that the leader does in a look
at its trainers, and the making of the status.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from tests.launcher.stand_in_agent import StandInNode

from shardwise.launcher import agent_main
from shardwise.launcher.leader import channel
from shardwise.launcher.leader.attempt import Attempt
from shardwise.launcher.leader.publisher import StatusPublisher
from shardwise.launcher.leader.watchdog import Watch
from shardwise.launcher.ray.session import RaySession

CROWD_SOCKET, FIGURES = "crowd.sock", "figures.json"
JUDGE, LOOK, BOARD = "judge", "look", "board"
_TRAINER = Path(__file__).parents[2] / "tests" / "launcher" / "fake_trainer.py"
_LINE_LIMIT_BYTES = 16 << 20


class WireSession(RaySession):
    """A session whose head and driver are the crowd: what is asked and heard goes the same way within the leader."""

    async def _start(self) -> None:
        wire = self._place.scratch / CROWD_SOCKET
        self._output, self._input = await asyncio.open_unix_connection(wire, limit=_LINE_LIMIT_BYTES)
        self.address = f"stand-in/{self._number}"
        self._tasks = [asyncio.create_task(self._receive())]


class Timed:
    """How long calls took, in seconds, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, timed."""

        def called(*arguments: Any, **more: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*arguments, **more)
            finally:
                self.seconds[name].append(time.perf_counter() - began)

        return called

    def write(self, path: Path) -> None:
        """Write what was timed since the last time."""
        before, self.seconds = self.seconds, defaultdict(list)
        path.with_suffix(".partial").write_text(json.dumps(before))
        path.with_suffix(".partial").rename(path)


def main() -> None:
    """Be the leader."""
    os.sched_setaffinity(0, {int(sys.argv[2])})
    scratch, timed = Path(sys.argv[1]), Timed()
    for module, name, other in (
        (channel, "RaySession", WireSession),
        (channel, "RayNode", StandInNode),
        (Watch, "judge", timed.timed(JUDGE, Watch.judge)),
        (Attempt, "_observe", timed.timed(LOOK, Attempt._observe)),  # noqa: SLF001  what is timed
        (StatusPublisher, "look", timed.timed(BOARD, StatusPublisher.look)),
    ):
        getattr(module, name)  # what is no longer there is not replaced in silence
        setattr(module, name, other)

    def asked(_number: int, _frame: FrameType | None) -> None:
        timed.write(scratch / FIGURES)

    signal.signal(signal.SIGUSR1, asked)
    agent_main.main()


def trainer_command() -> tuple[str, ...]:
    """The trainer of host 0: a fake one, which steps alone."""
    return sys.executable, "-c", _ALONE, str(_TRAINER)


_ALONE = """
import runpy, sys
from shardwise.protocol import orders
given = orders.wait_for_orders
def alone():
    told = given()
    return told and told.model_copy(update={"num_processes": 1})
orders.wait_for_orders = alone
runpy.run_path(sys.argv[1], run_name="__main__")
"""


if __name__ == "__main__":
    main()
