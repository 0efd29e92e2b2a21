"""The leader's side of host 0's HTTP: the status of the run, requests to it, and the polls of its followers.

The server calls it from its threads. The leader's loop has it look around, and make a new status each time.
"""

import asyncio
import time
from collections.abc import Iterable

from shardwise.job.batch_sizes import steps_left
from shardwise.launcher.leader import prometheus
from shardwise.launcher.leader.page import PageMaker
from shardwise.launcher.leader.state import LeaderState
from shardwise.launcher.leader.stragglers import Slow
from shardwise.protocol.eta import eta_seconds
from shardwise.protocol.poll import Poll, PollAnswer
from shardwise.protocol.report import Report
from shardwise.protocol.requests import SignalTrainer
from shardwise.protocol.run_status import CheckpointStatus, HostStatus, RunPhase, RunProgress, RunStatus, StuckHost

LOOK_SECONDS = 0.1
_RECORD_SECONDS = 2.0


class StatusPublisher:
    """Keeps the last status, and takes requests and polls."""

    def __init__(self, state: LeaderState) -> None:
        """Make the first status."""
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._noted_at = time.monotonic()
        self._committed = -1
        self._slow: Slow | None = None
        self._stuck: list[StuckHost] = []
        self._page = PageMaker(state.directory, state.config.url)
        self._status = self._make_status()

    def status(self) -> RunStatus:
        """Return the last status; from any thread."""
        return self._status

    def metrics(self) -> bytes:
        """Return the last status in Prometheus' text format; from any thread.

        Its counters are those of the record: a successor, which goes on from them, may serve no less.
        """
        return prometheus.metrics(self._status.model_copy(update={"goodput": self._state.record.counters}))

    def page(self) -> bytes:
        """Return the page of the run, a few seconds old at most; from any thread."""
        return self._page.made(self._status)

    def request(self, action: str) -> None:
        """Pass on a "save" or a "stop"; from any thread."""
        asyncio.run_coroutine_threadsafe(self._requested(action), self._loop)

    def polled(self, poll: Poll) -> PollAnswer | None:
        """Answer a follower's poll; None if it looks for another leader. From any thread."""
        if (poll.run, poll.sees) != (self._state.config.run, self._state.host.agent_id):
            return None
        self._loop.call_soon_threadsafe(self._state.members.polled, poll, time.monotonic())
        channel = self._state.channel
        return PollAnswer(
            leader_id=self._state.host.agent_id,
            ray_session=channel.session,
            # An agent that has come since belongs to the next session: this one ends with its predecessor.
            ray_address=channel.address if channel.agent_ids.get(poll.host) == poll.agent_id else "",
            over=self._state.over,
            may_go=self._state.running is None,
            superseded=self._state.members.superseded(poll),
            done=self._state.code,
        )

    async def run(self) -> None:
        """Look around until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Notice what has changed, write it to events and record, and make a new status."""
        self._state.channel.look()
        if self._state.host.stop_asked:
            self._state.ask_stop()
        self._notice_progress()
        self._notice_slowness()
        self._notice_stuck()
        self._status = self._make_status()
        session = self._state.channel.session
        if time.monotonic() - self._noted_at > _RECORD_SECONDS or session != self._state.record.session:
            self._state.note(session=session)
            self._noted_at = time.monotonic()

    def _notice_progress(self) -> None:
        state, metrics = self._state, self._state.metrics
        state.note_way_back()
        if state.record.fresh and metrics.committed >= 0:
            state.note(fresh=False)
        if state.copy and metrics.committed != self._committed:
            state.copy.soon()  # the steps before a checkpoint are not trained again, so their lines have to last too
            self._committed = metrics.committed
        if state.running and state.running.started and state.phase in (RunPhase.STARTING, RunPhase.RECOVERING):
            state.under_way()
            self._state.events.write(
                "running",
                attempt=state.running.number,
                fromStep=metrics.first_step,
                sinceEndSeconds=state.since_end,
            )

    def _notice_slowness(self) -> None:
        slow = self._state.stragglers.slowest()
        if slow and (self._slow is None or self._slow.host != slow.host):
            self._state.events.write("slow", host=slow.host, message=slow.message)
        self._slow = slow

    def _notice_stuck(self) -> None:
        stuck = self._state.stuck
        for each in stuck:
            if each not in self._stuck:
                self._state.events.write("stuck", host=each.host, message=each.message)
        self._stuck = stuck

    async def _requested(self, action: str) -> None:
        self._state.events.write(action)
        if action == "stop":
            self._state.ask_stop()
        elif self._state.running:
            # Rank 0 alone: the step carries its request to all ranks. Two ranks that are signalled at different steps
            # would make two saves.
            await self._state.host.answer(SignalTrainer(word="save"))

    def _phase(self) -> RunPhase:
        if self._state.code is not None:
            return RunPhase.DONE
        if self._state.stop.is_set():
            return RunPhase.STOPPING
        running = self._state.running
        return RunPhase.STALLED if running and running.stalled else self._state.phase

    def _make_status(self) -> RunStatus:
        state = self._state
        metrics = state.metrics
        of = state.job.spec.num_steps or metrics.of
        reports = {host: received.report for host, received in state.channel.reports.items()}
        reports[0] = state.host.report()
        steps = steps_left(state.job.spec.training_if_any, metrics.last.get("step"), of)
        left = eta_seconds(steps, metrics.recent_seconds)
        known = {"held_out_loss": metrics.held_out_loss, "of": of, "etaSeconds": left}  # a program may report such too
        return RunStatus(
            name=state.job.metadata.name,
            phase=self._phase(),
            reason=self._state.reason or reports[0].doing,
            attempt=state.record.attempt,
            restarts=state.record.restarts,
            ray_session=state.channel.session,
            joined=_joined(reports.values(), is_program=state.job.spec.program is not None),
            hosts=tuple(HostStatus.of(reports[host]) for host in sorted(reports)),
            slowest_host=self._slow.host if self._slow else None,
            progress=RunProgress.of_what_fits({**metrics.last, **known}),
            checkpoint=_with_age(metrics.checkpoint, time.time()),
            failed_saves=metrics.failed_saves,
            local_step=metrics.local_step,
            goodput=state.goodput,
            missing=tuple(state.members.missing(time.monotonic())),
            stuck=tuple(state.stuck),
        )


def _joined(reports: Iterable[Report], *, is_program: bool) -> int:
    """Count the hosts whose trainer has joined; whether a program joins others, and when, is its own affair."""
    return sum(report.trainer_pid is not None if is_program else report.joined for report in reports)


def _with_age(checkpoint: CheckpointStatus | None, now: float) -> CheckpointStatus | None:
    if checkpoint is None or checkpoint.saved_at is None:
        return checkpoint
    return checkpoint.model_copy(update={"age_seconds": round(max(0.0, now - checkpoint.saved_at), 1)})
