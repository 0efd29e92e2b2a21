"""Rules on the pods of a job: a template without privileges, without names of ours, and with the class's nodes.

Kubernetes itself checks the rest of a template when the first pod is made.
"""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from shardwise.job.accelerators import offered
from shardwise.job.document import shown, wrong
from shardwise.job.rules.places import (
    a_bucket_has_the_checkpoints_too,
    checkpoints_are_shared,
    directory_is_shared,
    tokens_are_shared,
)
from shardwise.job.spec import Pod, TrainingJob
from shardwise.job.spec.base import ABSOLUTE_PATH_WORDS
from shardwise.job.spec.pod import TEMPLATE, Schema
from shardwise.job.topology import node_labels, parse_topology
from shardwise.protocol.errors import Problem
from shardwise.protocol.pods import AGENT, JOB_MOUNT, OWN_VARIABLE_PREFIXES, SCRATCH_MOUNT, TOKEN_MOUNT
from shardwise.protocol.text import any_of, close_to

OWN_MOUNTS = (JOB_MOUNT, TOKEN_MOUNT, SCRATCH_MOUNT, "/tmp", "/dev", "/proc", "/sys")  # noqa: S108  mounts of the pod
OWN_MARKS = "shardwise.dev/"
OWN_VOLUMES = ("shardwise-", "machine-")
AGENT_FIELDS = ("name", "env", "envFrom", "imagePullPolicy", "resources", "volumeMounts")
CONTAINERS = ("containers", "initContainers")

_CLASS = "its accelerator class says what a pod may do on its node"
_TOKEN = "the pods of a job hold no token of the cluster"  # noqa: S105  a reason
# What a template may not have: the group it is in (`*` for items), the field, the value that is refused (None: any),
# and why. `api/pod_rules.py` makes CEL of the same rows.
REFUSED: tuple[tuple[str, str, bool | int | str | None, str], ...] = (
    *(("spec", field, True, _CLASS) for field in ("hostIPC", "hostNetwork", "hostPID")),
    ("spec", "shareProcessNamespace", True, "other containers would see the trainer's processes and tokens"),
    ("spec", "automountServiceAccountToken", True, _TOKEN),
    ("spec", "enableServiceLinks", True, "Services of the namespace would set variables of the trainer"),
    ("spec", "activeDeadlineSeconds", None, "spec.deadline bounds a job"),
    *(("spec", field, None, "the operator sets it") for field in ("hostname", "restartPolicy", "schedulingGates")),
    ("spec", "nodeName", None, "the scheduler chooses among the nodes of the class"),
    ("spec", "terminationGracePeriodSeconds", 0, "a pod that is told to go needs time to save in"),
    ("spec.securityContext", "fsGroup", 0, _CLASS),
    ("spec.volumes.*", "hostPath", None, _CLASS),
    ("spec.volumes.*.projected.sources.*", "serviceAccountToken", None, _TOKEN),
    ("spec.volumes.*.projected.sources.*", "podCertificate", None, _TOKEN),
    *(
        (f"spec.{group}.*{place}", field, value, _CLASS)
        for group in CONTAINERS
        for place, field, value in (
            (".ports.*", "hostPort", None),
            (".securityContext", "allowPrivilegeEscalation", True),
            (".securityContext", "privileged", True),
            (".securityContext", "runAsNonRoot", False),
            (".securityContext", "runAsUser", 0),
            (".securityContext.capabilities", "add", None),
            (".securityContext.seccompProfile", "type", "Unconfined"),
        )
    ),
)

_TEMPLATE = "spec.pod.template"
_TYPES: dict[str, tuple[type, str]] = {
    "object": (dict, "a mapping"),
    "array": (list, "a list"),
    "string": (str, "text"),
    "boolean": (bool, "true or false"),
    "integer": (int, "an integer"),
}


def pods_are_sound(job: TrainingJob) -> Iterator[Problem]:
    """Check the template's shape, and the rules only if it has the right one."""
    pod = job.spec.pod
    if pod is None:
        return
    misshapen = [*_misshapen(TEMPLATE, pod.template, _TEMPLATE)]
    yield from misshapen
    if not misshapen:
        for rule in _RULES:
            yield from rule(job, pod)


def _misshapen(schema: Schema, value: Any, path: str) -> Iterator[Problem]:
    """Find what is not of the declared type or size, what a closed group does not know, and names that come twice."""
    kind, expected = _TYPES[schema["type"]]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        is_plain = kind is str and isinstance(value, bool | int | float)
        yield wrong(path, value, expected, f'quote it ("{shown(value)}") if text is meant' if is_plain else "")
    elif isinstance(value, dict):
        yield from _misshapen_fields(schema, value, path)
    elif isinstance(value, list):
        if len(value) > schema["maxItems"]:
            yield Problem(path=path, given=f"{len(value)} items", expected=f"at most {schema['maxItems']}")
        key = schema["items"].get("required", [""])[-1]  # what the API server tells items apart by
        names = [item.get(key) if isinstance(item, dict) else None for item in value]
        for index, item in enumerate(value):
            yield from _misshapen(schema["items"], item, f"{path}.{index}")
            if names[index] is not None and names[index] in names[:index]:
                expected = f"a {key} of {path.rpartition('.')[2]} that is not there yet"
                yield wrong(f"{path}.{index}.{key}", names[index], expected)
    elif isinstance(value, str) and len(value) > schema["maxLength"]:
        yield wrong(path, value, f"at most {schema['maxLength']} characters")
    elif isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield wrong(path, value, ABSOLUTE_PATH_WORDS.words)


def _misshapen_fields(schema: Schema, value: dict[str, Any], path: str) -> Iterator[Problem]:
    known, more = schema.get("properties", {}), schema["additionalProperties"]
    for name in schema.get("required", []):
        if name not in value:
            yield Problem(path=f"{path}.{name}", given="nothing", expected=_TYPES[known[name]["type"]][1])
    for name, item in value.items():
        below = known.get(name, more)
        if isinstance(below, dict):
            yield from _misshapen(below, item, f"{path}.{name}")
        elif not below:
            given, hint = f'the unknown key "{name}"', close_to(name, known)
            yield Problem(path=f"{path}.{name}", given=given, expected=f"one of {any_of(known)}", hint=hint)


def nothing_is_refused(_: TrainingJob, pod: Pod) -> Iterator[Problem]:
    """Refuse what gives a pod privileges, or decides what the operator decides."""
    for group, field, value, reason in REFUSED:
        for path, found in _at(pod.template, group):
            given = found.get(field)
            if given is not None and (value is None or given == value):
                yield wrong(f"{path}.{field}", given, "it left out", reason)


def our_names_are_ours(job: TrainingJob, pod: Pod) -> Iterator[Problem]:
    """Refuse names that are the operator's: of labels, annotations, volumes and containers, its class's too."""
    for group, marks in pod.metadata.items():
        for key in marks:
            if key.startswith(OWN_MARKS):
                yield wrong(f"{_TEMPLATE}.metadata.{group}", key, f"keys that do not begin with {OWN_MARKS}")
    for path, volume in _at(pod.template, "spec.volumes.*"):
        if volume["name"].startswith(OWN_VOLUMES):
            yield wrong(f"{path}.name", volume["name"], f"a name that does not begin with {any_of(OWN_VOLUMES)}")
    accelerator = offered().get(job.spec.hardware.accelerator)
    of_class = [sidecar.name for sidecar in accelerator.spec.sidecars] if accelerator else []
    for group, ours in (("containers", of_class), ("initContainers", [AGENT, *of_class])):
        for path, container in _at(pod.template, f"spec.{group}.*"):
            if container["name"] in ours:
                yield wrong(f"{path}.name", container["name"], "another name: the trainer or the class has this one")


def the_agent_stays_itself(_: TrainingJob, pod: Pod) -> Iterator[Problem]:
    """Refuse more than variables, mounts and resources for the trainer's container; the rest is the operator's."""
    for path, container in _at(pod.template, "spec.containers.*"):
        if container["name"] != AGENT:
            continue
        for field in sorted(container.keys() - AGENT_FIELDS):
            hint = "the image is spec.pod.image" if field == "image" else ""
            expected = f"of the container {AGENT} only {', '.join(AGENT_FIELDS)}"
            yield wrong(f"{path}.{field}", container[field], expected, hint)
        for place, variable in _at(container, "env.*", path):
            if variable["name"].startswith(OWN_VARIABLE_PREFIXES):
                expected = f"a name that does not begin with {any_of(OWN_VARIABLE_PREFIXES)}"
                yield wrong(f"{place}.name", variable["name"], expected, "Shardwise sets these itself")
        for place, mount in _at(container, "volumeMounts.*", path):
            folder, owns = PurePosixPath(mount["mountPath"]), map(PurePosixPath, OWN_MOUNTS)
            if ".." in folder.parts or any(folder.is_relative_to(own) or own.is_relative_to(folder) for own in owns):
                expected = f"a folder apart from {any_of(OWN_MOUNTS)}, without '..'"
                yield wrong(f"{place}.mountPath", mount["mountPath"], expected)


def mounts_name_volumes(_: TrainingJob, pod: Pod) -> Iterator[Problem]:
    """Require that mounts name volumes of the template, not ours nor those of the class, which may be the node's."""
    known = [volume["name"] for volume in pod.spec.get("volumes", [])]
    expected = f"one of {_TEMPLATE}.spec.volumes: {any_of(known)}" if known else "a volume, and the template has none"
    for group in CONTAINERS:
        for path, mount in _at(pod.template, f"spec.{group}.*.volumeMounts.*"):
            if mount["name"] not in known:
                yield wrong(f"{path}.name", mount["name"], expected)


def selectors_keep_to_the_class(job: TrainingJob, pod: Pod) -> Iterator[Problem]:
    """Require that a job chooses among the nodes of its class, and takes no others."""
    hardware = job.spec.hardware
    accelerator = offered().get(hardware.accelerator)
    if accelerator is None or parse_topology(accelerator, hardware.topology) is None:
        return
    labels = node_labels(accelerator, hardware)
    for key, value in pod.spec.get("nodeSelector", {}).items():
        if labels.get(key, value) != value:
            expected = f"{shown(labels[key])}, which {hardware.accelerator} asks for, or no such key"
            yield wrong(f"{_TEMPLATE}.spec.nodeSelector.{key}", value, expected)


def _at(group: Any, below: str, path: str = _TEMPLATE) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every group at a dotted path (`*` for items) below a group that lies at `path`, with its own path."""
    part, _, rest = below.partition(".")
    if not part:
        yield path, group
    elif part == "*":
        for index, item in enumerate(group):
            yield from _at(item, rest, f"{path}.{index}")
    elif part in group:
        yield from _at(group[part], rest, f"{path}.{part}")


_RULES = (
    nothing_is_refused,
    our_names_are_ours,
    the_agent_stays_itself,
    mounts_name_volumes,
    directory_is_shared,
    a_bucket_has_the_checkpoints_too,
    checkpoints_are_shared,
    tokens_are_shared,
    selectors_keep_to_the_class,
)
