"""A pod that ended alone, or is about to, is gone or stuck: it is charged to its cause, and its host gets a new number.

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
from shardwise_operator.policies.ladder import climb, climbed
from shardwise_operator.policies.stuck import stuck
from shardwise_operator.state import Phase, State
from shardwise_operator.words import AVOIDED, REPLACED, Lost

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
# A kubelet says TerminationByKubelet of what it evicts and of what it shuts down: the reason says which.
_DISRUPTIONS = {
    "DeletionByTaintManager": Lost.NODE_LOST,
    "DeletionByPodGC": Lost.NODE_LOST,
    "EvictionByEvictionAPI": Lost.EVICTION,
    "PreemptionByScheduler": Lost.EVICTION,
    "TerminationByKubelet": Lost.EVICTION,
}
# What a node that is being taken down does to its pods, by whatever way it goes.
_WAYS_OF_A_MAINTENANCE = (Lost.EVICTION, Lost.NODE_LOST, Lost.UNKNOWN)


def decide(seen: Observed, now: float) -> Plan | None:
    """Charge every pod that was lost since the last pass; the job fails where a budget is used up."""
    said = stuck(seen, now)
    held = {
        pod.key: said[pod.address] for pod in seen.current_pods() if pod.running and pod.address and pod.address in said
    }
    lost = [*_lost(seen), *((host, Lost.NODE_LOST) for host in held)]
    if not lost:
        return None
    state, events = seen.state, list[Event]()
    for host, cause in lost:
        count = state.charged.get(cause, 0)
        if count >= budget(seen, cause):
            words = f"host {host} lost its pod ({cause}), and the budget of {count} for that is used up"
            return failed(seen, REPLACED, words, now)
        state = _charged(seen, state, host, cause, now)
        words = f"; it is stuck: {held[host]}" if host in held else ""
        events.append(Event("Warning", REPLACED, f"host {host} lost its pod: {cause}{words}"))
    for host, cause in lost:
        before, state = state, climb(seen, state, host, cause, at_once=host in held)
        events += [Event("Warning", AVOIDED, words) for words in climbed(before, state)]
    return Plan(state=state, events=tuple(events))


def cause_of(pod: Pod | None, host: str, seen: Observed) -> Lost:
    """Why the pod of a host ended, by what the cluster says of it and of its node; None is a pod that is gone."""
    cause = _said_of(pod, seen) if pod else Lost.UNKNOWN
    return Lost.MAINTENANCE if cause in _WAYS_OF_A_MAINTENANCE and seen.on_a_leaving_node(host) else cause


def _said_of(pod: Pod, seen: Observed) -> Lost:
    if pod.reason.startswith("OutOf"):  # the kubelet: OutOfcpu, OutOfpods, ...
        return Lost.ADMISSION
    if pod.reason in _REASONS:
        return _REASONS[pod.reason]
    if pod.disruption in _DISRUPTIONS:
        return _DISRUPTIONS[pod.disruption]
    if pod.exit_reason == "OOMKilled":
        return Lost.OUT_OF_MEMORY
    return Lost.NODE_LOST if seen.on_a_lost_node(pod) else Lost.UNKNOWN


def _lost(seen: Observed) -> Iterator[tuple[str, Lost]]:
    for host in seen.hosts:
        if host not in seen.state.pods:
            continue  # not made yet
        pod = seen.current(host)
        if pod is None or pod.ended or pod.deleting_at is not None:
            yield host, cause_of(pod, host, seen)


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
        leaving={key: node for key, node in state.leaving.items() if key != host},
        charged={**state.charged, cause: count},
        not_before=not_before,
    )
