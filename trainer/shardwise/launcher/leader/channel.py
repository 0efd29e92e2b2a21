"""The leader's channel to all hosts: opened, opened again when it is lost, and the last report of each host.

With one host the channel is a function call; with more it is a Ray session. Losing it ends no training: the trainers
are the agents' children, not Ray's, and the leader sees what happened meanwhile when the channel is open again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

from shardwise.launcher.agent.config import AgentConfig
from shardwise.launcher.leader.events import Events
from shardwise.launcher.leader.members import LOST_SECONDS, Members
from shardwise.launcher.ray.node import RayNode
from shardwise.launcher.ray.rpc import CallError
from shardwise.launcher.ray.rpc_server import Answering
from shardwise.launcher.ray.session import RaySession, RaySessionError
from shardwise.launcher.system.tasks import cancel
from shardwise.protocol.message import Message
from shardwise.protocol.report import Report
from shardwise.protocol.requests import REQUEST, Request, Watch

_Answer = TypeVar("_Answer", bound=Message)

ANSWER_SECONDS = 5.0
_JOIN_SECONDS, _JOIN_SECONDS_A_HOST = 60.0, 0.1
_WATCH_SECONDS = 1.0
_AGAIN_SECONDS = 0.2
_MAX_FAILURES = 5
_BACKOFF_SECONDS = 1.0


class ChannelError(Exception):
    """The channel could not be opened, though it was tried several times."""


class _ReplacedError(Exception):
    """A host has another agent since the channel began to open; the message names the host."""


@dataclass(frozen=True, kw_only=True)
class ReceivedReport:
    """A report, and when it came (the leader's monotonic seconds)."""

    report: Report
    at: float


class Channel:
    """The channel.

    `session` and `address` are what followers must know to join; `reports` is the last report of each host in the
    session. `changed` is set at every new report, `ready` while the channel is open, to the agents in `agent_ids`.
    `seconds` is how long all its openings took together.
    """

    def __init__(self, config: AgentConfig, members: Members, events: Events, own: Answering, session: int) -> None:
        """Open nothing yet; `own` answers for the leader's host, `session` is the number of the last session."""
        self._config, self._members, self._events, self._own = config, members, events, own
        self._ask: Callable[[int, str, float], Awaitable[str]] | None = None
        self._lost: asyncio.Future[str] | None = None
        self.session, self.address, self.seconds = session, "", 0.0
        self.ready, self.changed = asyncio.Event(), asyncio.Event()
        self.reports: dict[int, ReceivedReport] = {}
        self.agent_ids: dict[int, str] = {}

    async def run(self) -> None:
        """Keep the channel open until cancelled; ChannelError if it cannot be opened."""
        failures = 0
        while True:
            while self._members.missing(time.monotonic()):  # noqa: ASYNC110  time itself changes it
                await asyncio.sleep(_AGAIN_SECONDS)
            async with AsyncExitStack() as stack:
                try:
                    ends = await self._open(stack)
                except _ReplacedError as error:
                    why = str(error)
                except (OSError, RaySessionError) as error:
                    failures += 1
                    self._events.write("sessionFailed", session=self.session, reason=f"{type(error).__name__}: {error}")
                    if failures == _MAX_FAILURES:
                        raise ChannelError(
                            f"Ray could not be started {failures} times; the last time: {error}"
                        ) from error
                    await asyncio.sleep(_BACKOFF_SECONDS * 2 ** (failures - 1))
                    continue
                else:
                    failures = 0
                    why = await self._until_lost(ends)
            self._events.write("sessionLost", session=self.session, reason=why)

    async def ask(self, host: int, request: Request, answer: type[_Answer], seconds: float = ANSWER_SECONDS) -> _Answer:
        """Return a host's answer within so many seconds; CallError if there is none."""
        if self._ask is None:
            raise CallError(host, "there is no way to it at the moment")
        return answer.model_validate_json(await self._ask(host, request.model_dump_json(), seconds))

    async def ask_all(self, request: Request, answer: type[_Answer], seconds: float) -> dict[int, _Answer | None]:
        """Ask every host; map each to its answer, or None if it gave none. The leader's own needs no open channel."""

        async def ask(host: int) -> _Answer | None:
            try:
                if host == 0:
                    return answer.model_validate(await self._own(request))
                return await self.ask(host, request, answer, seconds)
            except (CallError, OSError) as error:  # the leader's own host refuses by an OSError
                reason = error.reason if isinstance(error, CallError) else str(error)
                self._events.write("noAnswer", host=host, op=request.op, reason=reason)
                return None

        hosts = range(self._config.num_hosts)
        return dict(zip(hosts, await asyncio.gather(*map(ask, hosts)), strict=True))

    async def _ask_own(self, host: int, request: str, seconds: float) -> str:
        """Call this host's agent, which is part of this process, as a function."""
        try:
            async with asyncio.timeout(seconds):
                return (await self._own(REQUEST.validate_json(request))).model_dump_json()
        except TimeoutError:
            raise CallError(host, f"no answer within {seconds} s") from None
        except OSError as error:
            raise CallError(host, str(error)) from error

    def look(self) -> None:
        """Close the channel if a host has another agent than the one that it is open to."""
        replaced = self._members.replaced(self.agent_ids)
        if replaced and self._lost and not self._lost.done():
            self.ready.clear()
            self._lost.set_result(f"host {replaced[0]} has another agent")

    async def _open(self, stack: AsyncExitStack) -> list[Coroutine[Any, Any, str]]:
        """Open the channel; return what ends when it is lost."""
        began = time.monotonic()
        self.session += 1
        self._lost = asyncio.get_running_loop().create_future()
        self.agent_ids = self._members.agent_ids()
        ends: list[Coroutine[Any, Any, str]] = []
        if self._config.num_hosts == 1:
            self._ask = self._ask_own
        else:
            session = await RaySession.open(self._config.place, number=self.session, num_hosts=self._config.num_hosts)
            stack.push_async_callback(session.close)
            stack.callback(self._closing)
            node = await RayNode.join(
                self._config.place, session=self.session, address=session.address, socket=self._config.socket
            )
            stack.push_async_callback(node.close)
            self.address = session.address
            await self._all_joined(session)
            self._ask = session.ask
            ends += [node.ended(), session.ended()]
        stack.callback(self._closing)
        self.seconds += time.monotonic() - began
        self._events.write("session", session=self.session, seconds=round(time.monotonic() - began, 3))
        self.ready.set()
        return ends

    async def _all_joined(self, session: RaySession) -> None:
        """Wait until all hosts have joined, or one has another agent: the old one would be waited for in vain."""
        assert self._lost is not None
        seconds = _JOIN_SECONDS + _JOIN_SECONDS_A_HOST * self._config.num_hosts
        joining = asyncio.create_task(session.all_joined(seconds))
        try:
            await asyncio.wait((joining, self._lost), return_when=asyncio.FIRST_COMPLETED)
            if self._lost.done():
                raise _ReplacedError(self._lost.result())
            await joining
        finally:
            await cancel(joining)

    def _closing(self) -> None:
        self.ready.clear()
        self._ask, self.address = None, ""
        self.reports.clear()

    async def _until_lost(self, ends: list[Coroutine[Any, Any, str]]) -> str:
        assert self._lost is not None
        watches = [asyncio.create_task(self._watch(host)) for host in range(self._config.num_hosts)]
        waits = [self._lost, *watches, *(asyncio.ensure_future(end) for end in ends)]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            await cancel(*waits)

    async def _watch(self, host: int) -> str:
        """Take in a host's reports; return the reason once it could not be asked for too long."""
        after = -1
        answered_at = time.monotonic()
        while True:
            try:
                report = await self.ask(host, Watch(after=after, seconds=_WATCH_SECONDS), Report)
            except CallError as error:
                if time.monotonic() - answered_at > LOST_SECONDS:
                    return str(error)
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            answered_at = time.monotonic()
            self.reports[host] = ReceivedReport(report=report, at=answered_at)
            self._members.answered(host, report.agent_id, answered_at)
            self.changed.set()
            after = report.version
