"""One start of all trainers of a run: their orders, the watch over them while they run, and their end.

The leader makes one attempt after the other. What to do next with a running one is decided in `decision.py`.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress

from shardwise.launcher.leader.causes import Ending, attribute, follows_from_a_peer
from shardwise.launcher.leader.channel import ReceivedReport
from shardwise.launcher.leader.decision import Action, Observed, decide
from shardwise.launcher.leader.orders import orders_of
from shardwise.launcher.leader.program_exits import understood
from shardwise.launcher.leader.stacks import write_stacks
from shardwise.launcher.leader.state import LeaderState
from shardwise.launcher.leader.stop import Stop
from shardwise.launcher.leader.watchdog import RankState, Watch
from shardwise.launcher.ray.rpc import CallError
from shardwise.protocol.contract import Progress
from shardwise.protocol.report import Exit
from shardwise.protocol.requests import Done, Ended, EndTrainer, StartTrainer
from shardwise.protocol.storage import may_pass

LOOK_SECONDS = 0.25
_FRESH_SECONDS = 3.0
_END_SECONDS = 10.0
_SETTLE_SECONDS = 0.05
_SILENT_START_SECONDS = 15.0  # longer than most programs take to import what they need and to call init()
_CHANNEL_SECONDS = 20.0  # a few times what Ray takes to start, and the next attempt waits for that in any case


class Attempt:
    """The trainers of one attempt; rank N runs on host N. `progress` is the last record of each that was heard."""

    def __init__(self, number: int, state: LeaderState) -> None:
        """Prepare an attempt; no trainer has its orders yet."""
        self.number, self._state = number, state
        self._runs_program = state.job.spec.program is not None
        self._hosts = range(state.config.num_hosts)
        self._agent_ids = state.channel.agent_ids
        self._stop = Stop(number, state.channel)
        self._looked_at = self._ordered_at = time.monotonic()
        self._watch = Watch()
        self._writing_stacks: asyncio.Task[None] | None = None
        self._exits: dict[int, Exit] = {}
        self._unheard: list[int] = []  # the hosts that had been silent for too long at the last look
        self._step = self._unheeded_steps = 0
        self.progress: dict[int, Progress] = {}

    @property
    def stalled(self) -> bool:
        """Whether no rank makes progress at the moment."""
        return self._watch.stall is not None

    @property
    def stepped(self) -> bool:
        """Whether a step of this attempt was completed."""
        return self._state.metrics.attempt == self.number and self._state.metrics.stepped

    @property
    def silent(self) -> bool:
        """Whether a program runs that has not reported its progress."""
        return self._runs_program and not self.progress

    @property
    def started(self) -> bool:
        """Whether the run is under way: by a step, or since a silent program may be expected to take some."""
        return self.stepped or (self.silent and time.monotonic() - self._ordered_at > _SILENT_START_SECONDS)

    @property
    def _overdue(self) -> bool:
        """Whether a program has passed the deadline, which a trainer looks after itself."""
        return self._runs_program and self._state.deadline_seconds == 0.0

    async def give_orders(self) -> None:
        """Give every trainer its orders; raise CallError if a host cannot be reached or cannot start its trainer.

        Neither can this host while its volume does not give it what the last attempt has saved.
        """
        state = self._state
        state.baseline.restarted()
        state.stragglers.restarted()
        try:
            await state.metrics.read_all()  # what the last attempt wrote while it ended: what it saved is in the orders
        except OSError as error:
            if not may_pass(error):
                raise
            raise CallError(0, str(error)) from error
        orders = orders_of(self.number, state)

        async def start(rank: int) -> None:
            await state.channel.ask(rank, StartTrainer(orders=orders(rank)), Done)

        await start(0)  # first, because it serves the coordinator that the others connect to
        await asyncio.gather(*(start(rank) for rank in self._hosts[1:]))

    async def run(self) -> Action:
        """Watch over the trainers until the attempt has to end; return the action that ends it."""
        try:
            while (action := decide(self._observe())) in (Action.STOP, Action.WAIT):
                if action == Action.STOP:
                    await self._stop.send()
                await self._wait_for_change()
        finally:
            await self._stop.close()
        if self._writing_stacks:
            await self._writing_stacks  # the stacks show a hang only while its processes are alive
        return action

    async def end(self) -> dict[int, Ended | None]:
        """End every trainer that still runs; return each host's answer, None if it gave none."""
        answers = await self._state.channel.ask_all(EndTrainer(), Ended, _END_SECONDS)
        for rank, answer in answers.items():
            if answer:
                self._state.members.answered(rank, answer.agent_id, time.monotonic())
                self._take_exit(rank, answer.exit)
        self._take_own_progress()
        return answers

    async def explain(self, since: float, answers: Mapping[int, Ended | None]) -> Ending:
        """Return the cause of a bad end at `since` (monotonic seconds)."""
        members = self._state.members
        # A trainer whose peer's host is gone fails seconds before that host is missed, and then looks like the cause
        # itself. So wherever a peer's end may be behind it, give every host the time for a sign of life after `since`.
        doubtful = None in answers.values() or any(follows_from_a_peer(ended) for ended in self._exits.values())
        deadline = since + members.sign_of_life_seconds
        while doubtful and members.silent_since(since) and time.monotonic() < deadline:  # noqa: ASYNC110  a bound too
            await asyncio.sleep(_SETTLE_SECONDS)
        # All hosts live, but what ended a trainer may have ended its host's part of Ray too, and with that the answer
        # that shows how the trainer ended.
        if doubtful and not members.silent_since(since):
            answers = await self._ask_again(answers)
        # An answer from another agent is from a new pod or process, which knows nothing of the trainer that ran there.
        strangers = [rank for rank, answer in answers.items() if answer and answer.agent_id != self._agent_ids[rank]]
        missed = members.silent_since(since) if doubtful else []
        lost = {*self._lost(), *strangers, *missed}
        stall = self._watch.stall
        hang = stall if stall and stall.hung else None
        return attribute(self._exits, lost, hang.message if hang else None, hang.rank if hang else None)

    async def _ask_again(self, answers: Mapping[int, Ended | None]) -> Mapping[int, Ended | None]:
        """Complete the answers: from the hosts' polls, and by the next Ray session, which the channel opens by itself.

        Where a host has no memory left, Ray may not come back for minutes; its agent polls nevertheless.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_CHANNEL_SECONDS):
                while self._unexplained(answers) and not self._lost():
                    if self._state.channel.ready.is_set():
                        answers = {**answers, **{rank: each for rank, each in (await self.end()).items() if each}}
                    await asyncio.sleep(LOOK_SECONDS)
        return answers

    def _unexplained(self, answers: Mapping[int, Ended | None]) -> list[int]:
        """Take the exits that polls report for hosts that have not answered; return the ranks still unexplained."""
        silent = [rank for rank, answer in answers.items() if answer is None]
        polled = self._state.members.ended()
        for rank in silent:
            self._take_exit(rank, polled.get(rank))
        return [rank for rank in silent if rank not in self._exits]

    async def _wait_for_change(self) -> None:
        """Wait for a new report, but no longer than until the next look is due."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await self._state.channel.changed.wait()
        self._state.channel.changed.clear()

    def _observe(self) -> Observed:
        now = time.monotonic()
        # After such a gap this process itself did not run (SIGSTOP, a machine without a free core). What the hosts have
        # sent meanwhile is still unread, so their silence proves nothing.
        if now - self._looked_at > 4 * LOOK_SECONDS:
            self._state.members.discount_pause(now - self._looked_at, now)
        self._looked_at = now
        self._state.metrics.read()
        for rank, received in self._state.channel.reports.items():
            self._take_report(rank, received)
        self._take_own_progress()
        self._notice_step(now)
        self._watch_over(now)
        self._unheard = self._state.members.lost(now)
        return Observed(
            num_hosts=len(self._hosts),
            exits=self._exits,
            lost=self._lost(),
            hung=self._watch.stall is not None and self._watch.stall.hung,
            stop_asked=self._state.stop.is_set() or bool(self._state.leaving) or self._overdue,
            stopping_seconds=None if self._stop.sent_at is None else now - self._stop.sent_at,
            stepped=self.stepped,
            silent=self.silent,
            unheeded_steps=self._unheeded_steps,
        )

    def _take_own_progress(self) -> None:
        """Take the progress of this host's trainer, which the channel brings a moment later."""
        report = self._state.host.report()
        if report.attempt == self.number and report.progress:
            self.progress[0] = report.progress

    def _notice_step(self, now: float) -> None:
        """Tell the members of a completed step of this host's trainer."""
        own = self.progress.get(0)
        if own and own.step > self._step:
            self._step = own.step
            self._unheeded_steps += self._runs_program and self._stop.sent_at is not None
            # Every host took part in it some time after it began, so that is when all of them were surely alive.
            self._state.members.stepped(now - own.step_seconds)

    def _take_report(self, rank: int, received: ReceivedReport) -> None:
        report = received.report
        if report.stop_asked:
            self._state.ask_stop()
        if report.attempt != self.number:
            return  # it was sent before the host got these orders
        if report.progress:
            self.progress[rank] = report.progress
        self._take_exit(rank, report.exit)

    def _take_exit(self, rank: int, ended: Exit | None) -> None:
        if ended and ended.attempt == self.number:  # the first one counts: it is from before the leader ended anything
            stopping = self._runs_program and self._stop.sent_at is not None
            self._exits.setdefault(rank, understood(ended, self.progress.get(rank)) if stopping else ended)

    def _lost(self) -> set[int]:
        # What was unheard stays lost: the attempt has ended for it, and where it answers again nothing else explains.
        return {*self._unheard, *self._state.members.replaced(self._agent_ids)}

    def _watch_over(self, now: float) -> None:
        """Let the watchdog judge the running ranks, if there is a fresh report of each."""
        reports = self._state.channel.reports
        running = [rank for rank in self._hosts if rank not in self._exits]
        fresh = [rank for rank in running if rank in reports and now - reports[rank].at < _FRESH_SECONDS]
        # A missing report is a matter of the channel, not of the trainers: without it a hang cannot be known.
        if fresh != running or any(reports[rank].report.attempt != self.number for rank in running):
            return
        states = [RankState.of(rank, reports[rank].report, now - reports[rank].at) for rank in running]
        for state in states:
            self._state.baseline.observe(state, now)
        self._state.stragglers.observe([each for rank in running if (each := reports[rank].report.progress)])
        before, limit = self._watch.stall, self._state.job.spec.recovery.hang_after.seconds
        stall = self._watch.judge(states, self._state.baseline, limit, now)
        if stall and before is None:
            self._state.events.write("stalled", attempt=self.number, rank=stall.rank, message=stall.message)
            self._writing_stacks = asyncio.create_task(write_stacks(self.number, self._state))
        if before and stall is None:
            self._state.events.write("goesOn", attempt=self.number)
