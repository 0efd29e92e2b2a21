"""Whether a pod that is told to go has time to save: NoticeTooShort says so before it happens.

The time that a save takes is measured: the last one's. The notice is the pods' grace period, or less on nodes that go
sooner.
"""

from shardwise_operator.observed import Observed
from shardwise_operator.state import State
from shardwise_operator.words import FALSE, NOTICE_TOO_SHORT, TRUE

LONG_ENOUGH = "NoticeLongEnough"


def judge(seen: Observed, state: State, now: float) -> State:
    """The state, with what the last save says of the notice; the same where there was none."""
    save_seconds = _save_seconds(seen)
    if save_seconds is None:
        return state
    notice_seconds, giver = _shortest(seen)
    if save_seconds <= notice_seconds:
        known = state.condition(NOTICE_TOO_SHORT)
        return state.saying(NOTICE_TOO_SHORT, FALSE, LONG_ENOUGH, "", now=now) if known else state
    words = (
        f"the last save took {save_seconds:.1f} s, and {giver} gives {notice_seconds:.0f} s: "
        "a pod that is told to go loses the steps since the last checkpoint"
    )
    return state.saying(NOTICE_TOO_SHORT, TRUE, NOTICE_TOO_SHORT, words, now=now)


def _save_seconds(seen: Observed) -> float | None:
    saved = (seen.poll.status or {}).get("checkpoint") if seen.poll else None
    return saved.get("seconds") if saved else None


def _shortest(seen: Observed) -> tuple[float, str]:
    """The shortest notice of any pod, in seconds, and who gives it."""
    bounds = {name: node.notice_seconds for name, node in seen.nodes.items()}
    notices = [(seconds, f"node {name}") for name, seconds in sorted(bounds.items()) if seconds is not None]
    return min([(seen.grace_seconds, "pod.terminationGracePeriod"), *notices])
