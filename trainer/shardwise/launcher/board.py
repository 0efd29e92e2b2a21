"""What the leader shows of a run, and how it is spoken to: the other side of host 0's HTTP.

Called by the server from its threads, and by the leader's loop, which has it look around and make a new status.
"""

import asyncio
import time
from dataclasses import asdict
from typing import Any

from shardwise.launcher import status
from shardwise.launcher.means import Means, Stuck
from shardwise.launcher.standing import Standing
from shardwise.launcher.status import RunPhase
from shardwise.launcher.stragglers import Slow

LOOK_SECONDS = 0.1
_RECORD_SECONDS = 2.0


class Board:
    """The last status, and the way in for requests."""

    def __init__(self, means: Means, standing: Standing) -> None:
        """Show how the run stands now."""
        self._means, self._standing = means, standing
        self._loop = asyncio.get_running_loop()
        self._noted_at = time.monotonic()
        self._slow: Slow | None = None
        self._stuck: list[Stuck] = []
        self._status = self._make_status()

    def status(self) -> dict[str, Any]:
        """The last status; from any thread."""
        return self._status

    def metrics(self) -> bytes:
        """The last status for Prometheus; from any thread."""
        return status.metrics(self._status)

    def request(self, word: str) -> None:
        """Pass on a "save" or a "stop"; from any thread."""
        asyncio.run_coroutine_threadsafe(self._requested(word), self._loop)

    def heard(self, poll: dict[str, Any]) -> dict[str, Any] | None:
        """Take a follower's word, and answer it; None where it looks for another leader. From any thread."""
        if (poll["run"], poll["sees"]) != (self._means.config.run, self._means.host.agent_id):
            return None
        self._loop.call_soon_threadsafe(self._means.members.polled, poll, time.monotonic())
        reach = self._means.reach
        return {
            "leaderId": self._means.host.agent_id,
            "epoch": reach.epoch,
            # An agent that has come since belongs to the next epoch: this one ends with its predecessor.
            "rayAddress": reach.address if reach.agent_ids.get(poll["host"]) == poll["agentId"] else "",
            "over": self._standing.over,
            "mayGo": self._standing.running is None,
            "superseded": self._means.members.superseded(poll),
            "done": self._standing.code,
        }

    async def run(self) -> None:
        """Look around until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Notice what has changed, keep it, and show it."""
        self._means.reach.look()
        if self._means.host.stop_asked:
            self._means.stop.set()
        self._notice_progress()
        self._notice_slowness()
        self._notice_stuck()
        self._status = self._make_status()
        epoch = self._means.reach.epoch
        if time.monotonic() - self._noted_at > _RECORD_SECONDS or epoch != self._standing.record.epoch:
            self._standing.note(epoch=epoch)
            self._noted_at = time.monotonic()

    def _notice_progress(self) -> None:
        standing, metrics = self._standing, self._means.metrics
        if standing.record.fresh and metrics.committed >= 0:
            standing.note(fresh=False)
        if standing.running and standing.running.stepped and standing.phase in (RunPhase.STARTING, RunPhase.RECOVERING):
            standing.phase = RunPhase.RUNNING
            self._means.events.write(
                "running",
                incarnation=standing.running.number,
                fromStep=metrics.first_step,
                sinceEndSeconds=standing.since_end,
            )

    def _notice_slowness(self) -> None:
        slow = self._means.stragglers.slowest()
        if slow and (self._slow is None or self._slow.host != slow.host):
            self._means.events.write("slow", host=slow.host, words=slow.words)
        self._slow = slow

    def _notice_stuck(self) -> None:
        stuck = self._means.stuck
        for each in stuck:
            if each not in self._stuck:
                self._means.events.write("stuck", host=each.host, words=each.words)
        self._stuck = stuck

    async def _requested(self, word: str) -> None:
        self._means.events.write(word)
        if word == "stop":
            self._means.stop.set()
        elif self._standing.running:
            # One rank's word is everybody's at the next step; two, heard at different steps, might be two saves.
            await self._means.host.answer({"op": "signal", "word": word})

    def _phase(self) -> RunPhase:
        if self._standing.code is not None:
            return RunPhase.DONE
        if self._means.stop.is_set():
            return RunPhase.STOPPING
        running = self._standing.running
        return RunPhase.STALLED if running and running.stalled else self._standing.phase

    def _make_status(self) -> dict[str, Any]:
        means, record = self._means, self._standing.record
        reports = {host: heard.report for host, heard in means.reach.reports.items()} | {0: means.host.report()}
        return {
            "name": means.job.metadata.name,
            "phase": self._phase(),
            "reason": self._standing.reason,
            "incarnation": record.incarnation,
            "restarts": dict(record.restarts),
            "epoch": means.reach.epoch,
            "hosts": [status.host_status(reports[host]) for host in sorted(reports)],
            "slowestHost": self._slow.host if self._slow else None,
            "progress": {**means.metrics.last, "of": means.job.spec.training.steps},
            "checkpoint": _with_age(means.metrics.checkpoint, time.time()),
            "failedSaves": means.metrics.failed_saves,
            "goodput": self._standing.goodput(means.metrics.lost_seconds),
            "missing": means.members.missing(time.monotonic()),
            "stuck": [asdict(each) for each in means.stuck],
        }


def _with_age(checkpoint: dict[str, Any] | None, now: float) -> dict[str, Any] | None:
    if checkpoint is None or checkpoint["savedAt"] is None:
        return checkpoint
    return {**checkpoint, "ageSeconds": round(max(0.0, now - checkpoint["savedAt"]), 1)}
