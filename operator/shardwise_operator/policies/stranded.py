"""A pod that has to leave its node, where there is no other: after a while it may go back.

Shorter than `recovery.replaceWithin` at its default, after which the launcher gives the other hosts back.
"""

from collections.abc import Iterator
from dataclasses import replace

from shardwise_operator.observed import Observed
from shardwise_operator.plan import Event, Plan
from shardwise_operator.state import next_attempts
from shardwise_operator.words import PLACED_ANEW

_PATIENCE_SECONDS = 120.0


def decide(seen: Observed, now: float) -> Plan | None:
    """Let the hosts go anywhere that no other node takes; None where there is none."""
    hosts = [host for host, at in _stranded(seen) if now >= at]
    if not hosts:
        return None
    words = f"no other node takes them, so they may go back to theirs: hosts {', '.join(hosts)}"
    state = replace(
        seen.state,
        reason=PLACED_ANEW,
        message=words,
        attempts=next_attempts(seen.state.attempts, hosts),
        pods={host: uid for host, uid in seen.state.pods.items() if host not in hosts},
        avoid={unit: place for unit, place in seen.state.avoid.items() if unit not in hosts},
    )
    return Plan(state=state, events=(Event("Warning", PLACED_ANEW, words),))


def wait_seconds(seen: Observed, now: float) -> float | None:
    """The time until the first of them may go back; None where no pod looks for another node."""
    return min((max(0.0, at - now) for _, at in _stranded(seen)), default=None)


def _stranded(seen: Observed) -> Iterator[tuple[str, float]]:
    """The hosts that find no other node, and until when they look for one."""
    for pod in seen.current_pods():
        if pod.key in seen.state.avoid and pod.unschedulable_since is not None and pod.deleting_at is None:
            yield pod.key, pod.unschedulable_since + _PATIENCE_SECONDS
