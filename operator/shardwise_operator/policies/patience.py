"""`recovery.startWithin`: pods that do not all run by then are given back, all of them, and tried again later.

It counts from when the first of them has a node: before that nothing is held, and another try would only lose the place
in a queue.

Of jobs that hold a part each of what all of them need, the youngest gives way at once (`rivals.py`). Where that would
not help, they wait for different times, which their UIDs decide. Of a run that has begun the launcher waits for lost
hosts (`recovery.replaceWithin`), and gives the others back itself (`outcome.py`); where host 0 is missing there is no
launcher, and that is done here. The pods themselves are deleted by the next pass (`sweeping.py`). Where an image cannot
be had, that is charged to its budget; other waits have no end.
"""

from dataclasses import replace
from hashlib import sha256

from shardwise_operator.observed import LEADER, Observed
from shardwise_operator.plan import Event, Plan
from shardwise_operator.policies.budgets import budget, charge
from shardwise_operator.policies.endings import failed
from shardwise_operator.policies.ladder import not_whole
from shardwise_operator.policies.pending import waits_for_image
from shardwise_operator.state import Phase, State, next_attempts
from shardwise_operator.words import GIVEN_BACK, Lost

_FIRST_WAIT_SECONDS = 10.0
_MAX_DOUBLINGS = 5
# What another job lacks makes no event of this one's.
_LOOK_AGAIN_SECONDS = 15.0


def decide(seen: Observed, now: float) -> Plan | None:
    """Give back the pods of a round that has not come to run in time; None while there is time."""
    if seen.elder:
        # The scheduler tries the other job's pods again after ten seconds at the most.
        wait = _FIRST_WAIT_SECONDS + wait_seconds(seen)
        words = f"{_named(seen)} is older, and lacks what this job holds a part of"
        return _given_back(seen, seen.state, words, wait, now)
    left = remaining_seconds(seen, now)
    if left is None or left > 0.0:
        return None
    state = seen.state
    if any(waits_for_image(pod) for pod in seen.current_pods()):
        charged = charge(seen, state, Lost.IMAGE, now)
        if charged is None:
            words = f"{_words(seen)}; the budget of {budget(seen, Lost.IMAGE)} for images is used up"
            return failed(seen, GIVEN_BACK, words, now)
        state = charged
    return _given_back(seen, not_whole(seen, state), _words(seen), wait_seconds(seen), now)


def look_again_seconds(seen: Observed) -> float | None:
    """When to look whether there is somebody to give way to; None where this job holds nothing, or lacks nothing."""
    pods = seen.current_pods()
    part = any(pod.node for pod in pods) and any(pod.unschedulable for pod in pods)
    return _LOOK_AGAIN_SECONDS if part and seen.state.phase == Phase.PENDING else None


def _given_back(seen: Observed, state: State, why: str, wait: float, now: float) -> Plan:
    words = f"{why}; all are given back, and tried again in {wait:.0f} s"
    state = replace(
        state,
        phase=Phase.PENDING,
        reason=GIVEN_BACK,
        message=words,
        attempts=next_attempts(seen.state.attempts, seen.hosts),
        pods={},
        not_before=now + wait,
    )
    return Plan(state=state, events=(Event("Warning", GIVEN_BACK, words),))


def remaining_seconds(seen: Observed, now: float) -> float | None:
    """How long pods that do not all run may still take; None where that is not for the operator to say."""
    state, running = seen.state, sum(pod.phase == "Running" for pod in seen.current_pods())
    if not state.cleared or state.started_at is None or seen.made_of is None or running == len(seen.hosts):
        return None
    leader = seen.current(LEADER)
    if state.phase != Phase.PENDING and leader and leader.running:  # its launcher waits for the others
        return None
    recovery = seen.made_of.job.spec.recovery
    bound = recovery.replace_within if _leaderless(seen) else recovery.start_within
    placed = [pod.placed_at or state.started_at for pod in seen.current_pods() if pod.node]
    if not placed:  # nothing is held that others could use
        return None
    return max(0.0, max(min(placed), state.not_before or 0.0) + bound.seconds - now)


def _named(seen: Observed) -> str:
    """The older job, in words that tell nobody what others have in their namespaces."""
    namespace, name = seen.elder.split("/")
    return f"job {name}" if namespace == seen.namespace else "a job of another namespace"


def _leaderless(seen: Observed) -> bool:
    """Whether a run has begun, and hosts of it wait for host 0."""
    return seen.state.phase != Phase.PENDING and any(pod.phase == "Running" for pod in seen.current_pods())


def _words(seen: Observed) -> str:
    running = sum(pod.phase == "Running" for pod in seen.current_pods())
    bound = "replaceWithin" if _leaderless(seen) else "startWithin"
    return f"{running} of {len(seen.hosts)} pods ran within {bound}"


def wait_seconds(seen: Observed) -> float:
    """Longer after each time, and different for each job: from half the usual wait to one and a half."""
    times = seen.state.attempts[LEADER]
    share = int.from_bytes(sha256(f"{seen.uid}/{times}".encode()).digest()[:4], "big") / 2**32
    return float(_FIRST_WAIT_SECONDS * 2.0 ** min(times, _MAX_DOUBLINGS) * (0.5 + share))
