"""All that a pass knows of one job, immutable: the policies decide by it and by the time alone."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from shardwise.protocol.run_status import RunSummary
from shardwise_operator.observe.hosts import LEADER, host_name, numbers_of
from shardwise_operator.observe.node import Node
from shardwise_operator.observe.pod import Pod
from shardwise_operator.observe.poll import Poll
from shardwise_operator.observe.queueing import Queueing
from shardwise_operator.observe.snapshot import Snapshot
from shardwise_operator.observe.state import State
from shardwise_operator.runtime.kinds import Kind
from shardwise_operator.runtime.queue import Key


@dataclass(frozen=True)
class Guard:
    """A job's NetworkPolicy: its UID, and those of its owners."""

    uid: str
    owners: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """One job and what belongs to it.

    Attributes:
        namespace: the job's.
        name: the job's.
        uid: the job's.
        generation: that of the job's spec.
        deleting: whether it is being deleted; the garbage collector deletes what it owns.
        suspend: whether it is to be suspended.
        preflight: whether it is to be planned before its pods are created.
        deadline_seconds: how long a round may take.
        ttl_seconds: how long a finished job is kept.
        state: how far it is, by its status.
        saved_step: the newest checkpoint's step in its status; None without one.
        saved_at: when that was saved; None if that is not known.
        desired: its spec as it is now, with its class; None if the two do not go together.
        problem: why they do not; "" if they do.
        slice_counts: the numbers of slices that the job can run on, all of them first; none of a job with fewer that
            does not go with its class.
        snapshot: what the pods of this round are made of; None before its ConfigMap is there.
        foreign_snapshot: the UID of a ConfigMap in its place that this operator has not made; "" without one.
        pods: all its pods, of earlier rounds too.
        children: the UIDs of its own other objects, by kind and name.
        guard: its NetworkPolicy; None if it has none.
        nodes: the watched nodes that its pods are on, by name.
        pools: by slice, the place that its bound pods are in; only of slices with a pod that still needs one.
        gone_places: slices with a pod that waits for a node of a place that has none any more.
        gone_nodes: nodes of its pods that are gone.
        silent_nodes: nodes of its pods whose kubelet is silent.
        older_rival: the older job for which this one gives its nodes back, as "namespace/name"; "" without one.
        poll: the last status of host 0; None if it is not polled.
        queueing: how it stands with its queue; None without one.

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
    saved_at: float | None = None
    desired: Snapshot | None = None
    problem: str = ""
    slice_counts: tuple[int, ...] = ()
    snapshot: Snapshot | None = None
    foreign_snapshot: str = ""
    pods: tuple[Pod, ...] = ()
    children: Mapping[tuple[Kind, str], str] = field(default_factory=dict)
    guard: Guard | None = None
    nodes: Mapping[str, Node] = field(default_factory=dict)
    pools: Mapping[int, str] = field(default_factory=dict)
    gone_places: frozenset[int] = frozenset()
    gone_nodes: frozenset[str] = frozenset()
    silent_nodes: frozenset[str] = frozenset()
    older_rival: str = ""
    poll: Poll | None = None
    queueing: Queueing | None = None

    @cached_property
    def _numbered(self) -> dict[tuple[str, int], Pod]:
        return {(pod.key, pod.attempt): pod for pod in self.pods}

    @property
    def key(self) -> Key:
        """The namespace and the name of the job."""
        return self.namespace, self.name

    @property
    def made_of(self) -> Snapshot | None:
        """What this round's pods are made of: its snapshot, or what will become one."""
        return self.snapshot or self.desired

    @property
    def round_snapshot(self) -> Snapshot:
        """The same of a job with a round, which has one."""
        assert self.made_of is not None
        return self.made_of

    @property
    def placement_label(self) -> str | None:
        """The node label whose values are the places of slices; None without one."""
        return self.made_of.placement_label if self.made_of else None

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of this round, host 0 first."""
        return self.made_of.hosts if self.made_of else ()

    @cached_property
    def absent_hosts(self) -> tuple[str, ...]:
        """The hosts of slices that the job asks for and this round does not have."""
        if self.made_of is None or self.state.slices is None or not self.slice_counts:
            return ()
        absent = range(self.state.slices, self.slice_counts[0])
        return tuple(host_name(slice_, host) for slice_ in absent for host in range(self.made_of.topology.hosts))

    @property
    def all_hosts(self) -> tuple[str, ...]:
        """The hosts of all slices that the job asks for, those that this round does not have last."""
        return (*self.hosts, *self.absent_hosts)

    @property
    def queued(self) -> bool:
        """Whether the job has a queue that has not admitted it, so that no pod of its hosts may be there."""
        return self.queueing is not None and bool(self.queueing.queue) and self.queueing.admission is None

    @property
    def grace_seconds(self) -> float:
        """How long a pod may take to save and end."""
        return self.made_of.grace_seconds if self.made_of else 0.0

    @property
    def checkpoint_step(self) -> int | None:
        """The newest checkpoint's step, by the status, host 0 or a pod's termination record; None without one."""
        polled = self.status.checkpoint if self.status else None
        steps = [self.saved_step, polled.step if polled else None]
        steps += [pod.record.checkpoint_step for pod in self.round_pods() if pod.record]
        return max((step for step in steps if step is not None), default=None)

    @property
    def status(self) -> RunSummary | None:
        """The last status of host 0; None if it is not polled, or has not answered."""
        return self.poll.status if self.poll else None

    def fresh_status(self, now: float) -> RunSummary | None:
        """Return the last status of host 0 if it still counts."""
        return self.poll.status if self.poll and self.poll.fresh(now) else None

    @property
    def leader(self) -> Pod | None:
        """Host 0's pod, if it runs and can be asked for something."""
        pod = self.current(LEADER)
        return pod if pod and pod.running and pod.address else None

    def has_child(self, kind: Kind, name: str) -> bool:
        """Return whether an object of its own is there, beside its pods."""
        return (kind, name) in self.children

    def current(self, key: str) -> Pod | None:
        """Return the current pod of a host; None if it does not exist."""
        return self._numbered.get((key, self.state.attempts.get(key, 0)))

    def current_pods(self) -> tuple[Pod, ...]:
        """Return the current pods of all hosts that have one."""
        return tuple(pod for key in self.hosts if (pod := self.current(key)))

    def placeholders(self) -> tuple[Pod, ...]:
        """Return the current pods of absent hosts, which hold places for the slices that are away."""
        return tuple(pod for key in self.absent_hosts if (pod := self.current(key)))

    @cached_property
    def broken_slices(self) -> frozenset[int]:
        """The slices of the job that are not whole: with a host whose pod neither runs nor has ended with the run.

        A host whose node is about to go is not there either.
        """
        return frozenset(numbers_of(host)[0] for host in self.all_hosts if not self._is_there(host))

    def _is_there(self, host: str) -> bool:
        pod = self.current(host)
        if pod is None or self.on_a_lost_node(pod) or self.on_a_leaving_node(host):
            return False
        return pod.running or (pod.ended and pod.record is not None and pod.record.code is not None)

    def round_pods(self) -> tuple[Pod, ...]:
        """Return the pods of this round, replaced ones too."""
        return tuple(pod for pod in self.pods if pod.round == self.state.round)

    @cached_property
    def _places(self) -> dict[int, str]:
        """By slice, its value of the class's placement label; without those that no pod shows."""
        label, places = self.placement_label, dict[int, str]()
        for pod in (*self.current_pods(), *self.placeholders()) if label else ():
            node = self.nodes.get(pod.node or "")
            place = (node.labels if node else pod.selector).get(label or "")
            if place:
                places.setdefault(pod.slice, place)
        return places

    def place_of(self, slice_: int) -> str | None:
        """Return the slice's value of the class's placement label; None without one, or if no pod shows it."""
        return self._places.get(slice_)

    def settling(self) -> Iterator[tuple[Pod, str]]:
        """Yield the pods that wait for a node of the place that this operator has chosen for them, with that place."""
        made_of, label = self.made_of, self.placement_label
        if made_of is None or label is None:
            return
        # A place that the class, the job or its queue names is not this operator's to give up.
        admission = self.queueing.admission if self.queueing else None
        by_queue = (admission.node_selector, *admission.domains) if admission else ()
        named = (made_of.machine.spec.node_selector, made_of.pod.spec.get("nodeSelector", {}), *by_queue)
        if any(label in each for each in named):
            return
        for pod in self.current_pods():
            if label in pod.selector and pod.alive and pod.node is None and not pod.gated:
                yield pod, pod.selector[label]

    def on_a_leaving_node(self, host: str) -> bool:
        """Return whether the node of a host's pod is about to be taken down, or was so by the last notice."""
        pod, announced = self.current(host), self.state.leaving.get(host)
        if pod is None:
            return announced is not None
        node = self.nodes.get(pod.node or "")
        return (announced is not None and announced == pod.node) or (node is not None and node.leaving)

    def on_a_lost_node(self, pod: Pod) -> bool:
        """Return whether it cannot be known that the pod has ended, because its node is gone or silent."""
        return pod.node is not None and (pod.node in self.gone_nodes or pod.node in self.silent_nodes)
