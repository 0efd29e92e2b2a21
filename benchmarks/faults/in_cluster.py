"""Faults of pods, nodes, volumes and the control plane, put to a job whose pods train on the bare test cluster.

Each is one job of two hosts that must end Complete, with the digest of `shardwise run` of the same file and no charge
but its own. Called by `rows.py`; the stage is `stage.py`'s.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.faults import harms, peers
from benchmarks.faults.outcome import Outcome, Row
from benchmarks.faults.pods import EVERY_STEPS, SAVE, START, STEP, Hurt
from benchmarks.faults.stage import Stage, stage

NOT_SHOWN: Sequence[str] = (
    "The way back of a JobSet whose node is killed: it made no other pod in 400 s; its Job waits for the dead node's.",
    "The same of a RayCluster: KubeRay made no other head in 400 s, beside that of the dead node.",
    "A RayJob of KubeRay: it is submitted to Ray's job server, which is not in our images; a RayCluster stands beside.",
    "A claim in pods that is read-only, gives EIO or a stale handle: shown on one machine alone.",
)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is done to a job's pods, and what it may cost.

    `put` hurts the job, and may wait for what comes of it. `charged` is restarts by cause; several are allowed where
    the cluster says one of several things of the same loss.
    """

    name: str
    put: Callable[[Hurt], None]
    charged: Sequence[Mapping[str, int]]
    phases: tuple[str, ...] = (STEP,)
    note: str = ""
    training: Mapping[str, Any] = field(default_factory=dict)
    pod: Mapping[str, Any] = field(default_factory=dict)
    agent: Mapping[str, Any] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)
    """The labels of the nodes that its pods select."""
    at_once: bool = False
    """Whether it is there from the start."""
    before: Callable[[Stage], None] | None = None
    """What has to be there before the job is."""


_FIRST = "the first process of the container, which ends with it"
_NOTHING = "the run goes on, and so there is nothing to be noticed"
_UNKNOWN = {"unknown": 1}
_ALL = (START, STEP, SAVE)
_LOCAL = {"checkpoint": {"everySteps": EVERY_STEPS, "local": {"everySteps": 5}}}
FAULTS: tuple[Fault, ...] = (
    Fault(name="trainer killed", put=harms.trainer, charged=[{"failure": 1}], phases=_ALL),
    Fault(name="agent killed", put=harms.container(1), charged=[_UNKNOWN], phases=_ALL, note=_FIRST),
    Fault(name="agent of host 0 killed", put=harms.container(0), charged=[_UNKNOWN], phases=_ALL, note=_FIRST),
    Fault(name="pod deleted", put=harms.deleted(1), charged=[_UNKNOWN], phases=_ALL),
    Fault(name="pod of host 0 deleted", put=harms.deleted(0), charged=[_UNKNOWN], phases=_ALL),
    Fault(
        name="pod evicted",
        put=harms.evicted,
        charged=[{"eviction": 1}],
        phases=_ALL,
        note="through the eviction API",
    ),
    Fault(
        name="out of memory",
        put=harms.out_of_memory,
        charged=[{"outOfMemory": 1}],
        note="other processes of its container take the memory for a minute",
        agent={"resources": {"requests": {"cpu": "250m", "memory": "1Gi"}, "limits": {"memory": "1536Mi"}}},
    ),
    Fault(
        name="device that computes wrong",
        put=harms.computes_wrong,
        charged=[{"device": 2, "nodeLost": 1}],
        note="in each trainer of its pod, so that the second failure sends the pod to another node",
        training={"steps": 500},  # each second a host measures what its devices compute
        agent={"env": [{"name": "PYTHONPATH", "value": harms.WRONG_PATH}]},
        before=harms.may_compute_wrong,
    ),
    Fault(
        name="old pod runs on while the new one joins",
        put=harms.old_pod_runs_on,
        charged=[_UNKNOWN],
        note="kubelet stopped, pod removed by force",
    ),
    Fault(
        name="image missing",
        put=harms.image_missing,
        charged=[{}],
        phases=(START,),
        note="until it is suspended, corrected and resumed",
        pod={"image": "localhost/none:1"},
        at_once=True,
    ),
    Fault(
        name="kubelet refuses a pod",
        put=harms.refused,
        charged=[{"admission": 1}],
        phases=(START,),
        note="NodeAffinity: its node has lost the label that the pod selects",
        nodes={harms.PLACE: "here"},
        at_once=True,
    ),
    Fault(name="node tainted", put=harms.tainted, charged=[{"nodeLost": 1}, {"maintenance": 1}], note="NoExecute"),
    Fault(name="node drained", put=harms.drained, charged=[{"eviction": 1}, {"maintenance": 1}], phases=(STEP, SAVE)),
    Fault(
        name="node killed",
        put=harms.node_killed,
        charged=[{"nodeLost": 1}],
        note="given up after 50 s, its pods 30 s later; back when the job has moved on",
    ),
    Fault(
        name="agent killed, local checkpoints",
        put=harms.container(1),
        charged=[_UNKNOWN],
        note="every 5 steps; host 0 has the copy",
        training=_LOCAL,
    ),
    Fault(
        name="node killed, local checkpoints",
        put=harms.node_killed,
        charged=[{"nodeLost": 1}],
        note="every 5 steps; the node that is left has the copy",
        training=_LOCAL,
    ),
    Fault(
        name="volume full",
        put=harms.full,
        charged=[{}, {"storage": 1}],
        note="for 20 s, in which the pods' logs alone say so",
    ),
    Fault(name="operator killed", put=harms.operator_killed, charged=[{}], note=_NOTHING),
    Fault(name="API server frozen 60 s", put=harms.api_server_frozen, charged=[{}], note=_NOTHING),
)


def _measure(fault: Fault, phase: str) -> Outcome:
    if fault.before:
        fault.before(stage())
    hurt = Hurt(stage(), fault.training, fault.pod, fault.agent, fault.nodes)
    try:
        if not fault.at_once:
            hurt.until_phase(phase)
        fault.put(hurt)
        hurt.let_go()
        return hurt.outcome(fault.charged, fault.note)
    finally:
        hurt.remove()


def _beside(kind: peers.Kind, fault: str, phase: str) -> Outcome:
    assert phase == STEP
    return peers.measure(kind, fault)


ROWS: tuple[Row, ...] = (
    *(Row(place="cluster", fault=each.name, phases=each.phases, measure=partial(_measure, each)) for each in FAULTS),
    *(
        Row(place="cluster", fault=f"{fault}, a {kind.value}", phases=(STEP,), measure=partial(_beside, kind, fault))
        for kind, fault in (
            (peers.Kind.JOB, peers.POD_DELETED),
            (peers.Kind.JOB, peers.NODE_KILLED),
            (peers.Kind.JOB_SET, peers.POD_DELETED),
            (peers.Kind.RAY_CLUSTER, peers.POD_DELETED),
        )
    ),
)
