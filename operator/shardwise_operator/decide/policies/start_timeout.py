"""`recovery.startWithin`: if not all pods run by then, release all of them and try again later.

It counts from when the first of them has a node: before that nothing is held, and another try would only lose the place
in a queue.

If several jobs each hold a part of the nodes that all of them need, the youngest gives way at once (`rivals.py`). If
that does not help, they wait for different times, which follow from their UIDs. Once a run has begun, its leader waits
for lost hosts (`recovery.replaceWithin`) and gives the others back itself (`outcome.py`); without host 0 there is no
leader, so it is done here. The next pass deletes the pods (`cleanup.py`). An image that cannot be pulled is charged to
its budget; other waits have no end.
"""

from dataclasses import replace
from hashlib import sha256

from shardwise_operator.decide.budgets import budget, charge
from shardwise_operator.decide.endings import failed
from shardwise_operator.decide.pending import waits_for_image
from shardwise_operator.decide.plan import Plan, soonest
from shardwise_operator.decide.relocation import avoid_after_timeout
from shardwise_operator.observe.hosts import LEADER
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.state import Phase, State
from shardwise_operator.reasons import PODS_RELEASED, Lost

_FIRST_WAIT_SECONDS = 10.0
_MAX_DOUBLINGS = 5
# No watch of this job's objects reports what another job lacks.
_LOOK_AGAIN_SECONDS = 15.0


def decide(seen: Observed, now: float) -> Plan | None:
    """Release the pods of a round that has not come to run in time."""
    if seen.older_rival:
        # The scheduler tries the other job's pods again after ten seconds at the most.
        wait = _FIRST_WAIT_SECONDS + retry_seconds(seen)
        message = f"{_named(seen)} is older, and lacks what this job holds a part of"
        return _release_pods(seen, seen.state, message, wait, now)
    left = remaining_seconds(seen, now)
    if left is None or left > 0.0:
        return None
    state = image_charged(seen, now)
    if state is None:
        used_up = f"{late(seen)}; the budget of {budget(seen, Lost.IMAGE)} for images is used up"
        return failed(seen, PODS_RELEASED, used_up, now)
    return _release_pods(seen, avoid_after_timeout(seen, state), late(seen), retry_seconds(seen), now)


def wake(seen: Observed, now: float) -> float | None:
    """Return the time until the timeout, or until the rivals are to be looked at again."""
    return soonest([remaining_seconds(seen, now), look_again_seconds(seen)])


def image_charged(seen: Observed, now: float) -> State | None:
    """Charge an image that cannot be pulled, if there is one; None if that budget is used up."""
    if any(waits_for_image(pod) for pod in seen.current_pods()):
        return charge(seen, seen.state, Lost.IMAGE, now)
    return seen.state


def look_again_seconds(seen: Observed) -> float | None:
    """Return when to look again for a job to give way to; None if this job holds no node, or lacks none."""
    pods = seen.current_pods()
    part = any(pod.node for pod in pods) and any(pod.unschedulable for pod in pods)
    return _LOOK_AGAIN_SECONDS if part and seen.state.phase == Phase.PENDING else None


def _release_pods(seen: Observed, state: State, why: str, wait: float, now: float) -> Plan:
    state = replace(state.renewed(seen.hosts), phase=Phase.PENDING, not_before=now + wait)
    return Plan.warning(state, PODS_RELEASED, f"{why}; all are given back, and tried again in {wait:.0f} s")


def remaining_seconds(seen: Observed, now: float) -> float | None:
    """Return how long the pods may still take until all run; None if the operator does not wait for them."""
    state = seen.state
    if not state.cleared or state.started_at is None or seen.made_of is None or running(seen) == len(seen.hosts):
        return None
    leader = seen.current(LEADER)
    if state.phase != Phase.PENDING and leader and leader.running:  # its leader waits for the others
        return None
    recovery = seen.made_of.job.spec.recovery
    bound = recovery.replace_within if _leaderless(seen) else recovery.start_within
    placed = [pod.placed_at or state.started_at for pod in seen.current_pods() if pod.node]
    if not placed:  # nothing is held that others could use
        return None
    return max(0.0, max(min(placed), state.not_before or 0.0) + bound.seconds - now)


def _named(seen: Observed) -> str:
    """Name the older job, but not one of another namespace: its name is not this job's to know."""
    namespace, name = seen.older_rival.split("/")
    return f"job {name}" if namespace == seen.namespace else "a job of another namespace"


def _leaderless(seen: Observed) -> bool:
    """Return whether a run has begun, and hosts of it wait for host 0."""
    return seen.state.phase != Phase.PENDING and running(seen) > 0


def running(seen: Observed) -> int:
    """Return how many of the hosts' pods run."""
    return sum(pod.phase == "Running" for pod in seen.current_pods())


def late(seen: Observed) -> str:
    """Return how many of the pods ran in time, and within what."""
    bound = "replaceWithin" if _leaderless(seen) else "startWithin"
    return f"{running(seen)} of {len(seen.hosts)} pods ran within {bound}"


def retry_seconds(seen: Observed) -> float:
    """Return the wait before the next try: it doubles each time, and each job has another share of it, 0.5 to 1.5."""
    # By the UID, not by chance: a pass that is repeated must decide the same.
    times = seen.state.attempts[LEADER]
    share = int.from_bytes(sha256(f"{seen.uid}/{times}".encode()).digest()[:4], "big") / 2**32
    return float(_FIRST_WAIT_SECONDS * 2.0 ** min(times, _MAX_DOUBLINGS) * (0.5 + share))
