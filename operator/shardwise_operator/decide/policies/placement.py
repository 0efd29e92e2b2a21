"""Open the scheduling gates of a slice's other hosts once its first host has a place: slices land whole.

The first host's place is found by the scheduler, by the anti-affinity of `render/pods.py`.

Only classes with a `placementLabel` have gates; each value of that label is a place for one slice, as a TPU node pool.
"""

from shardwise.protocol.pods import SLICE_GATE
from shardwise_operator.decide.plan import Patch, Plan, never
from shardwise_operator.observe.observed import Observed
from shardwise_operator.runtime.kinds import PODS

wake = never


def decide(seen: Observed, _now: float) -> Plan:
    """Open the gates of slices whose place is known."""
    patches = list[Patch]()
    for pod in (*seen.current_pods(), *seen.placeholders()):
        if pod.gated and pod.slice in seen.pools and pod.deleting_at is None:
            # A patch replaces the whole list, and others (a queue, a quota) have gates of their own there.
            others = [{"name": gate} for gate in pod.gates if gate != SLICE_GATE]
            opened = {"schedulingGates": others, "nodeSelector": {seen.placement_label: seen.pools[pod.slice]}}
            patches.append(Patch(PODS, pod.name, pod.uid, {"spec": opened}))
    return Plan(state=seen.state, steps=tuple(patches))
