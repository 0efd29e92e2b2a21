"""If no other node takes a pod that had to leave its node, let it go back after a while.

The wait is shorter than `recovery.replaceWithin` at its default, after which the launcher releases the other hosts.
"""

from collections.abc import Iterator
from dataclasses import replace

from shardwise_operator.decide.plan import Plan, soonest
from shardwise_operator.observe.observed import Observed
from shardwise_operator.reasons import RELOCATED

_LOOK_ELSEWHERE_SECONDS = 120.0


def decide(seen: Observed, now: float) -> Plan | None:
    """Let the hosts that no other node takes go anywhere."""
    hosts = [host for host, until in _unschedulable(seen) if now >= until]
    if not hosts:
        return None
    message = f"no other node takes them, so they may go back to theirs: hosts {', '.join(hosts)}"
    avoid = {unit: place for unit, place in seen.state.avoid.items() if unit not in hosts}
    return Plan.warning(replace(seen.state.renewed(hosts), avoid=avoid), RELOCATED, message)


def wake(seen: Observed, now: float) -> float | None:
    """Return the time until the first of them may go back; None if no pod looks for another node."""
    return soonest(max(0.0, until - now) for _, until in _unschedulable(seen))


def _unschedulable(seen: Observed) -> Iterator[tuple[str, float]]:
    """Yield the hosts that find no other node, and until when they look for one."""
    for pod in seen.current_pods():
        if pod.key in seen.state.avoid and pod.unschedulable_since is not None and pod.deleting_at is None:
            yield pod.key, pod.unschedulable_since + _LOOK_ELSEWHERE_SECONDS
