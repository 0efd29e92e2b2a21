"""Hold the places of slices that are back: a placeholder for each host that this round does not have.

They are pods as the hosts' own, so a node that fits is found for them, or made by an autoscaler; they run nothing. Once
those of a slice all run, the slice can be taken in (`more_slices.py`). They are there only while all hosts of the round
run: a host that is lost comes first.
"""

from collections.abc import Iterator
from itertools import groupby

from shardwise_operator.decide.endings import is_over
from shardwise_operator.decide.pending import pod_problems
from shardwise_operator.decide.plan import Create, Plan, soonest
from shardwise_operator.decide.policies.start_timeout import running
from shardwise_operator.decide.slices import elastic, num_slices, words
from shardwise_operator.observe.hosts import numbers_of
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.state import State
from shardwise_operator.reasons import ALL_THERE, FALSE, FEWER_SLICES, SLICES_LEFT_OUT, TRUE
from shardwise_operator.render.pods import Place, placeholder_manifest
from shardwise_operator.runtime.kinds import PODS

# One that has ended by itself is made anew no sooner after it had a node: what ended it would end the next one.
_AGAIN_SECONDS = 60.0


def decide(seen: Observed, now: float) -> Plan:
    """Create the placeholders that are missing, and say in a condition that slices are."""
    state = _with_condition(seen, now)
    if not wanted(seen):
        return Plan(state=state)
    lost = [host for hosts in _slices(seen) for host in hosts if _given_up(seen, hosts, now)]
    state = state.renewed(lost)
    if lost:
        return Plan(state=state)
    missing = [host for host in seen.absent_hosts if host not in seen.state.pods and _free(seen, host, now)]
    if unnumbered := [host for host in missing if host not in state.attempts]:
        return Plan(state=state.renewed(unnumbered))
    steps = [Create(PODS, placeholder_manifest(seen, host, _place(seen, host))) for host in missing]
    return Plan(state=state, steps=tuple(steps))


def wake(seen: Observed, now: float) -> float | None:
    """Return when the next placeholder is given up; None if only an event can change that."""
    if not wanted(seen):
        return None
    return soonest(until - now for hosts in _slices(seen) for until in _given_up_at(seen, hosts) if until > now)


def wanted(seen: Observed) -> bool:
    """Return whether there are slices to hold places for, and no host of the round needs one."""
    return bool(seen.absent_hosts) and seen.state.ran_at is not None and running(seen) == len(seen.hosts)


def _slices(seen: Observed) -> Iterator[tuple[str, ...]]:
    for _, hosts in groupby(seen.absent_hosts, key=lambda host: numbers_of(host)[0]):
        yield tuple(hosts)


def _given_up(seen: Observed, hosts: tuple[str, ...], now: float) -> bool:
    """Return whether the placeholders of a slice go back, all of them: a slice has its place as a whole."""
    made = [host for host in hosts if host in seen.state.pods]
    gone = any((pod := seen.current(host)) is None or pod.deleting_at is not None for host in made)
    return gone or any(until <= now for until in _given_up_at(seen, hosts))


def _given_up_at(seen: Observed, hosts: tuple[str, ...]) -> Iterator[float]:
    """Yield when the placeholders of a slice go back by the time alone.

    If not all of them have run by `startWithin`, what the others hold may be what another job lacks.
    """
    pods = [pod for host in hosts if (pod := seen.current(host)) is not None]
    placed = [pod.placed_at for pod in pods if pod.placed_at is not None]
    yield from (pod.placed_at + _AGAIN_SECONDS for pod in pods if pod.ended and pod.placed_at is not None)
    if placed and not all(pod.running for pod in pods):
        yield min(placed) + seen.round_snapshot.job.spec.recovery.start_within.seconds


def _free(seen: Observed, host: str, now: float) -> bool:
    return all(is_over(seen, pod, now) for pod in seen.pods if pod.key == host)


def _place(seen: Observed, host: str) -> Place:
    slice_, _ = numbers_of(host)
    return Place(pool=seen.pools.get(slice_))


def _with_condition(seen: Observed, now: float) -> State:
    """Return the state with the condition FewerSlices; a job that has always had all of them has none."""
    state = seen.state
    if not seen.absent_hosts:
        if elastic(seen) and state.condition(FEWER_SLICES):
            return state.with_condition(FEWER_SLICES, FALSE, ALL_THERE, "", now=now)
        return state
    problem = next((f"; {message}" for _, message in pod_problems(seen.placeholders())), "")
    message = f"{words(num_slices(seen), seen)}{problem}"
    return state.with_condition(FEWER_SLICES, TRUE, SLICES_LEFT_OUT, message, now=now)
