"""A finished job: what still runs is deleted after a while, and the job itself after `ttlAfterFinished`.

Its ended pods stay, with their logs, as long as the job.
"""

from collections.abc import Iterator

from shardwise_operator.decide.endings import all_ended, is_over
from shardwise_operator.decide.plan import Delete, Event, Plan, ReplaceStatus, Step, never, soonest
from shardwise_operator.decide.stuck import past_grace_at
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.state import Phase
from shardwise_operator.observe.workload import Workload
from shardwise_operator.reasons import COMPLETE, EXPIRED, FAILED
from shardwise_operator.render.workload import ended
from shardwise_operator.runtime.kinds import PODS, TRAINING_JOBS, WORKLOADS

# The agents of a run that is over end by themselves; a pod that has not ended by then is deleted.
LINGER_SECONDS = 30.0

wake = never  # its own plan says when to look again


def decide(seen: Observed, now: float) -> Plan | None:
    """Do what is left to do for a job that is Complete or Failed."""
    if not seen.state.finished:
        return None
    completed_at = seen.state.completed_at
    assert completed_at is not None
    expires_at = None if seen.ttl_seconds is None else completed_at + seen.ttl_seconds
    if expires_at is not None and now >= expires_at:
        gone = Event(EXPIRED, f"deleted {seen.ttl_seconds:g} s after it finished, as ttlAfterFinished asks")
        return Plan(state=seen.state, steps=(Delete(TRAINING_JOBS, seen.name, seen.uid),), events=(gone,))
    lingering = [pod for pod in seen.pods if (pod.lingers or not pod.ended) and pod.deleting_at is None]
    waits = [expires_at - now] if expires_at is not None else []
    waits += _waits_for_quota(seen, now)
    steps: tuple[Step, ...] = ()
    if lingering and now < completed_at + LINGER_SECONDS:
        waits.append(completed_at + LINGER_SECONDS - now)
    else:
        steps = tuple(Delete(PODS, pod.name, pod.uid) for pod in lingering)
    return Plan(state=seen.state, steps=(*_told(seen, now), *steps), requeue_after_seconds=soonest(waits))


def _told(seen: Observed, now: float) -> Iterator[ReplaceStatus]:
    """Yield the end of the job's Workload, which frees its quota, once no pod may do anything more."""
    workload = _held(seen)
    if workload is None or not all_ended(seen, now):
        return
    complete = seen.state.phase == Phase.COMPLETE
    condition = seen.state.condition(COMPLETE if complete else FAILED)
    message = condition.message if condition else ""
    yield ReplaceStatus(WORKLOADS, ended(workload, complete=complete, message=message, now=now))


def _waits_for_quota(seen: Observed, now: float) -> Iterator[float]:
    """Yield in how many seconds each pod that is being deleted can do nothing more, for which the quota waits."""
    if _held(seen) is None:
        return
    for pod in seen.pods:
        over_at = past_grace_at(pod)
        if over_at is not None and not is_over(seen, pod, now):
            yield over_at - now


def _held(seen: Observed) -> Workload | None:
    """Return the job's Workload if it still holds quota."""
    workload = seen.queueing.workload if seen.queueing else None
    return None if workload is None or workload.finished else workload
