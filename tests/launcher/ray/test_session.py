"""A session of real Ray on this machine: every host is its own raylet, with a fake agent at a unix socket behind it."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from shardwise.launcher.ray.node import RAY_VARIABLE, RayNode, RayPlace
from shardwise.launcher.ray.rpc import CallError
from shardwise.launcher.ray.rpc_server import serve
from shardwise.launcher.ray.session import RaySession, RaySessionError
from shardwise.launcher.system import log_bound, processes
from shardwise.launcher.system.lines import size_of
from shardwise.protocol.bounded_log import OlderPart
from shardwise.protocol.requests import EndTrainer, ReadStacks, Request, Stacks, Watch

ECHO, NEVER = ReadStacks().model_dump_json(), EndTrainer().model_dump_json()
_BOUND = 60.0  # seconds: for a machine that does other things
_LOOPBACK = ({"127.0.0.1"}, {"::ffff:127.0.0.1"}, {"127.0.0.1", "::ffff:127.0.0.1"})


class Hosts:
    """A few hosts: fake agents, which answer with their host's number or not at all, and their Ray processes."""

    def __init__(self, scratch: Path, num_hosts: int) -> None:
        self.scratch, self.num_hosts = scratch, num_hosts
        self._never = asyncio.Event()  # kept, or a task that waits for it may be garbage-collected
        (scratch / "token").write_text("0123456789abcdef" * 2)
        self.places = [
            RayPlace(
                directory=scratch / "run",
                host=host,
                address="127.0.0.1",
                scratch=scratch,
                token_file=scratch / "token",
            )
            for host in range(num_hosts)
        ]

    def socket(self, host: int) -> Path:
        """Return the socket of a host's agent."""
        return self.scratch / f"h{host}.sock"

    async def serve(self, stack: AsyncExitStack) -> None:
        """Start the agents."""
        for host in range(self.num_hosts):
            server = await serve(self.socket(host), self._answers(host))
            stack.push_async_callback(server.wait_closed)
            stack.callback(server.close)

    async def join(self, stack: AsyncExitStack, session: RaySession, number: int) -> list[RayNode]:
        """Let every host join the session, host 0 first."""
        nodes = []
        for host, place in enumerate(self.places):
            nodes.append(await RayNode.join(place, session=number, address=session.address, socket=self.socket(host)))
            stack.push_async_callback(nodes[-1].close)
        return nodes

    def left(self, part: str | None = None) -> list[processes.Identity]:
        """Return Ray's processes of this run, or those of one part of a session."""
        marks = {processes.RUN_VARIABLE: str(self.scratch / "run")} | ({RAY_VARIABLE: part} if part else {})
        return processes.carrying(marks)

    def process(self, part: str, command: str) -> int:
        """Return the process of a part whose command line matches; the others may come and go."""
        found = []
        for identity in self.left(part):
            with contextlib.suppress(psutil.NoSuchProcess):
                if re.search(command, " ".join(psutil.Process(identity.pid).cmdline())):
                    found.append(identity.pid)
        (only,) = found
        return only

    def listening(self) -> set[str]:
        """Return the addresses at which Ray's processes take connections."""
        found = set()
        for identity in self.left():
            with contextlib.suppress(psutil.NoSuchProcess):
                connections = psutil.Process(identity.pid).net_connections("inet")
                found |= {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN}
        return found

    def _answers(self, host: int) -> Callable[[Request], Awaitable[Stacks]]:
        async def answer(request: Request) -> Stacks:
            if isinstance(request, EndTrainer):
                await self._never.wait()
            return _echo(host, request)

        return answer


def _echo(host: int, request: Request) -> Stacks:
    return Stacks(text=f"host {host}, asked {request}")


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Return a folder with a short path, because sockets are in it."""
    with tempfile.TemporaryDirectory(prefix="sw-") as path:
        yield Path(path).resolve()


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, None]], None]:
    """Return what runs a test's coroutine within a time limit."""

    def bounded(coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run(asyncio.wait_for(coroutine, _BOUND * 2))

    return bounded


def test_every_host_joins_and_answers_for_itself(
    scratch: Path, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    """Three hosts join; many requests at once each reach the one asked; none and a refused one are reported."""

    async def story() -> None:
        hosts = Hosts(scratch, 3)
        async with AsyncExitStack() as stack:
            await hosts.serve(stack)
            session = await RaySession.open(hosts.places[0], number=7, num_hosts=3)
            stack.push_async_callback(session.close)
            await hosts.join(stack, session, 7)
            await session.all_joined(_BOUND)
            assert session.joined == {0, 1, 2}

            requests = [(host, Watch(after=number, seconds=0)) for host in range(3) for number in range(20)]
            answers = await asyncio.gather(
                *(session.ask(host, request.model_dump_json(), _BOUND) for host, request in requests)
            )
            assert answers == [_echo(host, request).model_dump_json() for host, request in requests]

            slow = asyncio.create_task(session.ask(1, NEVER, 0.2))
            assert "host 1" in await session.ask(1, ECHO, _BOUND), "a long request delays no other"
            with pytest.raises(CallError, match=r"host 0: RefusedError: ValidationError: .*'dance'"):
                await session.ask(0, '{"op": "dance"}', _BOUND)
            with pytest.raises(CallError, match=r"host 1: .*TimeoutError"):
                await slow
            hosts.socket(2).unlink()
            with pytest.raises(CallError, match=r"host 2: .*FileNotFoundError"):
                await session.ask(2, ECHO, _BOUND)

            assert hosts.listening() in _LOOPBACK
        _assert_nothing_remains(hosts)

    elsewhere = Path(tempfile.gettempdir(), "ray")
    before = set(elsewhere.glob("session_*"))
    run(story())
    assert set(elsewhere.glob("session_*")) == before, "Ray writes to the scratch folder alone"


@pytest.mark.parametrize(
    ("part", "command", "reason"),
    [
        ("node-1-1", "raylet/raylet ", "host 1: "),
        ("node-1-1", "ray::AgentProxy", "host 1: "),
        ("head-1", "gcs_server ", "Ray's head ended on SIGKILL"),
        ("head-1", "ray.driver", "Ray's driver ended on SIGKILL"),
    ],
    ids=["raylet", "actor", "head", "driver"],
)
def test_a_killed_part_ends_the_session_and_the_next_one_opens(
    scratch: Path, run: Callable[[Coroutine[Any, Any, None]], None], part: str, command: str, reason: str
) -> None:
    """After a SIGKILL the session names what died, requests fail at once, nothing stays, and a new session can open."""

    async def story() -> None:
        hosts = Hosts(scratch, 2)
        async with AsyncExitStack() as stack:
            await hosts.serve(stack)
            async with AsyncExitStack() as first:
                session = await RaySession.open(hosts.places[0], number=1, num_hosts=2)
                first.push_async_callback(session.close)
                nodes = await hosts.join(first, session, 1)
                await session.all_joined(_BOUND)
                asked = asyncio.create_task(session.ask(1, NEVER, _BOUND * 2))
                await session.ask(1, ECHO, _BOUND)

                os.kill(hosts.process(part, command), signal.SIGKILL)

                assert reason in await session.ended()
                with pytest.raises(CallError):
                    await asked
                with pytest.raises(CallError):
                    await session.ask(0, ECHO, _BOUND)
                if "raylet" in command:
                    assert "host 1 ended on SIGKILL" in await nodes[1].ended()
            _assert_nothing_remains(hosts)
            if "gcs" in command:
                old = session.address
                session = await RaySession.open(hosts.places[0], number=2, num_hosts=2)
                stack.push_async_callback(session.close)
                assert session.address != old
                await hosts.join(stack, session, 2)
                await session.all_joined(_BOUND)
                assert "host 1" in await session.ask(1, ECHO, _BOUND)
        _assert_nothing_remains(hosts)

    run(story())


def test_a_host_with_another_token_is_refused_and_named(
    scratch: Path, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    """A raylet with a wrong token ends; waiting for all names its host, and not the one that has joined."""

    async def story() -> None:
        hosts = Hosts(scratch, 2)
        (scratch / "wrong").write_text("fedcba9876543210" * 2)
        hosts.places[1] = replace(hosts.places[1], token_file=scratch / "wrong")
        async with AsyncExitStack() as stack:
            await hosts.serve(stack)
            session = await RaySession.open(hosts.places[0], number=1, num_hosts=2)
            stack.push_async_callback(session.close)
            nodes = await hosts.join(stack, session, 1)
            assert "Ray on host 1 ended" in await nodes[1].ended()
            async with session._changed:
                await session._changed.wait_for(lambda: session.joined == {0})
            with pytest.raises(RaySessionError, match=r"^host 1 did not join Ray within 0\.1 s$"):
                await session.all_joined(0.1)
        _assert_nothing_remains(hosts)

    run(story())


@pytest.mark.parametrize("token", ["", "fedcba9876543210" * 2, "0123456789abcdef" * 2], ids=["none", "another", "its"])
def test_a_stranger_is_not_let_in(scratch: Path, run: Callable[[Coroutine[Any, Any, None]], None], token: str) -> None:
    """Ray runs the code of anything that it lets in: a process with its address, but without its token, is refused."""
    (scratch / "theirs").write_text(token)
    given = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(scratch / "theirs")} if token else {}
    code = (
        "import sys; from ray._raylet import GcsClient; client = GcsClient(address=sys.argv[1]); "
        "client.internal_kv_put(b'k', b'v', True, b'n', timeout=5); print('in')"
    )

    async def story() -> None:
        hosts = Hosts(scratch, 1)
        async with AsyncExitStack() as stack:
            await hosts.serve(stack)
            session = await RaySession.open(hosts.places[0], number=1, num_hosts=1)
            stack.push_async_callback(session.close)
            stranger = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", code, session.address.partition("/")[0]),
                env={"PATH": os.environ["PATH"], "HOME": str(scratch), **given},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            output, _ = await asyncio.wait_for(stranger.communicate(), _BOUND)
            its = token == (scratch / "token").read_text()
            assert (b"in\n" in output, stranger.returncode == 0) == (its, its), output
        _assert_nothing_remains(hosts)

    run(story())


def test_a_driver_that_cannot_start_is_reported(
    scratch: Path, run: Callable[[Coroutine[Any, Any, None]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of `open` gives the driver's exit code, and nothing is left of the head."""
    monkeypatch.setattr(sys, "executable", "/bin/false")

    async def story() -> None:
        hosts = Hosts(scratch, 2)
        with pytest.raises(RaySessionError, match="Ray's driver ended with exit code 1"):
            await RaySession.open(hosts.places[0], number=1, num_hosts=2)
        _assert_nothing_remains(hosts)

    run(story())


def test_the_agent_side_does_not_import_ray() -> None:
    """Only the driver and the workers pay for the import of Ray and its memory."""
    code = "import shardwise.launcher.ray.session, sys; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def _assert_nothing_remains(hosts: Hosts) -> None:
    assert hosts.left() == []
    assert not [path.name for path in hosts.scratch.iterdir() if path.name.startswith(("head-", "node-"))]


def test_the_driver_s_log_is_bounded(
    scratch: Path, run: Callable[[Coroutine[Any, Any, None]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Ray prints for weeks does not fill the scratch folder: the driver writes on at the end of the cut file."""
    monkeypatch.setattr(log_bound, "LOG_BYTES", 10_000)
    monkeypatch.setattr(log_bound, "KEPT_BYTES", 1000)
    monkeypatch.setattr(log_bound, "_LOOK_SECONDS", 0.01)

    async def story() -> None:
        hosts = Hosts(scratch, 1)
        session = await RaySession.open(hosts.places[0], number=1, num_hosts=1)
        try:
            log = session._driver_log
            print_for_weeks(hosts.process("head-1", "ray.driver"), log)
            while OlderPart.of(log) is None or size_of(log) > 10_000:  # noqa: ASYNC110  the condition is on the disk
                await asyncio.sleep(0.01)
        finally:
            await session.close()

    def print_for_weeks(driver: int, log: Path) -> None:
        assert Path(f"/proc/{driver}/fd/2").resolve() == log.resolve()
        (flags,) = re.findall(r"flags:\s+(\d+)", Path(f"/proc/{driver}/fdinfo/2").read_text())
        assert int(flags, 8) & os.O_APPEND
        with log.open("a") as file:
            file.write("a line\n" * 5000)

    run(story())
