"""The leader of a run, in the agent of host 0: brings the hosts together, starts incarnations, and has the last word.

Called by `agent.py`. Everything that happens to a run passes here: hosts that come and go (`members.py`), the way to
them (`reach.py`), incarnations (`incarnation.py`), and what a bad end costs (`budgets.py`). What a successor must know
is in `gang.json` before it is acted on.
"""

import asyncio
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from shardwise.job.contract import Cause, ExitCode
from shardwise.job.spec import TrainingJob
from shardwise.job.takeover import next_incarnation
from shardwise.launcher.board import LOOK_SECONDS, Board
from shardwise.launcher.budgets import charge, wait_seconds
from shardwise.launcher.causes import Ending, attribute
from shardwise.launcher.config import AgentConfig
from shardwise.launcher.decision import Action
from shardwise.launcher.gathering import hosts_are_there
from shardwise.launcher.hand import HandError
from shardwise.launcher.host import Host
from shardwise.launcher.incarnation import Incarnation
from shardwise.launcher.last_word import LEFT, LastWord, complete_summary, given_back, read_summary, saved
from shardwise.launcher.means import Means
from shardwise.launcher.members import Members, named
from shardwise.launcher.metrics_tail import MetricsTail
from shardwise.launcher.reach import Reach, ReachError
from shardwise.launcher.record import Events
from shardwise.launcher.shared import Word
from shardwise.launcher.standing import Standing
from shardwise.launcher.status import RunPhase
from shardwise.launcher.stragglers import Stragglers
from shardwise.launcher.tasks import cancel
from shardwise.launcher.watchdog import Usual

_AGAIN_SECONDS = 1.0
_LINGER_SECONDS = 30.0
_MAX_REFUSED_ORDERS = 10
_WELL = {
    Action.COMPLETE: LastWord(code=ExitCode.OK, words="complete"),
    Action.SAVED: saved("saved and stopped"),
    Action.LEAVE: saved("stopped before the first step; there was nothing to save"),
}


class Gang:
    """The leader."""

    def __init__(self, config: AgentConfig, job: TrainingJob, host: Host) -> None:
        """Take the run over from whoever led it; nothing is started yet."""
        self._config, self._job = config, job
        self._directory = Path(config.directory)
        self._summary_before = read_summary(self._directory)
        self._standing = Standing(config)
        members, events = Members(config.num_hosts, host.agent_id), Events(self._directory)
        self._means = Means(
            config=config,
            job=job,
            host=host,
            members=members,
            reach=Reach(config, members, events, host.answer, self._standing.record.epoch),
            metrics=MetricsTail(self._directory, self._standing.record.metrics_offset),
            usual=Usual(),
            stragglers=Stragglers(),
            events=events,
            stop=asyncio.Event(),
        )
        self.board = Board(self._means, self._standing)
        self._refused = 0

    async def run(self) -> int:
        """Lead to the last word, or until this host leaves; the exit code of the run, or `LEFT`."""
        if self._standing.record.code is not None:
            return self._standing.record.code  # the predecessor was killed after its last word
        own = Word(run=self._config.run, agent_id=self._means.host.agent_id, address=self._config.listen)
        own.leave(self._directory)
        reaching = asyncio.create_task(self._means.reach.run())
        showing = asyncio.create_task(self.board.run())
        leading = asyncio.create_task(self._lead())
        try:
            done, _ = await asyncio.wait((leading, showing, reaching), return_when=asyncio.FIRST_COMPLETED)
            word = leading.result() if leading in done else self._unreachable(done.pop())
            return await self._end(word) if word else await self._leave()
        finally:
            await cancel(leading, showing, reaching)

    async def _lead(self) -> LastWord | None:
        """From incarnation to incarnation; the last word, or None where this host leaves before it."""
        if self._standing.predecessor_ran and (word := await self._restart(self._lost_with_the_predecessor())):
            return word
        while not self._means.host.leaving.is_set():
            if word := await hosts_are_there(self._means, self._standing):
                return word
            ended = await self._incarnation()
            if isinstance(ended, LastWord):
                return ended
            if ended and (word := await self._restart(ended)):
                return word
        return None

    def _lost_with_the_predecessor(self) -> Ending:
        ending = attribute({}, [0], None, None)
        self._means.events.write("ended", incarnation=self._standing.over, **_facts(ending))
        return ending

    async def _incarnation(self) -> LastWord | Ending | None:
        """One start of all trainers, to its end; None where it came to no start."""
        if self._means.host.leaving.is_set():
            return None
        running = Incarnation(await asyncio.to_thread(next_incarnation, self._directory), self._means)
        self._standing.begin(running)
        record = self._standing.record
        fresh, deadline = record.fresh, self._means.deadline_seconds(record.began_at)
        try:
            await running.give_orders(
                fork=self._config.fork and fresh, step=self._config.step if fresh else None, deadline_seconds=deadline
            )
        except HandError as error:
            return await self._not_started(running, error)
        self._refused = 0
        self._means.events.write("incarnation", incarnation=running.number, sinceEndSeconds=self._standing.since_end)
        action = await running.run()
        since = time.monotonic()
        self._standing.over = running.number
        answers = await running.end()
        left = action in (Action.SAVED, Action.LEAVE) and not self._means.stop.is_set() and bool(self._means.leaving)
        self._standing.end(well=action in _WELL and not left)
        if left:
            return self._left(running.number, _WELL[action].words)
        if action in _WELL:
            return _WELL[action]
        ending = await running.explain(since, answers)
        self._means.events.write("ended", incarnation=running.number, **_facts(ending))
        return _stopped_badly(ending, stepped=running.stepped) if self._means.stop.is_set() else ending

    def _left(self, incarnation: int, how: str) -> Ending:
        """The end of an incarnation for a host that goes away: one that is lost, but nothing of the work is."""
        hosts = self._means.leaving
        ending = Ending(cause=Cause.HOST_LOST, rank=hosts[0], exit=None, words=f"{named(hosts)} leaves; {how}")
        self._means.events.write("ended", incarnation=incarnation, **_facts(ending))
        return ending

    async def _not_started(self, running: Incarnation, error: HandError) -> LastWord | None:
        self._refused += 1
        self._means.events.write("notStarted", incarnation=running.number, reason=str(error))
        self._standing.over = running.number
        await running.end()
        self._standing.end(well=False)
        if self._refused == _MAX_REFUSED_ORDERS:
            return LastWord(code=ExitCode.FAILURE, words=f"no trainer could be started: {error}")
        await self._pause(_AGAIN_SECONDS)
        return None

    async def _restart(self, ending: Ending) -> LastWord | None:
        """Charge a bad end to its budget and wait as long as that asks; the last word if the budget is used up."""
        recovery, standing = self._job.spec.recovery, self._standing
        standing.phase, standing.reason = RunPhase.RECOVERING, ending.words
        record = standing.record
        committed = max(record.used.committed, self._means.metrics.committed)
        used = charge(record.used, ending.cause, restarts=recovery.restarts, committed=committed)
        if used is None:
            return LastWord(code=ending.exit_code, words=ending.words, ending=ending)
        restarts = {**record.restarts, ending.cause: record.restarts.get(ending.cause, 0) + 1}
        standing.note(used=used, restarts=restarts)
        wait = wait_seconds(used, ending.cause, recovery.backoff.seconds)
        self._means.events.write("restarting", cause=ending.cause, words=ending.words, waitSeconds=wait)
        await self._pause(wait)
        return None

    async def _pause(self, seconds: float) -> None:
        """Wait, but not when a stop is asked for, or this host leaves."""
        waits = [asyncio.create_task(event.wait()) for event in (self._means.stop, self._means.host.leaving)]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        await cancel(*waits)

    def _unreachable(self, task: "asyncio.Task[Any]") -> LastWord:
        """The last word where Ray cannot be had: on one machine it will not be later either, in a cluster elsewhere."""
        try:
            task.result()
        except ReachError as error:
            words = str(error)
            return LastWord(code=ExitCode.FAILURE, words=words) if self._config.one_machine else given_back(words)
        raise AssertionError("a task that never ends has ended")

    async def _end(self, word: LastWord) -> int:
        """Say the last word: to the run directory, to whoever asks, and to the followers."""
        record, means = self._standing.record, self._means
        restarts, used = dict(record.restarts), dict(record.used.counts)
        phases = {**record.phases, "ray": means.reach.seconds}
        added = {
            "hosts": self._config.num_hosts,
            "restarts": restarts,
            "incarnations": 0 if record.incarnation is None else record.incarnation + 1,
            "goodput": self._standing.goodput(means.metrics.lost_seconds),
            "launcherPhases": {name: round(seconds, 3) for name, seconds in phases.items()},
        }
        complete_summary(self._directory, self._summary_before, self._job.metadata.name, word, added)
        means.events.write("done", **word.as_json(), restarts=restarts, used=used)
        self._standing.note(code=word.code, word=word.as_json(), running=False)
        self._standing.code = word.code
        self.board.look()
        await self._linger(range(1, self._config.num_hosts))
        return word.code

    async def _leave(self) -> int:
        """This host goes away, and its successor goes on from the record; who leaves too hears that it may."""
        self._means.events.write("left", host=0)
        self._standing.note(running=False, led=False)
        await self._linger(self._means.members.leaving())
        return LEFT

    async def _linger(self, hosts: Collection[int]) -> None:
        """Wait until these hosts have heard how it stands now, as far as they live."""
        since = time.monotonic()
        while (now := time.monotonic()) - since < _LINGER_SECONDS:
            if not set(hosts) & set(self._means.members.untold_since(since, now)):
                break
            await asyncio.sleep(LOOK_SECONDS)


def _stopped_badly(ending: Ending, *, stepped: bool) -> LastWord:
    """The last word where a stop was asked for and the trainers have failed instead."""
    if ending.cause != Cause.BAD_INPUT and not stepped:
        return saved(f"stopped before the first step; {ending.words}")
    return LastWord(code=ending.exit_code, words=f"{ending.words}, when it was asked to stop", ending=ending)


def _facts(ending: Ending) -> dict[str, Any]:
    exit_words = ending.exit.words if ending.exit else None
    return {"cause": ending.cause, "rank": ending.rank, "exit": exit_words, "words": ending.words}
