"""Slices land whole: the hosts that wait behind their gate go where their slice's first host went.

Only of classes with a `placementLabel`, whose value is one place for one slice: a TPU node pool.
"""

from collections.abc import Iterator

from shardwise.job.pods import SLICE_GATE
from shardwise_operator.observed import Observed
from shardwise_operator.plan import Patch
from shardwise_operator.runtime.kinds import PODS


def steps(seen: Observed) -> Iterator[Patch]:
    """The gates that open now."""
    assert seen.made_of is not None
    label = seen.made_of.placement_label
    for pod in seen.current_pods():
        if pod.gated and pod.slice in seen.pools and pod.deleting_at is None:
            # A patch replaces the whole list: others that gate pods (a queue, a quota) keep theirs.
            others = [{"name": gate} for gate in pod.gates if gate != SLICE_GATE]
            opened = {"schedulingGates": others, "nodeSelector": {label: seen.pools[pod.slice]}}
            yield Patch(PODS, pod.name, pod.uid, {"spec": opened})
