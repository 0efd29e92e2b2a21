"""Charge lost pods (ended alone, deleted, gone or stuck): a loss has one cause, and its hosts get new attempts.

Pods go together, though the cluster reports them one by one: what a slice loses soon after a charge, of the pods that
it had then, is the same loss, and so is what other slices lose for the same cause. So a loss costs the same for one
host as for thousands.

Each pod is charged once: a host with a new attempt has no current pod to lose. The status has the charge first; a later
pass creates the pod (`creation.py`), once the lost one has certainly ended.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby, islice

from shardwise_operator.decide.budgets import budget, charge, left
from shardwise_operator.decide.endings import failed
from shardwise_operator.decide.naming import MOST_NAMED, first_few
from shardwise_operator.decide.plan import Event, Plan, never
from shardwise_operator.decide.relocation import avoid_after_losses, relocations
from shardwise_operator.decide.stuck import stuck
from shardwise_operator.observe.hosts import host_name, numbers_of
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.pod import Pod
from shardwise_operator.observe.state import Loss, Phase, State
from shardwise_operator.reasons import NODE_AVOIDED, REPLACED, Lost

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
# A kubelet gives TerminationByKubelet for what it evicts and for what it shuts down: the pod's reason tells which.
_DISRUPTIONS = {
    "DeletionByTaintManager": Lost.NODE_LOST,
    "DeletionByPodGC": Lost.NODE_LOST,
    "EvictionByEvictionAPI": Lost.EVICTION,
    "PreemptionByScheduler": Lost.EVICTION,
    "TerminationByKubelet": Lost.EVICTION,
}
# Nodes of a slice go within a minute of each other; a drain takes its pods one after another.
_TOGETHER_SECONDS = 300.0
# What a node that is being taken down may do to its pods.
_CAUSES_OF_MAINTENANCE = (Lost.EVICTION, Lost.NODE_LOST, Lost.UNKNOWN)

wake = never


def decide(seen: Observed, now: float) -> Plan | None:
    """Charge every loss since the last pass; fail the job if a budget is used up."""
    messages = stuck(seen, now)
    stuck_hosts = {
        pod.key: messages[pod.address]
        for pod in seen.current_pods()
        if pod.running and pod.address and pod.address in messages
    }
    lost = {**dict.fromkeys(stuck_hosts, Lost.NODE_LOST), **dict(_lost(seen))}
    if not lost:
        return None
    state, events = seen.state, list[Event]()
    for slice_, hosts in groupby(sorted(lost, key=numbers_of), key=lambda host: numbers_of(host)[0]):
        causes = {host: lost[host] for host in hosts}
        message = _message(causes, stuck_hosts) + _failure(seen, causes)
        cause = _cause(causes.values())
        loss = _known(state, slice_, causes, cause, now)
        if loss is None:
            charged = charge(seen, state, cause, now)
            if charged is None:
                used_up = f"{message}, and the budget of {budget(seen, cause)} for {cause} is used up"
                return failed(seen, REPLACED, used_up, now)
            state, message = charged, f"{message}; {left(seen, charged, cause)}"
        state = _without(state, causes, message, now)
        events.append(Event(REPLACED, message))
        if loss and loss.hosts and seen.place_of(slice_):  # the slice's place has this loss against it already
            causes = {host: cause for host, cause in causes.items() if host in stuck_hosts}
        before, state = state, avoid_after_losses(seen, state, causes, at_once=stuck_hosts.keys())
        events += [Event(NODE_AVOIDED, text) for text in relocations(before, state, stuck=stuck_hosts)]
        state = _noted(seen, state, str(slice_), loss or Loss(now, frozenset(), cause), now)
    return Plan(state=state, events=tuple(events))


def cause_of(pod: Pod | None, host: str, seen: Observed) -> Lost:
    """Return why the pod of a host ended, by its status and its node's; `pod` is None if it is gone."""
    cause = _own_cause(pod, seen) if pod else Lost.UNKNOWN
    return Lost.MAINTENANCE if cause in _CAUSES_OF_MAINTENANCE and seen.on_a_leaving_node(host) else cause


def _own_cause(pod: Pod, seen: Observed) -> Lost:
    if pod.reason.startswith("OutOf"):  # the kubelet: OutOfcpu, OutOfpods, ...
        return Lost.ADMISSION
    if known := _REASONS.get(pod.reason) or _DISRUPTIONS.get(pod.disruption):
        return known
    if pod.exit_reason == "OOMKilled":
        return Lost.OUT_OF_MEMORY
    return Lost.NODE_LOST if seen.on_a_lost_node(pod) else Lost.UNKNOWN


def _lost(seen: Observed) -> Iterator[tuple[str, Lost]]:
    for host in seen.hosts:
        if host not in seen.state.pods:
            continue  # not created yet
        pod = seen.current(host)
        if pod is None or pod.ended or pod.deleting_at is not None:
            yield host, cause_of(pod, host, seen)


def _known(state: State, slice_: int, hosts: Iterable[str], cause: Lost, now: float) -> Loss | None:
    """Return the loss that these hosts belong to, with what it took of their slice before; None if it is a new one.

    It may have been charged for this slice or, with the same cause, for another, and has each host at most once.
    """
    last = {each: loss for each, loss in state.last_loss.items() if now - loss.at <= _TOGETHER_SECONDS}
    own = last.get(str(slice_))
    if own and own.hosts.isdisjoint(numbers_of(host)[1] for host in hosts):
        return own
    charged = (loss.at for loss in last.values() if loss.cause == cause and (own is None or loss.at > own.at))
    return next((Loss(at, frozenset(), cause) for at in charged), None)


def _noted(seen: Observed, state: State, slice_: str, loss: Loss, now: float) -> State:
    """Return the state with the hosts that a slice's loss has taken by now, with those that were relocated."""
    before = seen.state.attempts
    numbers = range(seen.round_snapshot.topology.hosts)
    taken = {each for each in numbers if state.attempts[host_name(slice_, each)] != before[host_name(slice_, each)]}
    loss = replace(loss, hosts=loss.hosts | taken)
    recent = {each: other for each, other in state.last_loss.items() if now - other.at <= _TOGETHER_SECONDS}
    return replace(state, last_loss={**recent, slice_: loss})


def _cause(causes: Iterable[Lost]) -> Lost:
    """Return the cause that most hosts of a slice have; `unknown` only if all of them do."""
    counted = Counter(causes).most_common()
    return next((cause for cause, _ in counted if cause != Lost.UNKNOWN), Lost.UNKNOWN)


def _message(causes: Mapping[str, Lost], stuck_hosts: Mapping[str, str]) -> str:
    if len(causes) == 1:
        (host,) = causes
        because = f"; it is stuck: {stuck_hosts[host]}" if host in stuck_hosts else ""
        return f"host {host} lost its pod: {causes[host]}{because}"
    first = islice((host for host in causes if host in stuck_hosts), MOST_NAMED)
    because = "".join(f"; {host} is stuck: {stuck_hosts[host]}" for host in first)
    return f"{len(causes)} hosts lost their pods ({first_few(causes)}): {_cause(causes.values())}{because}"


def _failure(seen: Observed, causes: Mapping[str, Lost]) -> str:
    """Return which container of a lost pod failed, and how, if nothing else tells why; of several pods the first.

    Without memory it may be another one than the trainer's.
    """
    for host, cause in causes.items():
        pod = seen.current(host)
        if not pod or pod.deleting_at is not None or pod.record or not pod.failure:
            continue
        if cause == Lost.UNKNOWN or (cause == Lost.OUT_OF_MEMORY and pod.exit_code is None):
            return f"; {pod.failure}" if len(causes) == 1 else f"; of {host}, {pod.failure}"
    return ""


def _without(state: State, causes: Mapping[str, Lost], message: str, now: float) -> State:
    return replace(
        state.renewed(causes),
        phase=Phase.PENDING if state.phase == Phase.PENDING else Phase.RECOVERING,
        reason=REPLACED,
        message=message,
        leaving={key: node for key, node in state.leaving.items() if key not in causes},
        not_before=max(state.not_before or 0.0, now),
    )
