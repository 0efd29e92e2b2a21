"""Set the condition NoticeTooShort in advance if a pod that is told to go would not have time to save.

The time that a save takes is that of the last one. The notice is the pods' grace period, or less on nodes that go
sooner.
"""

from shardwise_operator.decide.plan import Plan, never
from shardwise_operator.observe.observed import Observed
from shardwise_operator.reasons import FALSE, NOTICE_LONG_ENOUGH, NOTICE_TOO_SHORT, TRUE

wake = never


def decide(seen: Observed, now: float) -> Plan | None:
    """Compare the last save with the notice."""
    saved = seen.status.checkpoint if seen.status else None
    state, save_seconds = seen.state, saved.seconds if saved else None
    if save_seconds is None:
        return None
    notice_seconds, giver = _shortest(seen)
    if save_seconds <= notice_seconds:
        if state.condition(NOTICE_TOO_SHORT) is None:
            return None
        return Plan(state=state.with_condition(NOTICE_TOO_SHORT, FALSE, NOTICE_LONG_ENOUGH, "", now=now))
    message = (
        f"the last save took {save_seconds:.1f} s, and {giver} gives {notice_seconds:.0f} s: "
        "a pod that is told to go loses the steps since the last checkpoint"
    )
    return Plan(state=state.with_condition(NOTICE_TOO_SHORT, TRUE, NOTICE_TOO_SHORT, message, now=now))


def _shortest(seen: Observed) -> tuple[float, str]:
    """Return the shortest notice of any pod, in seconds, and what gives it."""
    bounds = {name: node.notice_seconds for name, node in seen.nodes.items()}
    notices = [(seconds, f"node {name}") for name, seconds in sorted(bounds.items()) if seconds is not None]
    return min([(seen.grace_seconds, "pod.template.spec.terminationGracePeriodSeconds"), *notices])
