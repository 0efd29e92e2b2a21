"""Hold places for slices that are away: a placeholder for each host that this round does not have.

They are pods as the hosts' own, so a node that fits is found for them, or made by an autoscaler; they run nothing. Once
those of a slice all run, the slice can be taken in (`more_slices.py`). They are there only while all hosts of the round
run: a host that is lost comes first.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from shardwise_operator.decide.endings import is_over
from shardwise_operator.decide.pending import pod_problems
from shardwise_operator.decide.plan import Create, Plan, soonest
from shardwise_operator.decide.slices import all_run, in_vain, next_slices, num_slices, words
from shardwise_operator.observe.hosts import numbers_of
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.state import Growth, State
from shardwise_operator.reasons import ALL_THERE, FALSE, FEWER_SLICES, SLICES_LEFT_OUT, TRUE
from shardwise_operator.render.pods import Place, placeholder_manifest
from shardwise_operator.runtime.kinds import PODS

# One that has ended by itself is made anew no sooner after it had a node: what ended it would end the next one.
_AGAIN_SECONDS = 60.0


def decide(seen: Observed, now: float) -> Plan:
    """Create the placeholders that are missing, and say in a condition that slices are."""
    state = _with_condition(seen, now)
    if state.growth.begun and all_run(seen):
        state = replace(state, growth=Growth())
    if not wanted(seen, now):
        return Plan(state=state)
    if _useless_at(seen) <= now:
        return Plan(state=in_vain(seen, state.renewed(seen.absent_hosts), now))
    if lost := [hosts for hosts in _slices(seen) if _given_up(seen, hosts, now)]:
        return Plan(state=_given_back(seen, state, lost))
    missing = [host for host in seen.absent_hosts if host not in seen.state.pods]
    if unnumbered := [host for host in missing if host not in state.attempts]:
        return Plan(state=state.renewed(unnumbered))
    ending = {pod.key for pod in seen.pods if not is_over(seen, pod, now)} if missing else set()
    made = (placeholder_manifest(seen, host, _place(seen, host)) for host in missing if host not in ending)
    return Plan(state=state, steps=tuple(Create(PODS, each) for each in made))


def wake(seen: Observed, now: float) -> float | None:
    """Return when placeholders are given up, or asked for again; None if only an event can change that."""
    not_before = seen.state.growth.not_before
    if seen.absent_hosts and not_before is not None and now < not_before:
        return not_before - now
    if not wanted(seen, now):
        return None
    times = [_useless_at(seen), *(until for hosts in _slices(seen) for until in _given_up_at(seen, hosts))]
    return soonest(until - now for until in times if now < until < float("inf"))


def wanted(seen: Observed, now: float) -> bool:
    """Return whether there are slices to hold places for, and no host of the round needs one."""
    not_before = seen.state.growth.not_before
    return bool(seen.absent_hosts) and (not_before is None or now >= not_before) and all_run(seen)


def _slices(seen: Observed) -> Iterator[tuple[str, ...]]:
    for _, hosts in groupby(seen.absent_hosts, key=lambda host: numbers_of(host)[0]):
        yield tuple(hosts)


def _useless_at(seen: Observed) -> float:
    """Return when slices that are whole go back, since with them the job has no number of slices that it can run on.

    Others may need them, or pay for them, and what is missing may be away for days.
    """
    whole = [pod for pod in seen.placeholders() if pod.slice not in seen.broken_slices]
    if not whole or next_slices(seen) > num_slices(seen):
        return float("inf")
    return max(pod.started_at or 0.0 for pod in whole) + _start_within(seen)


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
        yield min(placed) + _start_within(seen)


def _start_within(seen: Observed) -> float:
    return seen.round_snapshot.job.spec.recovery.start_within.seconds


def _given_back(seen: Observed, state: State, slices: list[tuple[str, ...]]) -> State:
    """Return the state in which these slices look for another place, if there is one."""
    for hosts in slices:
        slice_, _ = numbers_of(hosts[0])
        place = seen.place_of(slice_)
        state = state.renewed(hosts)
        if place is not None:
            state = replace(state, avoid={**state.avoid, str(slice_): place})
    return state


def _place(seen: Observed, host: str) -> Place:
    slice_, _ = numbers_of(host)
    return Place(pool=seen.pools.get(slice_), avoid_pool=seen.state.avoid.get(str(slice_)))


def _with_condition(seen: Observed, now: float) -> State:
    """Return the state with the condition FewerSlices; a job that has always had all of them has none."""
    state = seen.state
    if not seen.absent_hosts:
        if state.slices is None and state.condition(FEWER_SLICES):
            return state.with_condition(FEWER_SLICES, FALSE, ALL_THERE, "", now=now)
        return state
    problem = next((f"; {message}" for _, message in pod_problems(seen.placeholders())), "")
    message = f"{words(num_slices(seen), seen)}{problem}"
    return state.with_condition(FEWER_SLICES, TRUE, SLICES_LEFT_OUT, message, now=now)
