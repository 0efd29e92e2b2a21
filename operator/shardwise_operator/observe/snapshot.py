"""What the pods of one round are made of: the resolved job and its class, as they were when the round began.

It is kept in the round's immutable ConfigMap, which the pods mount too. So a class or an operator that changes later
changes no running job: a pod that replaces another is made of the same.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

from shardwise.job.accelerators import class_of, loads_checked_class, offering
from shardwise.job.document import Document, parse_document, shown, write_document
from shardwise.job.load import as_data, check, loads_checked
from shardwise.job.resolve import resolve
from shardwise.job.rules.pod import CONTAINERS
from shardwise.job.spec import Pod, TrainingJob
from shardwise.job.spec.accelerator import AcceleratorClass
from shardwise.job.spec.pod import DEFAULT_GRACE_SECONDS
from shardwise.job.topology import Topology, parse_topology
from shardwise.protocol.errors import JobError, Problem
from shardwise.protocol.pods import CLASS_KEY, JOB_KEY
from shardwise.protocol.text import any_of
from shardwise_operator.observe.hosts import host_name, numbers_of
from shardwise_operator.observe.pod_defaults import NO_DEFAULTS, PodDefaults

# A key of the ConfigMap, beside those for the pods in `protocol/pods.py`. Only the operator reads it, after a failover
# for each job that runs: so it is JSON, which is YAML too and is read twenty times as fast.
RESOLVED_KEY = "resolved.yaml"
_USER_KEY, _OF_NAMESPACE = "user", "namespace"


@dataclass(frozen=True)
class Snapshot:
    """A resolved job that goes with its class, its image filled in, and the job as its author wrote it.

    Where `user_of_namespace`, admission gives the pods a user of their namespace, in place of the image's.

    The pods read what the author wrote: their image may be of an older release, to which a default that this release
    fills in would be an unknown field, while a field of the author's is refused there with a message. The operator,
    which may be of another release tomorrow, goes by what was resolved when the round began.
    """

    job: TrainingJob
    machine: AcceleratorClass
    written: Mapping[str, Any]
    user_of_namespace: bool = False

    @cached_property
    def pod(self) -> Pod:
        """The job's pod section."""
        pod = self.job.spec.pod
        assert pod is not None
        return pod

    @cached_property
    def topology(self) -> Topology:
        """The topology of one slice."""
        topology = parse_topology(self.machine, self.job.spec.hardware.topology)
        assert topology is not None
        return topology

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """Every host as "<slice>-<host>", in the order of their ranks."""
        slices = range(self.job.spec.hardware.slices)
        return tuple(host_name(slice_, host) for slice_ in slices for host in range(self.topology.hosts))

    def rank(self, host: str) -> int:
        """Return the rank of "<slice>-<host>"."""
        slice_, of_slice = numbers_of(host)
        return slice_ * self.topology.hosts + of_slice

    @property
    def placement_label(self) -> str | None:
        """The node label whose values are the places of slices; None if a slice is one host, or any node will do."""
        return self.machine.spec.placement_label if self.topology.hosts > 1 else None

    @property
    def grace_seconds(self) -> float:
        """How long a pod that is told to go may take to save."""
        return float(self.pod.spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS))

    @property
    def checkpoint_place(self) -> str:
        """Where the run keeps its checkpoints: the job's path for them, else a folder of its directory, which it is."""
        return self.job.spec.checkpoint_path or self.pod.directory

    @cached_property
    def planned_digest(self) -> str:
        """A digest of all that a plan's outcome depends on."""
        spec = self.job.spec
        parts = [as_data(spec.hardware), as_data(spec.training), as_data(self.machine.spec), self.pod.image]
        return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def data(self) -> dict[str, str]:
        """What a ConfigMap holds of it; writing YAML takes longer than a pass."""
        return {
            JOB_KEY: write_document(self.written),
            RESOLVED_KEY: json.dumps(as_data(self.job)),
            CLASS_KEY: write_document(as_data(self.machine)),
            **({_USER_KEY: _OF_NAMESPACE} if self.user_of_namespace else {}),
        }


def take_snapshot(
    raw: Mapping[str, Any],
    classes: Mapping[str, Mapping[str, Any]],
    *,
    image: str,
    pod_defaults: PodDefaults = NO_DEFAULTS,
) -> Snapshot:
    """Return the job of a cluster's object with its class; JobError with all that does not go together.

    Args:
        raw: the TrainingJob.
        classes: every AcceleratorClass of the cluster, by name.
        image: the trainer's, if neither the job nor the class names one.
        pod_defaults: what the job's template leaves out.

    """
    name = raw["spec"]["hardware"]["accelerator"]
    if name not in classes:
        expected = f"an AcceleratorClass of this cluster: {any_of(sorted(classes))}" if classes else "no class is there"
        raise JobError([Problem(path="spec.hardware.accelerator", given=shown(name), expected=expected)])
    machine = class_of(classes[name])
    with offering([machine]):
        job = resolve(check(Document(data=_as_file(raw), places={})))
    pod = job.spec.pod
    if pod is None:
        raise JobError([Problem(path="spec.pod", expected="a pod section with a directory, which a cluster needs")])
    if problems := [*_not_allowed(job, machine)]:
        raise JobError(problems)
    image = pod.image or machine.spec.image or image
    filled = pod.model_copy(update={"image": image, "template": pod_defaults.below(pod.template)})
    resolved = job.model_copy(update={"spec": job.spec.model_copy(update={"pod": filled})})
    return Snapshot(resolved, machine, _for_pods(raw), pod_defaults.user_of_namespace)


def read_snapshot(data: Mapping[str, str]) -> Snapshot:
    """Read `Snapshot.data`, which an older or a newer release may have written: the pods run by it already."""
    machine = loads_checked_class(data[CLASS_KEY], source=CLASS_KEY)
    written = parse_document(data[JOB_KEY], source=JOB_KEY).data
    resolved = loads_checked(data[RESOLVED_KEY], source=RESOLVED_KEY)
    return Snapshot(resolved, machine, written, data.get(_USER_KEY) == _OF_NAMESPACE)


def _not_allowed(job: TrainingJob, machine: AcceleratorClass) -> Iterator[Problem]:
    """Yield what keeps a job from a class: in privileged pods, namespace and image decide who has root."""
    allowed, pod = machine.spec.allowed, job.spec.pod
    if allowed is None or pod is None:
        return
    namespace = job.metadata.namespace
    if allowed.namespaces is not None and namespace not in allowed.namespaces:
        yield Problem(
            path="spec.hardware.accelerator",
            given=f"{shown(machine.name)} in the namespace {shown(namespace)}",
            expected=f"a class that this namespace may use; {machine.name} is for {any_of(allowed.namespaces)}"
            if allowed.namespaces
            else f"another class; {machine.name} is for no namespace",
        )
    if allowed.images is None:
        return
    hint = f"left out, the job gets the image that {machine.name} brings, or the operator's"
    images = [("spec.pod.image", pod.image, hint)]
    for group in CONTAINERS:
        for index, container in enumerate(pod.spec.get(group, [])):
            images.append((f"spec.pod.template.spec.{group}.{index}.image", container.get("image"), ""))
    expected = f"an image that {machine.name} allows: {any_of(allowed.images)}" if allowed.images else "no image"
    for path, image, hint in images:
        if image is not None and not any(_begins(image, each) for each in allowed.images):
            yield Problem(path=path, given=shown(image), expected=expected, hint=hint)


def _begins(image: str, allowed: str) -> bool:
    """Return whether an image is allowed: `registry/team` allows `registry/team/trainer`, but not `registry/team2`.

    Nor does `registry` allow `registry:8443/trainer`, for another port of a host may be anybody's.
    """
    beginning = re.escape(allowed.rstrip("/"))
    return image == allowed or re.fullmatch(f"{beginning}(/.*|[:@][^/]*)", image) is not None


def _as_file(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job as its author wrote it, without what the API server added."""
    kept = {key: raw["metadata"][key] for key in ("name", "namespace", "labels") if key in raw["metadata"]}
    return {"apiVersion": raw["apiVersion"], "kind": raw["kind"], "metadata": kept, "spec": raw["spec"]}


def _for_pods(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job as its author wrote it, without the section about the pods, which they do not read."""
    file = _as_file(raw)
    return {**file, "spec": {name: value for name, value in file["spec"].items() if name != "pod"}}
