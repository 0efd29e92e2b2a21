"""One start of all trainers of a run: their orders, the look at them while they run, and their end.

Called by `gang.py`, one after the other. What is done at each look is decided in `decision.py`.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shardwise.job.accelerators import offered
from shardwise.job.contract import LOGS, progress_name
from shardwise.job.orders import Orders
from shardwise.launcher.causes import Ending, attribute, follows_from_a_peer
from shardwise.launcher.config import stacks_of
from shardwise.launcher.decision import Action, Observed, decide
from shardwise.launcher.devices import device_variables
from shardwise.launcher.hand import Answer, HandError, Request
from shardwise.launcher.means import Means
from shardwise.launcher.ports import free_port
from shardwise.launcher.reach import ANSWER_SECONDS, Heard
from shardwise.launcher.report import Exit
from shardwise.launcher.watchdog import RankState, Stall, judge
from shardwise.launcher.wire import snake

LOOK_SECONDS = 0.25
_FRESH_SECONDS = 3.0
_END_SECONDS = 10.0
_EXPLAINED_WITHIN_SECONDS = 2.5
_SETTLE_SECONDS = 0.05
_WAY_BACK_SECONDS = 20.0  # a few times what Ray takes to start, which the next incarnation waits for in any case


class Incarnation:
    """The trainers of one incarnation; rank N runs on host N.

    `seconds` is rank 0's time by phase; `stalled` says whether nobody gets anywhere at the moment.
    """

    def __init__(self, number: int, means: Means) -> None:
        """No trainer has its orders yet."""
        self.number, self._means = number, means
        self._hosts = range(means.config.num_hosts)
        self._agent_ids = means.reach.agent_ids
        self._stop_told_at: float | None = None
        self._looked_at = time.monotonic()
        self._stall: Stall | None = None
        self._writing_stacks: asyncio.Task[None] | None = None
        self._exits: dict[int, Exit] = {}
        self._step = 0
        self.seconds: Mapping[str, float] = {}

    @property
    def stalled(self) -> bool:
        """Whether nobody gets anywhere."""
        return self._stall is not None

    @property
    def stepped(self) -> bool:
        """Whether a step was completed."""
        return self._means.metrics.incarnation == self.number and self._means.metrics.stepped

    async def give_orders(self, *, fork: bool, step: int | None, deadline_seconds: float | None) -> None:
        """Start every trainer: rank 0 first, for it serves what the others connect to. HandError where one cannot."""
        config = self._means.config
        self._means.usual.restarted()
        self._means.stragglers.restarted()
        coordinator = f"{config.address}:{free_port(config.address)}"
        addresses, hardware = self._means.members.addresses(config.address), self._means.job.spec.hardware
        platform = offered()[hardware.accelerator].spec.platform
        self._means.metrics.read()
        committed = self._means.metrics.committed

        async def start(rank: int) -> None:
            orders = Orders(
                job_file=config.job_file,
                directory=config.directory,
                progress=str(Path(config.scratch) / progress_name(rank)),
                stacks=str(stacks_of(Path(config.scratch), rank)),
                rank=rank,
                num_processes=config.num_hosts,
                coordinator=coordinator,
                incarnation=self.number,
                fork=fork,
                step=step,
                deadline_seconds=deadline_seconds,
                committed=committed if committed >= 0 else None,
                variables=device_variables(platform, addresses, num_slices=hardware.slices, rank=rank),
            )
            await self._means.reach.ask(rank, {"op": "start", "orders": asdict(orders)})

        await start(0)
        await asyncio.gather(*(start(rank) for rank in self._hosts[1:]))

    async def run(self) -> Action:
        """Look on until there is something to do that ends it; what that is."""
        while True:
            action = decide(self._observe())
            if action == Action.STOP:
                self._stop_told_at = time.monotonic()
                await self._ask_all({"op": "signal", "word": "stop"}, ANSWER_SECONDS)
            elif action != Action.WAIT:
                break
            await self._news()
        if self._writing_stacks:
            await self._writing_stacks
        return action

    async def end(self) -> dict[int, Answer | None]:
        """End every trainer that still runs; what each host has answered."""
        answers = await self._ask_all({"op": "end"}, _END_SECONDS)
        now = time.monotonic()
        for rank, answer in answers.items():
            if answer:
                self._means.members.answered(rank, answer["agentId"], now)
                self._take_exit(rank, Exit(**snake(answer["exit"])) if answer["exit"] else None)
        return answers

    async def explain(self, since: float, answers: Mapping[int, Answer | None]) -> Ending:
        """The cause of a bad end at `since` (monotonic seconds), once every host had the time to show that it lives.

        A trainer whose peer's host is gone fails before the host is missed.
        """
        members = self._means.members
        doubtful = None in answers.values() or any(follows_from_a_peer(ended) for ended in self._exits.values())
        deadline = since + _EXPLAINED_WITHIN_SECONDS
        while doubtful and members.unheard_since(since) and time.monotonic() < deadline:  # noqa: ASYNC110  a bound too
            await asyncio.sleep(_SETTLE_SECONDS)
        if doubtful and not members.unheard_since(since):
            answers = await self._asked_again(answers)
        strangers = [rank for rank, answer in answers.items() if answer and answer["agentId"] != self._agent_ids[rank]]
        missed = members.unheard_since(since) if doubtful else []
        lost = {*self._lost(), *strangers, *missed}
        hang = self._stall if self._stall and self._stall.hung else None
        return attribute(self._exits, lost, hang.words if hang else None, hang.rank if hang else None)

    async def _asked_again(self, answers: Mapping[int, Answer | None]) -> Mapping[int, Answer | None]:
        """The answers, with those of hosts that live and to which the way was lost: it is opened again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_WAY_BACK_SECONDS):
                while None in answers.values() and not self._lost():
                    await self._means.reach.ready.wait()
                    answers = {**answers, **{rank: each for rank, each in (await self.end()).items() if each}}
                    await asyncio.sleep(LOOK_SECONDS)
        return answers

    async def _news(self) -> None:
        changed = self._means.reach.changed
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await changed.wait()
        changed.clear()

    def _observe(self) -> Observed:
        now = time.monotonic()
        if now - self._looked_at > 4 * LOOK_SECONDS:
            self._means.members.pardon(now - self._looked_at)
        self._looked_at = now
        self._means.metrics.read()
        self._notice_step(now)
        for rank, heard in self._means.reach.reports.items():
            self._take(rank, heard)
        self._watch_over(now)
        return Observed(
            num_hosts=len(self._hosts),
            exits=self._exits,
            lost=self._lost() | set(self._means.members.lost(now)),
            hung=self._stall is not None and self._stall.hung,
            stop_asked=self._means.stop.is_set() or bool(self._means.leaving),
            stopping=None if self._stop_told_at is None else now - self._stop_told_at,
            stepped=self.stepped,
        )

    def _notice_step(self, now: float) -> None:
        """A step of this host's trainer shows that all hosts live, though some may not be heard at the moment."""
        report = self._means.host.report()
        if report.incarnation == self.number and report.progress and report.progress.step > self._step:
            self._step = report.progress.step
            self._means.members.stepped(now - report.progress.step_seconds)

    def _take(self, rank: int, heard: Heard) -> None:
        report = heard.report
        if report.stop_asked:
            self._means.stop.set()
        if report.incarnation != self.number:
            return
        if rank == 0 and report.progress:
            self.seconds = report.progress.seconds
        self._take_exit(rank, report.exit)

    def _take_exit(self, rank: int, ended: Exit | None) -> None:
        if ended and ended.incarnation == self.number:
            self._exits.setdefault(rank, ended)

    def _lost(self) -> set[int]:
        return set(self._means.members.replaced(self._agent_ids))

    def _watch_over(self, now: float) -> None:
        """Ask the watchdog, while every running rank has been heard just now."""
        heard = self._means.reach.reports
        running = [rank for rank in self._hosts if rank not in self._exits]
        fresh = [rank for rank in running if rank in heard and now - heard[rank].at < _FRESH_SECONDS]
        if fresh != running or any(heard[rank].report.incarnation != self.number for rank in running):
            return
        states = [_state(rank, heard[rank], now) for rank in running]
        for state in states:
            self._means.usual.observe(state, now)
        self._means.stragglers.observe([word for rank in running if (word := heard[rank].report.progress)])
        stall = judge(states, self._means.usual, self._means.job.spec.recovery.hang_after.seconds)
        if stall and self._stall is None:
            self._means.events.write("stalled", incarnation=self.number, rank=stall.rank, words=stall.words)
            self._writing_stacks = asyncio.create_task(self._write_stacks())
        if self._stall and stall is None:
            self._means.events.write("goesOn", incarnation=self.number)
        self._stall = stall

    async def _write_stacks(self) -> None:
        answers = await self._ask_all({"op": "stacks"}, ANSWER_SECONDS)
        parts = [
            f"rank {rank}: {answer['text'] if answer else 'its host did not answer'}\n"
            for rank, answer in sorted(answers.items())
        ]
        name = f"stacks-{self.number}-{time.strftime('%Y%m%dT%H%M%S')}.txt"
        (self._means.directory / LOGS / name).write_text("\n".join(parts), encoding="utf-8")
        self._means.events.write("stacks", incarnation=self.number, file=f"{LOGS}/{name}")

    async def _ask_all(self, request: Request, seconds: float) -> dict[int, Answer | None]:
        """Every host's answer, None where there is none. The leader's own host is asked without a way between."""

        async def ask(rank: int) -> Answer | None:
            try:
                if rank == 0:
                    return await self._means.host.answer(request)
                return await self._means.reach.ask(rank, request, seconds)
            except HandError as error:
                self._means.events.write("noAnswer", host=rank, op=request["op"], reason=error.reason)
                return None

        return dict(zip(self._hosts, await asyncio.gather(*map(ask, self._hosts)), strict=True))


def _state(rank: int, heard: Heard, now: float) -> RankState:
    progress: Any = heard.report.progress
    return RankState(
        rank=rank,
        phase=heard.report.phase,
        step=progress.step if progress else 0,
        dispatched=progress.dispatched if progress else 0,
        step_seconds=progress.step_seconds if progress else 0.0,
        idle_seconds=heard.report.age_seconds + now - heard.at,
        resting_seconds=heard.report.resting_seconds + now - heard.at,
        process_state=heard.report.process_state,
    )
