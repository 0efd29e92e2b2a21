"""Makes the pods of a round, all that are missing at once, and the objects that they need before them.

Where a plan comes first, its pod alone is made.

A host's next pod is made when its earlier ones do nothing more for certain: they are gone, terminal, killed some time
ago, or on a node that nobody hears from, where the number of the incarnation keeps them from committing anything.
"""

from collections.abc import Iterator

from shardwise.job.pods import PLAN
from shardwise_operator.config import Settings
from shardwise_operator.observed import Observed
from shardwise_operator.plan import Create, Step
from shardwise_operator.policies.stuck import held
from shardwise_operator.render.children import children
from shardwise_operator.render.plan import plan_manifest
from shardwise_operator.render.pods import Place, pod_manifest
from shardwise_operator.render.secret import secret_manifest
from shardwise_operator.runtime.kinds import PODS, SECRETS


def steps(seen: Observed, settings: Settings, now: float) -> Iterator[Step]:
    """What is to be made now."""
    missing = [
        child
        for child in children(seen, settings.operator_namespace, policy=settings.job_network_policies)
        if f"{child.kind.kind}/{child.name}" not in seen.children
    ]
    yield from (Create(child.kind, child.manifest) for child in missing)
    if seen.state.not_before is not None and now < seen.state.not_before:
        return
    if seen.state.planning and PLAN not in seen.state.pods:
        yield Create(PODS, plan_manifest(seen))
    if not seen.state.cleared:
        return
    hosts = [host for host in seen.hosts if host not in seen.state.pods and _free(seen, host, now)]
    if hosts:
        yield Create(SECRETS, secret_manifest(seen, settings.tokens))
    yield from (Create(PODS, pod_manifest(seen, host, _place(seen, host))) for host in hosts)


def _free(seen: Observed, host: str, now: float) -> bool:
    """Whether no pod of the host is there that could still do something."""
    return all(pod.ended or seen.on_a_lost_node(pod) or held(pod, now) for pod in seen.pods if pod.key == host)


def _place(seen: Observed, host: str) -> Place:
    slice_ = host.split("-", maxsplit=1)[0]
    return Place(
        pool=seen.pools.get(int(slice_)), avoid=seen.state.avoid.get(host), avoid_pool=seen.state.avoid.get(slice_)
    )
