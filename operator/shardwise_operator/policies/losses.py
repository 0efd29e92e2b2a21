"""A pod that ended alone, or is about to, or is gone: it is charged to its cause, and its host gets a new number.

Decided once for each pod: a host whose number has gone up has no current pod to lose. The status says so first; the
pod itself is made by a later pass (`creation.py`), when the lost one has ended for certain.
"""

from collections.abc import Iterator
from dataclasses import replace

from shardwise_operator.observed import Observed
from shardwise_operator.plan import Event, Plan
from shardwise_operator.pod import Pod
from shardwise_operator.policies.budgets import backoff_seconds, budget
from shardwise_operator.policies.endings import failed
from shardwise_operator.state import Phase, State
from shardwise_operator.words import REPLACED, Lost

_DISRUPTIONS = {
    "DeletionByTaintManager": Lost.NODE_LOST,
    "DeletionByPodGC": Lost.NODE_LOST,
    "EvictionByEvictionAPI": Lost.EVICTION,
    "PreemptionByScheduler": Lost.EVICTION,
    "TerminationByKubelet": Lost.EVICTION,
}
_REASONS = {
    "Evicted": Lost.EVICTION,
    "Preempting": Lost.EVICTION,
    "NodeLost": Lost.NODE_LOST,
    "NodeShutdown": Lost.MAINTENANCE,
    "Shutdown": Lost.MAINTENANCE,
    "Terminated": Lost.MAINTENANCE,
    "NodeAffinity": Lost.ADMISSION,
    "TopologyAffinityError": Lost.ADMISSION,
    "UnexpectedAdmissionError": Lost.ADMISSION,
}


def decide(seen: Observed, now: float) -> Plan | None:
    """Charge every pod that was lost since the last pass; the job fails where a budget is used up."""
    lost = list(_lost(seen))
    if not lost:
        return None
    state, events = seen.state, list[Event]()
    for host, cause in lost:
        count = state.charged.get(cause, 0)
        if count >= budget(seen, cause):
            words = f"host {host} lost its pod ({cause}), and the budget of {count} for that is used up"
            return failed(seen, REPLACED, words, now)
        state = _charged(seen, state, host, cause, now)
        events.append(Event("Warning", REPLACED, f"host {host} lost its pod: {cause}"))
    return Plan(state=state, events=tuple(events))


def cause_of(pod: Pod, seen: Observed) -> Lost:
    """Why a pod ended, by what the cluster says of it."""
    if pod.disruption in _DISRUPTIONS:
        return _DISRUPTIONS[pod.disruption]
    if pod.reason.startswith("OutOf"):  # the kubelet: OutOfcpu, OutOfpods, ...
        return Lost.ADMISSION
    if pod.reason in _REASONS:
        return _REASONS[pod.reason]
    if pod.exit_reason == "OOMKilled":
        return Lost.OUT_OF_MEMORY
    return Lost.NODE_LOST if seen.on_a_lost_node(pod) else Lost.UNKNOWN


def _lost(seen: Observed) -> Iterator[tuple[str, Lost]]:
    for host in seen.hosts:
        if host not in seen.state.pods:
            continue  # not made yet
        pod = seen.current(host)
        if pod is None:
            yield host, Lost.UNKNOWN
        elif pod.ended or pod.deleting_at is not None:
            yield host, cause_of(pod, seen)


def _charged(seen: Observed, state: State, host: str, cause: Lost, now: float) -> State:
    count = state.charged.get(cause, 0) + 1
    not_before = max(state.not_before or 0.0, now + backoff_seconds(seen, count))
    return replace(
        state,
        phase=Phase.PENDING if state.phase == Phase.PENDING else Phase.RECOVERING,
        reason=REPLACED,
        message=f"host {host} lost its pod: {cause}",
        attempts={**state.attempts, host: state.attempts[host] + 1},
        pods={key: uid for key, uid in state.pods.items() if key != host},
        charged={**state.charged, cause: count},
        not_before=not_before,
    )
