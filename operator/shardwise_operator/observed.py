"""All that a pass knows of one job, frozen: what the policies decide by.

Made by `observe.py`; the policies see nothing else but the time.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from shardwise_operator.frozen import Frozen
from shardwise_operator.node import Node
from shardwise_operator.pod import Pod
from shardwise_operator.poll import Poll
from shardwise_operator.state import State

LEADER = "0-0"


@dataclass(frozen=True)
class Guard:
    """A job's NetworkPolicy: its UID, and those of its owners."""

    uid: str
    owners: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """One job and what is its own.

    Attributes:
        namespace: of the job.
        name: of the job.
        uid: of the job.
        generation: of the job's spec.
        deleting: it is being deleted; the garbage collector takes its children.
        suspend: it is asked to be suspended.
        preflight: it is asked to be planned before its pods are made.
        deadline_seconds: how long a round may take.
        ttl_seconds: how long a finished job is kept.
        state: what its status says.
        saved_step: the newest checkpoint's step that its status knows; None without one.
        asked: its spec as it is now, with its class; None where the two do not go together.
        problem: why they do not; "" where they do.
        frozen: what the pods of this round are made of; None before its ConfigMap is there.
        pods: all its pods, of earlier rounds too.
        children: "<Kind>/<name>" of its own other objects.
        guard: its NetworkPolicy; None where there is none.
        nodes: the watched nodes that its pods are on, by name.
        pools: by slice, the place that its bound pods are in; only of slices with a pod that still needs one.
        gone_places: slices with a pod that waits for a node of a place that has none any more.
        gone_nodes: nodes of its pods that are no more.
        silent_nodes: nodes of its pods whose kubelet says nothing.
        elder: the older job that lacks places of which this one holds a part, as "namespace/name"; "" without one.
        poll: what host 0 last said of itself.

    """

    namespace: str
    name: str
    uid: str
    generation: int = 1
    deleting: bool = False
    suspend: bool = False
    preflight: bool = False
    deadline_seconds: float | None = None
    ttl_seconds: float | None = None
    state: State = field(default_factory=State)
    saved_step: int | None = None
    asked: Frozen | None = None
    problem: str = ""
    frozen: Frozen | None = None
    pods: tuple[Pod, ...] = ()
    children: frozenset[str] = frozenset()
    guard: Guard | None = None
    nodes: Mapping[str, Node] = field(default_factory=dict)
    pools: Mapping[int, str] = field(default_factory=dict)
    gone_places: frozenset[int] = frozenset()
    gone_nodes: frozenset[str] = frozenset()
    silent_nodes: frozenset[str] = frozenset()
    elder: str = ""
    poll: Poll | None = None

    @cached_property
    def _numbered(self) -> dict[tuple[str, int], Pod]:
        return {(pod.key, pod.attempt): pod for pod in self.pods}

    @property
    def made_of(self) -> Frozen | None:
        """What this round's pods are made of."""
        return self.frozen or self.asked

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of this round, host 0 first."""
        return self.made_of.hosts if self.made_of else ()

    @property
    def grace_seconds(self) -> float:
        """How long a pod may take to save and end."""
        return self.made_of.grace_seconds if self.made_of else 0.0

    @property
    def checkpoint_step(self) -> int | None:
        """The newest checkpoint's step, by the status, host 0, or the last record of a pod; None without one."""
        told = (self.poll.status or {}).get("checkpoint") if self.poll else None
        steps = [self.saved_step, told["step"] if told else None]
        steps += [pod.record.checkpoint_step for pod in self.round_pods() if pod.record]
        return max((step for step in steps if step is not None), default=None)

    def current(self, key: str) -> Pod | None:
        """The pod of a host that counts; None where it is not there."""
        return self._numbered.get((key, self.state.attempts.get(key, 0)))

    def current_pods(self) -> tuple[Pod, ...]:
        """Those of all hosts that are there."""
        return tuple(pod for key in self.hosts if (pod := self.current(key)))

    def round_pods(self) -> tuple[Pod, ...]:
        """The pods of this round, replaced ones too."""
        return tuple(pod for pod in self.pods if pod.round == self.state.round)

    def place_of(self, slice_: int) -> str | None:
        """Where a slice is: its value of the class's placement label; None without one, or where no pod tells."""
        label = self.made_of.placement_label if self.made_of else None
        for pod in self.current_pods():
            if label and pod.slice == slice_:
                node = self.nodes.get(pod.node or "")
                place = (node.labels if node else pod.selector).get(label)
                if place:
                    return place
        return None

    def settling(self) -> Iterator[tuple[Pod, str]]:
        """The pods that wait for a node of the place that this operator has chosen for them, with that place."""
        made_of, label = self.made_of, self.made_of.placement_label if self.made_of else None
        if (
            made_of is None
            or label is None
            or label in {**made_of.machine.spec.node_selector, **made_of.pod.node_selector}
        ):
            return
        for pod in self.current_pods():
            if (
                label in pod.selector
                and pod.node is None
                and not pod.gated
                and not pod.ended
                and pod.deleting_at is None
            ):
                yield pod, pod.selector[label]

    def on_a_leaving_node(self, host: str) -> bool:
        """Whether the node of a host's pod is about to be taken down, or was when it was last heard of."""
        pod, announced = self.current(host), self.state.leaving.get(host)
        if pod is None:
            return announced is not None
        node = self.nodes.get(pod.node or "")
        return (announced is not None and announced == pod.node) or (node is not None and node.leaving)

    def on_a_lost_node(self, pod: Pod) -> bool:
        """Whether nobody can say that the pod has ended, because its node is gone or silent."""
        return pod.node is not None and pod.node in self.gone_nodes | self.silent_nodes
