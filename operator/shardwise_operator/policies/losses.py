"""Pods that ended alone, or are about to, are gone or stuck: a loss has one cause, and their hosts get new numbers.

A slice's pods go together, though the cluster says so pod by pod: what a slice loses soon after a charge, of the pods
that it had then, is the same loss. So a loss costs the same of one host as of thousands.

Decided once for each pod: a host whose number has gone up has no current pod to lose. The status says so first; the
pod itself is made by a later pass (`creation.py`), when the lost one has ended for certain.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby, islice

from shardwise_operator.observed import Observed
from shardwise_operator.plan import Event, Plan
from shardwise_operator.pod import Pod
from shardwise_operator.policies.budgets import budget, charge
from shardwise_operator.policies.endings import failed
from shardwise_operator.policies.ladder import climb, climbed
from shardwise_operator.policies.stuck import stuck
from shardwise_operator.state import Loss, Phase, State
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
# Nodes of a slice go within a minute of each other; a drain takes its pods one after another.
_TOGETHER_SECONDS = 300.0
_MOST_NAMED = 4
# What a node that is being taken down does to its pods, by whatever way it goes.
_WAYS_OF_A_MAINTENANCE = (Lost.EVICTION, Lost.NODE_LOST, Lost.UNKNOWN)


def decide(seen: Observed, now: float) -> Plan | None:
    """Charge every loss since the last pass; the job fails where a budget is used up."""
    said = stuck(seen, now)
    held = {
        pod.key: said[pod.address] for pod in seen.current_pods() if pod.running and pod.address and pod.address in said
    }
    lost = {**dict.fromkeys(held, Lost.NODE_LOST), **dict(_lost(seen))}
    if not lost:
        return None
    state, events = seen.state, list[Event]()
    for slice_, hosts in groupby(sorted(lost, key=_numbers), key=_slice_of):
        causes = {host: lost[host] for host in hosts}
        words = _words(causes, held)
        known = _known(seen, causes, now)
        if not known:
            cause = _cause(causes.values())
            charged = charge(seen, state, cause, now)
            if charged is None:
                used = f"{words}, and the budget of {budget(seen, cause)} for {cause} is used up"
                return failed(seen, REPLACED, used, now)
            state = charged
        state = _without(state, causes, words, now)
        events.append(Event("Warning", REPLACED, words))
        if known and seen.place_of(int(slice_)):  # which has lost what it lost by the charge
            causes = {host: cause for host, cause in causes.items() if host in held}
        before, state = state, climb(seen, state, causes, at_once=held.keys())
        events += [Event("Warning", AVOIDED, words) for words in climbed(before, state)]
        state = _noted(seen, state, slice_, now, known=known)
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


def _known(seen: Observed, causes: Mapping[str, Lost], now: float) -> bool:
    """Whether hosts of one slice were lost by a loss that is charged already: it takes each host once."""
    last = seen.state.last_loss.get(_slice_of(next(iter(causes))))
    return last is not None and now - last.at <= _TOGETHER_SECONDS and not last.hosts & set(map(_of_slice, causes))


def _noted(seen: Observed, state: State, slice_: str, now: float, *, known: bool) -> State:
    """The state with what the slice's last loss has taken by now, a pod that went with the others, too."""
    assert seen.made_of is not None
    before, last = seen.state.attempts, seen.state.last_loss
    numbers = range(seen.made_of.topology.hosts)
    taken = {each for each in numbers if state.attempts[f"{slice_}-{each}"] != before[f"{slice_}-{each}"]}
    loss = Loss(last[slice_].at, last[slice_].hosts | taken) if known else Loss(now, frozenset(taken))
    recent = {each: other for each, other in state.last_loss.items() if now - other.at <= _TOGETHER_SECONDS}
    return replace(state, last_loss={**recent, slice_: loss})


def _cause(causes: Iterable[Lost]) -> Lost:
    """Of a slice's hosts: what most of them say, and unknown only where none says more."""
    counted = Counter(causes).most_common()
    return next((cause for cause, _ in counted if cause != Lost.UNKNOWN), Lost.UNKNOWN)


def _words(causes: Mapping[str, Lost], held: Mapping[str, str]) -> str:
    if len(causes) == 1:
        (host,) = causes
        return f"host {host} lost its pod: {causes[host]}" + (f"; it is stuck: {held[host]}" if host in held else "")
    named = ", ".join(islice(causes, _MOST_NAMED)) + ", ..." * (len(causes) > _MOST_NAMED)
    because = "".join(
        f"; {host} is stuck: {held[host]}" for host in islice((h for h in causes if h in held), _MOST_NAMED)
    )
    return f"{len(causes)} hosts lost their pods ({named}): {_cause(causes.values())}{because}"


def _without(state: State, causes: Mapping[str, Lost], words: str, now: float) -> State:
    return replace(
        state,
        phase=Phase.PENDING if state.phase == Phase.PENDING else Phase.RECOVERING,
        reason=REPLACED,
        message=words,
        attempts={**state.attempts, **{host: state.attempts[host] + 1 for host in causes}},
        pods={key: uid for key, uid in state.pods.items() if key not in causes},
        leaving={key: node for key, node in state.leaving.items() if key not in causes},
        not_before=max(state.not_before or 0.0, now),
    )


def _slice_of(host: str) -> str:
    return host.split("-", maxsplit=1)[0]


def _of_slice(host: str) -> int:
    return int(host.split("-")[1])


def _numbers(host: str) -> tuple[int, ...]:
    return tuple(map(int, host.split("-")))
