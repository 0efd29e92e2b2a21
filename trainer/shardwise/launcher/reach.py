"""The leader's way to every host: opened, opened again when it is lost, and the last word of each host.

Called by `gang.py`. With one host the way is a function call; with more it is a Ray epoch. Losing it ends no training:
the trainers are the agents' children, not Ray's, and what happened meanwhile is seen when the way is there again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from shardwise.launcher.config import AgentConfig
from shardwise.launcher.epoch import Epoch, EpochError
from shardwise.launcher.hand import Answer, HandError, Hands, OwnHand, Request
from shardwise.launcher.members import LOST_SECONDS, Members
from shardwise.launcher.ray_node import RayNode
from shardwise.launcher.record import Events
from shardwise.launcher.report import Report
from shardwise.launcher.tasks import cancel

ANSWER_SECONDS = 5.0
_JOIN_SECONDS, _JOIN_SECONDS_A_HOST = 60.0, 0.1
_WATCH_SECONDS = 1.0
_AGAIN_SECONDS = 0.2
_MAX_FAILURES = 5
_BACKOFF_SECONDS = 1.0


class ReachError(Exception):
    """The hosts cannot be reached, however often it is tried."""


class _ReplacedError(Exception):
    """A host to which the way is being opened has another agent; the message says which."""


@dataclass(frozen=True, kw_only=True)
class Heard:
    """A report, and when it came (the leader's monotonic seconds)."""

    report: Report
    at: float


class Reach:
    """Hands on all hosts.

    `epoch` and `address` are what followers must know to join; `reports` is the last word of each host in this epoch;
    `changed` is set at every news; `ready` while the way is open, to the agents in `agent_ids`; `seconds` is how long
    its openings took, together.
    """

    def __init__(
        self,
        config: AgentConfig,
        members: Members,
        events: Events,
        own: Callable[[Request], Awaitable[Answer]],
        epoch: int,
    ) -> None:
        """Nothing is open yet; `own` answers for the leader's host, `epoch` is the last one that there was."""
        self._config, self._members, self._events, self._own = config, members, events, own
        self._hands: Hands | None = None
        self._lost: asyncio.Future[str] | None = None
        self.epoch, self.address, self.seconds = epoch, "", 0.0
        self.ready, self.changed = asyncio.Event(), asyncio.Event()
        self.reports: dict[int, Heard] = {}
        self.agent_ids: dict[int, str] = {}

    async def run(self) -> None:
        """Keep the way open until cancelled; ReachError where it cannot be opened."""
        failures = 0
        while True:
            while self._members.missing(time.monotonic()):  # noqa: ASYNC110  time itself changes it
                await asyncio.sleep(_AGAIN_SECONDS)
            async with AsyncExitStack() as stack:
                try:
                    ends = await self._open(stack)
                except _ReplacedError as error:
                    why = str(error)
                except (OSError, EpochError) as error:
                    failures += 1
                    self._events.write("epochFailed", epoch=self.epoch, reason=f"{type(error).__name__}: {error}")
                    if failures == _MAX_FAILURES:
                        raise ReachError(
                            f"Ray could not be started {failures} times; the last time: {error}"
                        ) from error
                    await asyncio.sleep(_BACKOFF_SECONDS * 2 ** (failures - 1))
                    continue
                else:
                    failures = 0
                    why = await self._until_lost(ends)
            self._events.write("epochLost", epoch=self.epoch, reason=why)

    async def ask(self, host: int, request: Request, seconds: float = ANSWER_SECONDS) -> Answer:
        """A host's answer within so many seconds; HandError where it cannot be had."""
        if self._hands is None:
            raise HandError(host, "there is no way to it at the moment")
        answer = await self._hands.ask(host, request, seconds)
        if "error" in answer:
            raise HandError(host, answer["error"])
        return answer

    def look(self) -> None:
        """Give up what is open where a host of it has another agent: it leads to the old one."""
        replaced = self._members.replaced(self.agent_ids)
        if replaced and self._lost and not self._lost.done():
            self.ready.clear()
            self._lost.set_result(f"host {replaced[0]} has another agent")

    async def _open(self, stack: AsyncExitStack) -> list[Coroutine[Any, Any, str]]:
        """Open the way; what ends when it is lost."""
        began = time.monotonic()
        self.epoch += 1
        self._lost = asyncio.get_running_loop().create_future()
        self.agent_ids = self._members.agent_ids()
        ends: list[Coroutine[Any, Any, str]] = []
        if self._config.num_hosts == 1:
            self._hands = OwnHand(self._own)
        else:
            epoch = await Epoch.open(self._config.place, number=self.epoch, num_hosts=self._config.num_hosts)
            stack.push_async_callback(epoch.close)
            stack.callback(self._closing)
            node = await RayNode.join(
                self._config.place, epoch=self.epoch, address=epoch.address, socket=self._config.socket
            )
            stack.push_async_callback(node.close)
            self.address = epoch.address
            await self._all_joined(epoch)
            self._hands = epoch
            ends.append(node.ended())
        stack.callback(self._closing)
        self.seconds += time.monotonic() - began
        self._events.write("epoch", epoch=self.epoch, seconds=round(time.monotonic() - began, 3))
        self.ready.set()
        return [*ends, self._hands.ended()]

    async def _all_joined(self, epoch: Epoch) -> None:
        """Wait for all hosts; one that was lost so recently that its old agent is waited for never joins."""
        assert self._lost is not None
        seconds = _JOIN_SECONDS + _JOIN_SECONDS_A_HOST * self._config.num_hosts
        joining = asyncio.create_task(epoch.all_joined(seconds))
        try:
            await asyncio.wait((joining, self._lost), return_when=asyncio.FIRST_COMPLETED)
            if self._lost.done():
                raise _ReplacedError(self._lost.result())
            await joining
        finally:
            await cancel(joining)

    def _closing(self) -> None:
        self.ready.clear()
        self._hands, self.address = None, ""
        self.reports.clear()

    async def _until_lost(self, ends: list[Coroutine[Any, Any, str]]) -> str:
        assert self._hands is not None
        assert self._lost is not None
        watches = [asyncio.create_task(self._watch(host)) for host in range(self._config.num_hosts)]
        waits = [self._lost, *watches, *(asyncio.ensure_future(end) for end in ends)]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            await cancel(*waits)

    async def _watch(self, host: int) -> str:
        """Take in a host's reports; returns, with the reason, when it cannot be asked for too long."""
        after = -1
        answered_at = time.monotonic()
        while True:
            try:
                answer = await self.ask(host, {"op": "watch", "after": after, "wait": _WATCH_SECONDS})
            except HandError as error:
                if time.monotonic() - answered_at > LOST_SECONDS:
                    return str(error)
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            answered_at = time.monotonic()
            report = Report.from_json(answer)
            self.reports[host] = Heard(report=report, at=answered_at)
            self._members.answered(host, report.agent_id, answered_at)
            self.changed.set()
            after = report.version
