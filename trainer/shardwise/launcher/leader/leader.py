"""The leader of a run, in the agent of host 0: brings the hosts together, starts attempts, and ends the run.

Everything that happens to a run passes here: hosts that come and go (`members.py`), the channel to them (`channel.py`),
attempts (`attempt.py`), and what a bad end costs (`budgets.py`). What a successor must know is in `leader.json` before
it is acted on.
"""

import asyncio
import time
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from shardwise.job.spec import TrainingJob
from shardwise.launcher.agent.config import AgentConfig
from shardwise.launcher.agent.host import Host
from shardwise.launcher.leader import old_logs
from shardwise.launcher.leader.attempt import Attempt
from shardwise.launcher.leader.budgets import charge, left, wait_seconds
from shardwise.launcher.leader.causes import Ending, attribute, or_by_leaving
from shardwise.launcher.leader.channel import ChannelError
from shardwise.launcher.leader.decision import Action
from shardwise.launcher.leader.events import host_times
from shardwise.launcher.leader.good_end import result_of
from shardwise.launcher.leader.members import host_names
from shardwise.launcher.leader.publisher import LOOK_SECONDS, StatusPublisher
from shardwise.launcher.leader.result import (
    complete_summary,
    failed,
    hosts_released,
    read_summary,
    saved,
    stopped_badly,
)
from shardwise.launcher.leader.state import LeaderState
from shardwise.launcher.leader.wait_for_hosts import hosts_are_there
from shardwise.launcher.ray.rpc import CallError
from shardwise.launcher.system.tasks import cancel
from shardwise.protocol.contract import HOST_LEFT, Cause, ExitCode
from shardwise.protocol.errors import StorageError
from shardwise.protocol.leader_address import LeaderAddress
from shardwise.protocol.leader_record import RunResult, Used
from shardwise.protocol.storage import reason_may_pass, with_retries
from shardwise.protocol.takeover import next_attempt

if TYPE_CHECKING:  # only pods with a bucket need it, and what it stands on
    from shardwise.launcher.agent.run_copy import RunCopy

_AGAIN_SECONDS = 1.0
_LINGER_SECONDS = 30.0
_MAX_REFUSED_ORDERS = 10


class Leader:
    """Leads one run: attempt after attempt, until a result or until this host leaves."""

    def __init__(self, config: AgentConfig, job: TrainingJob, host: Host, copy: "RunCopy | None") -> None:
        """Take the run over from its last leader, if it had one; start nothing yet."""
        self._state = LeaderState(config, job, host, copy)
        self._summary_before = read_summary(self._state.directory)
        self.publisher = StatusPublisher(self._state)
        self._refused = 0

    async def run(self) -> int:
        """Lead to the end of the run, or until this host leaves; return the exit code of the run, or `HOST_LEFT`."""
        state = self._state
        if state.record.code is not None:
            return state.record.code  # the predecessor was killed after the end of the run
        own = LeaderAddress(run=state.config.run, agent_id=state.host.agent_id, address=state.config.listen)
        own.write(state.directory)
        state.note()  # what a predecessor that lives would write next is then not what it knows
        await state.keep(must=True)
        reaching = asyncio.create_task(state.channel.run())
        showing = asyncio.create_task(self.publisher.run())
        leading = asyncio.create_task(self._lead())
        parts: list[asyncio.Task[Any]] = [leading, showing, reaching]
        if state.copy:
            parts.append(asyncio.create_task(state.copy.run()))
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            result = leading.result() if leading in done else self._unreachable(done.pop())
            return await self._end(result) if result else await self._leave()
        finally:
            await cancel(*parts)

    async def _lead(self) -> RunResult | None:
        """Go from attempt to attempt; return the result of the run, or None if this host leaves before it."""
        if self._state.predecessor_ran:
            lost = self._noted(attribute({}, [0], None, None))
            if self._state.stop.is_set():  # the trainers ended with the predecessor, while they were to save
                return saved(f"stopped, but the last save may be missing: {lost.message}")
            if result := await self._restart(lost):
                return result
        while not self._state.host.leaving.is_set():
            if result := await hosts_are_there(self._state):
                return result
            ended = await self._attempt()
            if isinstance(ended, RunResult):
                return ended
            if ended and (result := await self._restart(ended)):
                return result
        return None

    async def _attempt(self) -> RunResult | Ending | None:
        """Start all trainers, and see the attempt to its end; None if it could not be started."""
        state = self._state
        if state.host.leaving.is_set():
            return None
        try:
            number = await asyncio.to_thread(next_attempt, state.directory, state.say)
        except StorageError as error:
            return self._noted(Ending(cause=Cause.STORAGE, rank=None, exit=None, message=str(error)))
        state.begin(running := Attempt(number, state))
        await state.keep(must=True)  # from here on a leader that was taken over starts no attempt
        await asyncio.to_thread(old_logs.remove, state.directory, running.number)
        if state.copy:
            await asyncio.to_thread(state.copy.remove_below, old_logs.in_bucket(running.number))
        try:
            await running.give_orders()
        except CallError as error:
            return await self._not_started(running, error)
        self._refused = 0
        state.events.write("attempt", attempt=running.number, sinceEndSeconds=state.since_end)
        action = await running.run()
        since, gone = time.monotonic(), state.leaving
        state.over = running.number
        answers = await running.end()
        state.events.write("hosts", attempt=running.number, hosts=host_times(running.progress))
        well = await result_of(action, running, state)
        leaving = state.leaving if well and action != Action.COMPLETE and not state.stop.is_set() else []
        if state.leaving:
            await state.keep()  # before they may go: their last records tell of the save
        state.end(well=well is not None and not leaving)
        if well and leaving:  # hosts are lost, but none of the work is
            message = f"{host_names(leaving)} leaves; {well.message}"
            return self._noted(Ending(cause=Cause.HOST_LOST, rank=leaving[0], exit=None, message=message))
        if well:
            return well
        ending = await running.explain(since, answers)
        ending = self._noted(ending if running.stepped else or_by_leaving(ending, gone))
        allowed = self._charged(ending) is not None
        return stopped_badly(ending, stepped=running.stepped, restarts=allowed) if state.stop.is_set() else ending

    def _noted(self, ending: Ending) -> Ending:
        """Write the event of a bad end."""
        how = ending.exit.message if ending.exit else None
        facts = {"cause": ending.cause, "rank": ending.rank, "exit": how, "message": ending.message}
        self._state.events.write("ended", attempt=self._state.over, **facts)
        return ending

    async def _not_started(self, running: Attempt, error: CallError) -> RunResult | Ending | None:
        """Return what it costs that a host could not start its trainer; None if it is just tried again."""
        self._refused += 1
        self._state.events.write("notStarted", attempt=running.number, reason=str(error))
        self._state.over = running.number
        await running.end()
        self._state.end(well=False)
        if reason_may_pass(error.reason):
            message = f"no trainer could be started: {error}"
            return self._noted(Ending(cause=Cause.STORAGE, rank=error.host, exit=None, message=message))
        if self._refused == _MAX_REFUSED_ORDERS:
            return RunResult(code=ExitCode.FAILURE, message=f"no trainer could be started: {error}")
        await self._pause(_AGAIN_SECONDS)
        return None

    async def _restart(self, ending: Ending) -> RunResult | None:
        """Charge a bad end to its budget, and wait for the backoff; return a result if the budget is used up."""
        state, recovery = self._state, self._state.job.spec.recovery
        restarts = state.record.restarts
        used = self._charged(ending)
        if used is None:
            return failed(ending)
        state.recovers(ending.message, left(used, ending.cause, recovery.restarts))
        state.note(used=used, restarts={**restarts, ending.cause: restarts.get(ending.cause, 0) + 1})
        await state.keep()
        wait = wait_seconds(used, ending.cause, recovery.backoff.seconds)
        state.events.write("restarting", cause=ending.cause, message=ending.message, waitSeconds=wait)
        await self._pause(wait)
        return None

    def _charged(self, ending: Ending) -> Used | None:
        """Return what is used up after one more restart for a bad end; None if its budget does not allow it."""
        self._state.note_way_back()
        state, before = self._state, self._state.record.used
        committed = max(before.committed, state.metrics.committed)
        return charge(before, ending.cause, restarts=state.job.spec.recovery.restarts, committed=committed)

    async def _pause(self, seconds: float) -> None:
        """Wait, but no longer than until a stop is asked for, or this host leaves."""
        waits = [asyncio.create_task(event.wait()) for event in (self._state.stop, self._state.host.leaving)]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        await cancel(*waits)

    def _unreachable(self, task: "asyncio.Task[Any]") -> RunResult:
        """Return the result if Ray does not start: on one machine a failure, in a cluster other hosts may do better."""
        try:
            task.result()
        except ChannelError as error:
            if self._state.config.one_machine:
                return RunResult(code=ExitCode.FAILURE, message=str(error))
            return hosts_released(str(error))
        raise AssertionError("a task that never ends has ended")

    async def _end(self, result: RunResult) -> int:
        """Leave the result: in the run directory, in the status, and in the answers to the followers."""
        state, record = self._state, self._state.record
        phases = {**record.phases, "ray": state.channel.seconds}
        added = {
            "hosts": state.config.num_hosts,
            "restarts": record.restarts,
            "attempts": 0 if record.attempt is None else record.attempt + 1,
            "goodput": state.goodput,
            "launcherPhases": {name: round(seconds, 3) for name, seconds in phases.items()},
        }
        complete = partial(
            complete_summary, state.directory, self._summary_before, state.job.metadata.name, result, added
        )
        await asyncio.to_thread(with_retries, complete)  # without it the run would have to reach its end once more
        outcome = result.model_dump(mode="json")
        state.events.write("done", **outcome, restarts=record.restarts, used=record.used.counts)
        state.note(result=result, running=False)
        await state.keep()
        state.code = result.code
        self.publisher.look()
        await self._linger(range(1, state.config.num_hosts))
        return result.code

    async def _leave(self) -> int:
        """Leave the run to this host's successor, which goes on from the record; hosts that leave too are let go."""
        self._state.events.write("left", host=0)
        self._state.note(running=False, led=False)
        await self._state.keep()
        await self._linger(self._state.members.leaving())
        return HOST_LEFT

    async def _linger(self, hosts: Collection[int]) -> None:
        """Wait until those of these hosts that live have been answered after this moment."""
        since = time.monotonic()
        while (now := time.monotonic()) - since < _LINGER_SECONDS:
            if not set(hosts) & set(self._state.members.not_polled_since(since, now)):
                break
            await asyncio.sleep(LOOK_SECONDS)
