"""An agent whose Ray is a stand-in; started by the tests in place of the real one.

The stand-in for Ray asks the agents' unix sockets directly. It has Ray's interface and none of its processes, so that
what is tested is the launcher, and quickly; `ray/test_session.py` and `test_with_ray.py` have the real one.
"""

import asyncio
import signal
from pathlib import Path

from shardwise.launcher import agent_main
from shardwise.launcher.agent import follower, standby, trainer
from shardwise.launcher.agent.config import socket_of
from shardwise.launcher.leader import channel
from shardwise.launcher.ray import rpc
from shardwise.launcher.ray.node import RayPlace
from shardwise.launcher.ray.rpc import CallError


class StandInNode:
    """In the place of `RayNode`."""

    @classmethod
    async def join(cls, _place: RayPlace, *, session: int, address: str, socket: Path) -> "StandInNode":
        """Nothing is started."""
        assert socket.name.startswith("h")
        assert address == f"stand-in/{session}"
        return cls()

    async def ended(self) -> str:
        """Never."""
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None:
        """Nothing was started."""


class StandInSession:
    """In the place of `RaySession`; it is lost when the file `lose-session-N` is in the scratch folder."""

    @staticmethod
    def scratch_of(scratch: Path, _host: int) -> Path:
        """The scratch folder of a host: on one machine there is one."""
        return scratch

    def __init__(self, place: RayPlace, number: int, num_hosts: int) -> None:
        self._scratch, self._number, self._num_hosts = place.scratch, number, num_hosts
        self.address = f"stand-in/{number}"

    @classmethod
    async def open(cls, place: RayPlace, *, number: int, num_hosts: int) -> "StandInSession":
        """Nothing is started."""
        return cls(place, number, num_hosts)

    async def all_joined(self, timeout: float) -> None:  # noqa: ASYNC109  the interface of RaySession
        """Wait for the sockets."""
        async with asyncio.timeout(timeout):
            while not all(self._socket(n).exists() for n in range(self._num_hosts)):  # noqa: ASYNC110  files
                await asyncio.sleep(0.02)

    async def ask(self, host: int, request: str, timeout: float) -> str:  # noqa: ASYNC109  as above
        """Ask the host's socket."""
        try:
            async with asyncio.timeout(timeout):
                return await rpc.ask(self._socket(host), request)
        except (OSError, TimeoutError, rpc.RefusedError) as error:
            raise CallError(host, f"{type(error).__name__}: {error}") from error

    async def ended(self) -> str:
        """Wait for a test to lose it."""
        while not (self._scratch / f"lose-session-{self._number}").exists():  # noqa: ASYNC110  a file
            await asyncio.sleep(0.02)
        return "a test has lost it"

    async def close(self) -> None:
        """Nothing was started."""

    def _socket(self, host: int) -> Path:
        return socket_of(self.scratch_of(self._scratch, host), host)


class StandInTrainer(trainer.Trainer):
    """In the place of `Trainer`; SIGKILL does not end it where the file `held-PID` is in the run directory.

    So is a process that the kernel holds for a device or a disk that do not answer, which no test can make.
    """

    def _send(self, number: signal.Signals) -> None:
        if number == signal.SIGKILL and (Path(self.orders.directory) / f"held-{self.pid}").exists():
            trainer.GONE_WITHIN_SECONDS = 0.5
        else:
            super()._send(number)


def stand_in() -> None:
    """Have the agent of this process use no Ray."""
    for module, name, other in (
        (channel, "RaySession", StandInSession),
        (channel, "RayNode", StandInNode),
        (follower, "RayNode", StandInNode),
        (standby, "Trainer", StandInTrainer),
    ):
        setattr(module, name, other)


if __name__ == "__main__":
    stand_in()
    agent_main.main()
