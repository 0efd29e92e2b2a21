"""The leader of a run, in the agent of host 0: brings the hosts together, starts attempts, and ends the run.

Everything that happens to a run passes here: hosts that come and go (`members.py`), the channel to them (`channel.py`),
attempts (`attempt.py`), and what a bad end costs (`budgets.py`). What a successor must know is in `leader.json` before
it is acted on.
"""

import asyncio
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from shardwise.job.spec import TrainingJob
from shardwise.launcher.agent.config import AgentConfig
from shardwise.launcher.agent.host import Host
from shardwise.launcher.leader.attempt import Attempt
from shardwise.launcher.leader.budgets import charge, wait_seconds
from shardwise.launcher.leader.causes import Ending, attribute
from shardwise.launcher.leader.channel import Channel, ChannelError
from shardwise.launcher.leader.context import Context
from shardwise.launcher.leader.decision import Action
from shardwise.launcher.leader.events import Events
from shardwise.launcher.leader.members import Members, host_names
from shardwise.launcher.leader.metrics_tail import MetricsTail
from shardwise.launcher.leader.publisher import LOOK_SECONDS, StatusPublisher
from shardwise.launcher.leader.result import complete_summary, failed, given_back, read_summary, saved
from shardwise.launcher.leader.state import LeaderState
from shardwise.launcher.leader.stragglers import Stragglers
from shardwise.launcher.leader.wait_for_hosts import hosts_are_there
from shardwise.launcher.leader.watchdog import Baseline
from shardwise.launcher.ray.rpc import CallError
from shardwise.launcher.system.tasks import cancel
from shardwise.protocol.contract import LEFT, Cause, ExitCode
from shardwise.protocol.leader_address import LeaderAddress
from shardwise.protocol.run_result import RunResult
from shardwise.protocol.run_status import RunPhase
from shardwise.protocol.takeover import next_attempt

_AGAIN_SECONDS = 1.0
_LINGER_SECONDS = 30.0
_MAX_REFUSED_ORDERS = 10
_WELL = {
    Action.COMPLETE: RunResult(code=ExitCode.OK, message="complete"),
    Action.SAVED: saved("saved and stopped"),
    Action.LEAVE: saved("stopped before the first step; there was nothing to save"),
}


class Leader:
    """The leader."""

    def __init__(self, config: AgentConfig, job: TrainingJob, host: Host) -> None:
        """Take the run over from its last leader, if it had one; start nothing yet."""
        self._config, self._job = config, job
        self._directory = Path(config.directory)
        self._summary_before = read_summary(self._directory)
        self._state = LeaderState(config)
        members, events = Members(config.num_hosts, host.agent_id), Events(self._directory)
        self._context = Context(
            config=config,
            job=job,
            host=host,
            members=members,
            channel=Channel(config, members, events, host.answer, self._state.record.session),
            metrics=MetricsTail(self._directory, self._state.record.metrics_offset),
            baseline=Baseline(),
            stragglers=Stragglers(),
            events=events,
            stop=asyncio.Event(),
        )
        self.publisher = StatusPublisher(self._context, self._state)
        self._refused = 0

    async def run(self) -> int:
        """Lead to the end of the run, or until this host leaves; return the exit code of the run, or `LEFT`."""
        if self._state.record.code is not None:
            return self._state.record.code  # the predecessor was killed after the end of the run
        own = LeaderAddress(run=self._config.run, agent_id=self._context.host.agent_id, address=self._config.listen)
        own.write(self._directory)
        reaching = asyncio.create_task(self._context.channel.run())
        showing = asyncio.create_task(self.publisher.run())
        leading = asyncio.create_task(self._lead())
        try:
            done, _ = await asyncio.wait((leading, showing, reaching), return_when=asyncio.FIRST_COMPLETED)
            result = leading.result() if leading in done else self._unreachable(done.pop())
            return await self._end(result) if result else await self._leave()
        finally:
            await cancel(leading, showing, reaching)

    async def _lead(self) -> RunResult | None:
        """Go from attempt to attempt; return the result of the run, or None if this host leaves before it."""
        if self._state.predecessor_ran and (result := await self._restart(self._lost_with_the_predecessor())):
            return result
        while not self._context.host.leaving.is_set():
            if result := await hosts_are_there(self._context, self._state):
                return result
            ended = await self._attempt()
            if isinstance(ended, RunResult):
                return ended
            if ended and (result := await self._restart(ended)):
                return result
        return None

    def _lost_with_the_predecessor(self) -> Ending:
        ending = attribute({}, [0], None, None)
        self._context.events.write("ended", attempt=self._state.over, **_facts(ending))
        return ending

    async def _attempt(self) -> RunResult | Ending | None:
        """Start all trainers, and see the attempt to its end; None if it could not be started."""
        if self._context.host.leaving.is_set():
            return None
        running = Attempt(await asyncio.to_thread(next_attempt, self._directory), self._context)
        self._state.begin(running)
        record = self._state.record
        fresh, deadline = record.fresh, self._context.deadline_seconds(record.began_at)
        try:
            await running.give_orders(
                fork=self._config.fork and fresh, step=self._config.step if fresh else None, deadline_seconds=deadline
            )
        except CallError as error:
            return await self._not_started(running, error)
        self._refused = 0
        self._context.events.write("attempt", attempt=running.number, sinceEndSeconds=self._state.since_end)
        action = await running.run()
        since = time.monotonic()
        self._state.over = running.number
        answers = await running.end()
        left = (
            action in (Action.SAVED, Action.LEAVE) and not self._context.stop.is_set() and bool(self._context.leaving)
        )
        self._state.end(well=action in _WELL and not left)
        if left:
            return self._left(running.number, _WELL[action].message)
        if action in _WELL:
            return _WELL[action]
        ending = await running.explain(since, answers)
        self._context.events.write("ended", attempt=running.number, **_facts(ending))
        return _stopped_badly(ending, stepped=running.stepped) if self._context.stop.is_set() else ending

    def _left(self, attempt: int, how: str) -> Ending:
        """Return the ending of an attempt for a host that goes away: the host is lost, but none of the work is."""
        hosts = self._context.leaving
        ending = Ending(cause=Cause.HOST_LOST, rank=hosts[0], exit=None, message=f"{host_names(hosts)} leaves; {how}")
        self._context.events.write("ended", attempt=attempt, **_facts(ending))
        return ending

    async def _not_started(self, running: Attempt, error: CallError) -> RunResult | None:
        self._refused += 1
        self._context.events.write("notStarted", attempt=running.number, reason=str(error))
        self._state.over = running.number
        await running.end()
        self._state.end(well=False)
        if self._refused == _MAX_REFUSED_ORDERS:
            return RunResult(code=ExitCode.FAILURE, message=f"no trainer could be started: {error}")
        await self._pause(_AGAIN_SECONDS)
        return None

    async def _restart(self, ending: Ending) -> RunResult | None:
        """Charge a bad end to its budget, and wait for the backoff; return a result if the budget is used up."""
        recovery, state = self._job.spec.recovery, self._state
        state.phase, state.reason = RunPhase.RECOVERING, ending.message
        record = state.record
        committed = max(record.used.committed, self._context.metrics.committed)
        used = charge(record.used, ending.cause, restarts=recovery.restarts, committed=committed)
        if used is None:
            return failed(ending)
        restarts = {**record.restarts, ending.cause: record.restarts.get(ending.cause, 0) + 1}
        state.note(used=used, restarts=restarts)
        wait = wait_seconds(used, ending.cause, recovery.backoff.seconds)
        self._context.events.write("restarting", cause=ending.cause, message=ending.message, waitSeconds=wait)
        await self._pause(wait)
        return None

    async def _pause(self, seconds: float) -> None:
        """Wait, but no longer than until a stop is asked for, or this host leaves."""
        waits = [asyncio.create_task(event.wait()) for event in (self._context.stop, self._context.host.leaving)]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        await cancel(*waits)

    def _unreachable(self, task: "asyncio.Task[Any]") -> RunResult:
        """Return the result if Ray does not start: on one machine a failure, in a cluster other hosts may do better."""
        try:
            task.result()
        except ChannelError as error:
            if self._config.one_machine:
                return RunResult(code=ExitCode.FAILURE, message=str(error))
            return given_back(str(error))
        raise AssertionError("a task that never ends has ended")

    async def _end(self, result: RunResult) -> int:
        """Leave the result: in the run directory, in the status, and in the answers to the followers."""
        record, context = self._state.record, self._context
        phases = {**record.phases, "ray": context.channel.seconds}
        added = {
            "hosts": self._config.num_hosts,
            "restarts": record.restarts,
            "attempts": 0 if record.attempt is None else record.attempt + 1,
            "goodput": self._state.goodput(context.metrics.lost_seconds),
            "launcherPhases": {name: round(seconds, 3) for name, seconds in phases.items()},
        }
        complete_summary(self._directory, self._summary_before, self._job.metadata.name, result, added)
        context.events.write(
            "done", **result.model_dump(mode="json"), restarts=record.restarts, used=record.used.counts
        )
        self._state.note(result=result, running=False)
        self._state.code = result.code
        self.publisher.look()
        await self._linger(range(1, self._config.num_hosts))
        return result.code

    async def _leave(self) -> int:
        """Leave the run to this host's successor, which goes on from the record; hosts that leave too are let go."""
        self._context.events.write("left", host=0)
        self._state.note(running=False, led=False)
        await self._linger(self._context.members.leaving())
        return LEFT

    async def _linger(self, hosts: Collection[int]) -> None:
        """Wait until those of these hosts that live have been answered after this moment."""
        since = time.monotonic()
        while (now := time.monotonic()) - since < _LINGER_SECONDS:
            if not set(hosts) & set(self._context.members.not_polled_since(since, now)):
                break
            await asyncio.sleep(LOOK_SECONDS)


def _stopped_badly(ending: Ending, *, stepped: bool) -> RunResult:
    """Return the result of a run whose trainers failed when they were asked to stop."""
    if ending.cause != Cause.BAD_INPUT and not stepped:
        return saved(f"stopped before the first step; {ending.message}")
    return failed(ending, f"{ending.message}, when it was asked to stop")


def _facts(ending: Ending) -> dict[str, Any]:
    how = ending.exit.message if ending.exit else None
    return {"cause": ending.cause, "rank": ending.rank, "exit": how, "message": ending.message}
