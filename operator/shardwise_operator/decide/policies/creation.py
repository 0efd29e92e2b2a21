"""Create the pods of a round, all that are missing at once, and the objects that they need before them.

If a plan comes first, only its pod is created.

A host's next pod is created once its earlier ones can certainly do nothing more: they are gone, terminal, killed some
time ago, or on a node that is silent, where the number of the attempt keeps them from committing a checkpoint.

A gang begins when no pod of the job is left, for the scheduler counts those that still end among the placed ones. Pods
that were made without a gang get none later: the next of them would wait for a whole one.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from shardwise.protocol.pods import PLAN
from shardwise_operator.config import Settings
from shardwise_operator.decide.endings import all_ended, is_over
from shardwise_operator.decide.plan import Create, Plan
from shardwise_operator.decide.policies import queueing
from shardwise_operator.observe.hosts import numbers_of
from shardwise_operator.observe.observed import Observed
from shardwise_operator.render.children import children
from shardwise_operator.render.gang import gang_hosts, gang_manifest
from shardwise_operator.render.names import gang_name
from shardwise_operator.render.pods import Place, pod_manifest
from shardwise_operator.render.preflight import plan_manifest
from shardwise_operator.render.secret import secret_manifest
from shardwise_operator.runtime.kinds import GANGS, PODS, SECRETS


@dataclass(frozen=True)
class Creation:
    """The policy, with the settings that the objects are made by."""

    settings: Settings

    def decide(self, seen: Observed, now: float) -> Plan:
        """Create what is missing now."""
        return Plan(state=seen.state, steps=tuple(self._creations(seen, now)))

    def wake(self, seen: Observed, now: float) -> float | None:
        """Return the rest of the backoff, None if it is over."""
        not_before = seen.state.not_before
        return not_before - now if not_before is not None and now < not_before else None

    def _creations(self, seen: Observed, now: float) -> Iterator[Create]:
        settings = self.settings
        of_round = children(seen, settings.operator_namespace, settings.tokens, policy=settings.job_network_policies)
        for child in of_round:
            yield Create(child.kind, child.manifest)
        if self.wake(seen, now) is not None:
            return
        if seen.state.planning and PLAN not in seen.state.pods:
            yield Create(PODS, plan_manifest(seen, self.settings.pod_defaults))
        if not seen.state.cleared or seen.queued or queueing.outgrown(seen, now):
            return
        begins = not seen.current_pods() and not any(host in seen.state.pods for host in seen.hosts)
        has_gang = _has_gang(seen)
        if self.settings.gang_scheduling and begins:
            if not all_ended(seen, now):
                return
            if not has_gang:
                yield Create(GANGS, gang_manifest(seen))
        hosts = [host for host in seen.hosts if host not in seen.state.pods and _free(seen, host, now)]
        if hosts:
            # Pods mount the Secret. It is in no cache, so each time it is created again, and found to exist.
            yield Create(SECRETS, secret_manifest(seen, self.settings.tokens))
        gang = gang_hosts(seen) if self.settings.gang_scheduling and (begins or has_gang) else ()
        yield from (Create(PODS, pod_manifest(seen, host, _place(seen, host, gang))) for host in hosts)


def _free(seen: Observed, host: str, now: float) -> bool:
    """Return whether no earlier pod of the host can still do something."""
    return all(is_over(seen, pod, now) for pod in seen.pods if pod.key == host)


def _has_gang(seen: Observed) -> bool:
    assert seen.state.round is not None
    return seen.has_child(GANGS, gang_name(seen.name, seen.state.round))


def _place(seen: Observed, host: str, gang_of: Collection[str]) -> Place:
    assert seen.state.round is not None
    slice_, _ = numbers_of(host)
    gang = gang_name(seen.name, seen.state.round) if host in gang_of else None
    if seen.queueing and seen.queueing.admission and seen.queueing.admission.domains:
        # The queue has chosen the places, and chooses others for lost ones.
        return Place(pool=seen.pools.get(slice_), gang=gang)
    avoid = seen.state.avoid
    return Place(pool=seen.pools.get(slice_), avoid=avoid.get(host), avoid_pool=avoid.get(str(slice_)), gang=gang)
