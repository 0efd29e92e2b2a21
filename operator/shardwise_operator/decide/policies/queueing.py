"""A job in a queue of Kueue: its Workload is made, told how the job stands, and moved where its owner moves the job.

The pods come once it is admitted (`creation.py`), and stop if its quota is taken back (`eviction.py`). The quota stays
with the job as long as one of them may still do something: so a pod that is replaced never queues again.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from shardwise_operator.config import Settings
from shardwise_operator.decide.endings import all_ended
from shardwise_operator.decide.plan import Create, Delete, Patch, Plan, ReplaceStatus, Step
from shardwise_operator.decide.policies.start_timeout import running as running_pods
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.state import Phase, State
from shardwise_operator.observe.workload import BOOST, Workload
from shardwise_operator.reasons import ADMITTED, EVICTED, FALSE, NOT_STARTED, QUEUED, SCHEDULED, TRUE
from shardwise_operator.render.workload import released, running, shape, workload_manifest
from shardwise_operator.runtime.kinds import WORKLOADS, timestamp

# No watch tells of a class of priority, or of a flavor.
_LOOK_AGAIN_SECONDS = 15.0
_AND, _HELD = "; ", "quota is held since"
# What a job could lose is what it did since its last checkpoint. Each step of the boost is a write, so there are few.
_BOOSTED_AFTER_SECONDS = (300.0, 1200.0, 4800.0)


@dataclass(frozen=True)
class QueuePolicy:
    """The policy, with the settings that say whether priorities are boosted."""

    settings: Settings

    def decide(self, seen: Observed, now: float) -> Plan:
        """Make the Workload, or tell Kueue what has changed."""
        return Plan(state=seen.state, steps=tuple(self._steps(seen, now)))

    def wake(self, seen: Observed, now: float) -> float | None:
        """Return when to look for what is missing, or when the next boost is due."""
        if seen.queueing is None:
            return None
        if seen.queueing.problem:
            return _LOOK_AGAIN_SECONDS
        age = _age_seconds(seen, now)
        if not self.settings.kueue_priority_boost or age is None or seen.queued:
            return None
        return next((after - age for after in _BOOSTED_AFTER_SECONDS if after > age), None)

    def _steps(self, seen: Observed, now: float) -> Iterator[Step]:
        queueing = seen.queueing
        if queueing is None or not seen.state.cleared:
            return
        workload = queueing.workload
        if workload is None:
            if queueing.priority is not None and _stopped(seen, now) and now >= (seen.state.not_before or 0.0):
                yield Create(WORKLOADS, workload_manifest(seen, queueing.queue, queueing.priority))
        elif not queueing.queue or outgrown(seen, now):
            yield from left(seen)
        elif workload.admitted:
            yield from self._told(seen, workload, now)
        elif not _stopped(seen, now):
            return
        elif workload.finished:
            yield from left(seen)  # by somebody else, for the job goes on: it needs another one
        elif workload.evicted and workload.reserved:
            yield ReplaceStatus(WORKLOADS, released(workload, now))
        elif workload.queue != queueing.queue and not workload.reserved:
            yield Patch(WORKLOADS, workload.name, workload.uid, {"spec": {"queueName": queueing.queue}})

    def _told(self, seen: Observed, workload: Workload, now: float) -> Iterator[Step]:
        ready = seen.state.ran_at is not None and not _lacks_a_pod(seen)
        if workload.pods_ready != ready:
            yield ReplaceStatus(WORKLOADS, running(workload, ready=ready, now=now))
            return
        age = _age_seconds(seen, now)
        if not self.settings.kueue_priority_boost or age is None:
            return
        boost = str(sum(age >= after for after in _BOOSTED_AFTER_SECONDS))
        if (workload.boost or "0") != boost:
            patch = {"metadata": {"annotations": {BOOST: boost}}}
            yield Patch(WORKLOADS, workload.name, workload.uid, patch)


def left(seen: Observed) -> Iterator[Delete]:
    """Yield the deletion of the job's Workload, which frees its quota and its place in the queue."""
    if seen.queueing is not None and seen.queueing.workload is not None:
        yield Delete(WORKLOADS, seen.queueing.workload.name, seen.queueing.workload.uid)


def outgrown(seen: Observed, now: float) -> bool:
    """Return whether a round without pods asks for something else than its Workload does, so that it queues anew.

    The class or the job was changed since: its quota, also one that it has, is for other pods.
    """
    workload = seen.queueing.workload if seen.queueing is not None and seen.queueing.queue else None
    # Of one that an older release has made it is not known, and one that somebody has deactivated is left as it is.
    if workload is None or not workload.shape or not workload.active:
        return False
    return _stopped(seen, now) and workload.shape != shape(seen)


def with_phase(seen: Observed, now: float) -> State:
    """Return the state while the job waits in its queue."""
    reason, message = why_queued(seen, now)
    state = seen.state.at(Phase.PENDING, FALSE, reason, message, now=now)
    return state.with_condition(SCHEDULED, FALSE, reason, message, now=now).with_condition(
        ADMITTED, FALSE, reason, message, now=now
    )


def with_admission(seen: Observed, state: State) -> State:
    """Return the state with the condition Admitted; without it in a round without a queue, which nothing admits."""
    if seen.queueing is None:
        return state.without_condition(ADMITTED)
    workload = seen.queueing.workload
    if workload is None or workload.admitted_at is None:
        return state
    message, waits = f"by ClusterQueue {workload.cluster_queue}", held(seen)
    reason, message = (NOT_STARTED, f"{message}; {waits}") if waits else (ADMITTED, message)
    return state.with_condition(ADMITTED, TRUE, reason, message, now=workload.admitted_at)


def quota_until(seen: Observed) -> float | None:
    """Return when a job that does not run gives its quota back; None if it has none, or runs."""
    state, queueing = seen.state, seen.queueing
    workload = queueing.workload if queueing is not None and queueing.queue else None
    if workload is None or workload.admitted_at is None or seen.made_of is None:
        return None
    num_running = running_pods(seen)
    lost_all = state.phase == Phase.RECOVERING and num_running == 0  # so that no leader waits for the others
    if not state.cleared or num_running == len(seen.hosts) or not (lost_all or state.phase == Phase.PENDING):
        return None
    since = [workload.admitted_at]
    if lost_all or state.ran_at is not None:
        # Of a run whose hosts were all lost or given back, it counts from then, and from its next try.
        since = [*(loss.at for loss in state.last_loss.values()), *([state.not_before] if state.not_before else [])]
    if not since:
        return None
    return max(*since, workload.admitted_at) + seen.made_of.job.spec.recovery.start_within.seconds


def held(seen: Observed) -> str:
    """Return since when and until when an idle job holds quota, as text; "" if it holds none."""
    until = quota_until(seen)
    if until is None or seen.queueing is None or seen.queueing.workload is None:
        return ""
    since = seen.queueing.workload.admitted_at or 0.0
    ends = f"it is given back at {timestamp(until)} (recovery.startWithin)"
    return f"{_HELD} {timestamp(since)}, and unless all pods run {ends}"


def with_held(seen: Observed, message: str) -> str:
    """Return a message that says of an idle job since when and until when it holds quota, too."""
    return _AND.join(filter(None, (message, held(seen))))


def without_held(message: str) -> str:
    """Return a message as it was before `with_held`: one that is written again would grow with each pass."""
    return "" if message.startswith(_HELD) else message.partition(f"{_AND}{_HELD}")[0]


def why_queued(seen: Observed, now: float) -> tuple[str, str]:
    """Return why a job has no quota, as one word and for people."""
    queueing = seen.queueing
    assert queueing is not None
    workload = queueing.workload
    if queueing.problem:
        return QUEUED, queueing.problem
    if workload is None and seen.state.reason == NOT_STARTED and now < (seen.state.not_before or 0.0):
        return NOT_STARTED, seen.state.message
    if workload is None:
        return QUEUED, f"it enters the queue {queueing.queue}"
    if not workload.evicted:
        inactive = "" if workload.active else f"Workload {workload.name} is deactivated; "
        return QUEUED, inactive + (workload.waits or f"in the queue {workload.queue}")
    waits = f"; {workload.waits}" if workload.waits not in ("", workload.evicted_message) else ""
    return EVICTED, f"{workload.evicted_message or workload.evicted}{waits}"


def _stopped(seen: Observed, now: float) -> bool:
    return not seen.state.pods and all_ended(seen, now)


def _lacks_a_pod(seen: Observed) -> bool:
    """Return whether a pod was lost, and the one in its place does not run yet."""
    return seen.state.phase == Phase.RECOVERING and running_pods(seen) < len(seen.hosts)


def _age_seconds(seen: Observed, now: float) -> float | None:
    """Return the age of the work that the job would lose; None while there is none."""
    if seen.state.ran_at is None:
        return None
    return now - max(seen.state.ran_at, seen.saved_at or 0.0)
