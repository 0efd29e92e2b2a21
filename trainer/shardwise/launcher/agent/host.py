"""One host's trainer and its standby: the requests that an agent serves, and its reports.

`agent_main.py` serves `answer` on the agent's unix socket. Nothing is decided here about the run; the leader does that.
"""

import asyncio
import contextlib
import os
import secrets
import time

from shardwise.job.spec import TrainingJob
from shardwise.launcher.agent.activity import Activity
from shardwise.launcher.agent.config import AgentConfig, stacks_of
from shardwise.launcher.agent.progress_file import ProgressFile
from shardwise.launcher.agent.standby import Standbys
from shardwise.launcher.agent.trainer import StuckError, Trainer
from shardwise.launcher.system import processes
from shardwise.protocol.contract import ExitCode, Phase, Progress
from shardwise.protocol.orders import Orders
from shardwise.protocol.report import Exit, Report
from shardwise.protocol.requests import (
    Done,
    Ended,
    EndTrainer,
    ReadStacks,
    Request,
    SignalTrainer,
    Stacks,
    StartTrainer,
    Watch,
)

_LOOK_SECONDS = 0.05
_REAP_SECONDS = 1.0
_STEP_NEWS_SECONDS = 0.25
_DEVICE_FAILURES = 2
"""So often the devices of a host in a cluster fail before its pod goes to another node: once may be chance."""


class Host:
    """One host: its trainer, the one on standby, and what it reports.

    Args:
        config: the agent's.
        job: determines a trainer's environment.

    """

    def __init__(self, config: AgentConfig, job: TrainingJob) -> None:
        """Start nothing yet."""
        self._config = config
        self.agent_id = secrets.token_hex(8)
        self._progress_file = ProgressFile(config.progress)
        self._trainer: Trainer | None = None
        self._standbys = Standbys(config, job)
        self._runs_program = job.spec.program is not None
        self._activity = Activity(time.monotonic(), is_program=self._runs_program)
        self._exit: Exit | None = None
        self._ended: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self._stuck, self._device_failures = "", list[int]()
        self._progress: Progress | None = None
        self._told_at, self._version = 0.0, 0
        self._news = asyncio.Event()
        self.stop_asked = False
        self.leaving = asyncio.Event()

    async def run(self) -> None:
        """Have a trainer stand by, and look at the running one until cancelled."""
        await self._keep_standby()
        reaped_at = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._trainer and self._exit is None:
                await self._look()
            if time.monotonic() - reaped_at > _REAP_SECONDS:
                if self._trainer:
                    self._activity.observe(self._trainer, self._progress, time.monotonic())
                processes.reap_orphans()
                reaped_at = time.monotonic()

    async def answer(self, request: Request) -> Done | Ended | Stacks | Report:
        """Serve a request; OSError if that cannot be done."""
        match request:
            case StartTrainer(orders=orders):
                await self._start(self._config.own(orders))
                return Done()
            case EndTrainer():
                await self.end()
                return Ended(agent_id=self.agent_id, exit=self._exit)
            case SignalTrainer(word=word, attempt=attempt):
                # Before its first report a trainer handles no signals, and would be ended by them.
                if self._trainer and self._exit is None and (self._progress or word == "stop"):
                    self._trainer.ask(word, attempt)
                return Done()
            case ReadStacks():
                return Stacks(text=await self._stacks())
            case Watch(after=after, seconds=seconds):
                return await self._watch(after, seconds)

    def ask_stop(self) -> None:
        """Report to the leader that this agent was sent SIGTERM."""
        self.stop_asked = True
        self._tell()

    def leave(self) -> None:
        """Note that this host is about to go away; the run goes on when another replaces it."""
        self.leaving.set()

    @property
    def ready(self) -> bool:
        """Return whether this host's trainer has joined the others, or its program runs; from any thread."""
        progress = self._progress
        joined = progress is not None and progress.phase not in (Phase.START, Phase.JOIN)
        # Whether a program joins others, and when, is its own affair.
        return self._exit is None and (self._trainer is not None if self._runs_program else joined)

    @property
    def stuck(self) -> str:
        """Return why this host can start no trainer: one survives SIGKILL, or its devices fail; "" if it can."""
        if self._trainer and self._trainer.alive:
            return self._stuck
        # On one machine there is no other node for its pod, and the leader tries on within the budget.
        if self._config.one_machine or len(self._device_failures) < _DEVICE_FAILURES:
            return ""
        return f"its devices have failed in attempts {', '.join(map(str, self._device_failures))}"

    async def end(self) -> None:
        """End the trainer and wait until it is gone, or it shows that it is stuck."""
        async with self._changing:
            await self._end_trainer()

    async def end_up_to(self, attempt: int) -> None:
        """End the trainer if its attempt is over."""
        trainer = self._trainer
        if trainer and trainer.orders.attempt <= attempt and self._exit is None:
            await self.end()

    async def close(self) -> None:
        """End all of this host's trainers."""
        await self.end()
        await self._standbys.dismiss()
        if self._trainer:
            self._trainer.close()
            self._trainer = None

    def report(self) -> Report:
        """Return the report of this host now."""
        running = self._trainer if self._trainer and self._exit is None else None
        orders = self._trainer.orders if self._trainer else None
        now = time.monotonic()
        return Report(
            version=self._version,
            host=self._config.host,
            agent_id=self.agent_id,
            agent_pid=os.getpid(),
            trainer_pid=running.pid if running else None,
            attempt=orders.attempt if orders else None,
            progress=self._progress,
            age_seconds=self._activity.age_seconds(self._progress, now) if orders else 0.0,
            resting_seconds=self._activity.resting_seconds(now) if running else 0.0,
            process_state=running.state if running else "",
            exit=self._exit,
            standby=self._standbys.ready,
            stop_asked=self.stop_asked,
        )

    async def _start(self, orders: Orders) -> None:
        async with self._changing:
            await self._end_trainer()
            if self.stuck:
                raise StuckError(self.stuck)
            before, self._trainer = self._trainer, None  # what follows may fail, and is tried again from here
            if before:
                before.close()
            self._progress_file.clear()
            self._progress = self._exit = None
            self._trainer = await self._standbys.give(orders)
            self._activity = Activity(time.monotonic(), is_program=self._runs_program)
            self._ended = asyncio.create_task(self._await_end(self._trainer))
        self._tell()

    async def _end_trainer(self) -> None:
        if self._trainer and self._ended and not self.stuck:
            try:
                await self._trainer.end()
            except StuckError as error:
                self._stuck = str(error)
            else:
                await self._ended

    async def _await_end(self, trainer: Trainer) -> None:
        ended = await trainer.wait()
        if self._runs_program:
            await trainer.end_family()
        self._read_progress()
        self._exit = ended
        if ended.code == ExitCode.DEVICE:
            self._device_failures.append(trainer.orders.attempt)
        self._tell()

    async def _keep_standby(self) -> None:
        async with self._changing:
            await self._standbys.keep()
        self._tell()

    async def _look(self) -> None:
        before, now = self._progress, self._read_progress()
        if now is None:
            return
        if before is None or before.phase != now.phase or time.monotonic() - self._told_at >= _STEP_NEWS_SECONDS:
            self._tell()
        if now.step_seconds > 0 and not self._standbys.alive:
            await self._keep_standby()

    def _read_progress(self) -> Progress | None:
        """Read the trainer's progress record if it has changed since the last look."""
        read = self._progress_file.read(self._trainer) if self._trainer else None
        self._progress = read or self._progress
        return read

    def _tell(self) -> None:
        self._version += 1
        self._told_at = time.monotonic()
        self._news.set()
        self._news = asyncio.Event()

    async def _watch(self, after: int, wait_seconds: float) -> Report:
        if self._version == after:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    await self._news.wait()
        return self.report()

    async def _stacks(self) -> str:
        if self._trainer is None or self._exit is not None:
            return "no trainer runs here\n"
        if self._progress is None:
            silence = "it reports nothing" if self._runs_program else "it has its orders and still imports"
            return f"process {self._trainer.pid}, state {self._trainer.state}: {silence}\n"
        return await self._trainer.stacks(stacks_of(self._config.scratch, self._config.host))
