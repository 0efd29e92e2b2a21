"""The `pod` section: a run's directory, the trainer's image, and a PodTemplateSpec as Kubernetes writes it.

Of the template only that is declared here which Shardwise reads, merges or refuses; whatever else a pod has goes to the
API server as it is written. A laptop has no pods, and `shardwise run` reads nothing of it.
"""

from collections.abc import Mapping
from math import ceil
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from shardwise.job.quantity import Duration, Quantity
from shardwise.job.spec.base import ABSOLUTE_PATH, MAX_PATH_LENGTH, Grammar, MarkKey, SharedPlace, Unit
from shardwise.protocol.message import MAX_INT32
from shardwise.protocol.pods import AGENT
from shardwise.protocol.strict_model import StrictModel

LabelValue = Annotated[str, Field(max_length=63)]
Image = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^\s]+$"), Grammar("without spaces")]
Quantities = dict[MarkKey, Quantity]
VariableName = Annotated[
    str,
    Field(min_length=1, max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"),
    Grammar("letters, digits and '_', no digit first"),
]
Schema = dict[str, Any]

DEFAULT_GRACE_SECONDS = 120


class Toleration(StrictModel):
    """A taint of nodes that the pods of an accelerator class may run on all the same."""

    key: MarkKey | None = Field(None, description="The taint's key; left out with Exists, every taint.")
    operator: Literal["Exists", "Equal"] | None = Field(
        None, description="Whether any value is tolerated or one; left out, Equal."
    )
    value: str | None = Field(None, max_length=63, description="The taint's value; not with Exists.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="The taint's effect; left out, all."
    )
    toleration_seconds: Annotated[int | None, Unit("seconds")] = Field(
        None, ge=0, le=MAX_INT32, description="How long NoExecute is tolerated; left out, for good."
    )


class EnvVariable(StrictModel):
    """One variable of the training processes of an accelerator class."""

    name: VariableName = Field(description="The variable; unique, and none that Shardwise sets itself.")
    value: str = Field(max_length=32768, description="Its value, as it stands.")


def _closed(fields: Mapping[str, Schema], *required: str) -> Schema:
    """Return the schema of a mapping with these fields and no others."""
    parts = {"properties": dict(fields), "required": [*required]}
    return {"type": "object", **{name: part for name, part in parts.items() if part}, "additionalProperties": False}


def _open(fields: Mapping[str, Schema] | None = None, *required: str) -> Schema:
    """Return the schema of a mapping that may have more fields than these, as Kubernetes knows them."""
    return {**_closed(fields or {}, *required), "additionalProperties": True}


def _map(value: Schema) -> Schema:
    return {"type": "object", "additionalProperties": value, "maxProperties": 64}


def _list(item: Schema, most: int = 64) -> Schema:
    return {"type": "array", "items": item, "maxItems": most}


def _text(most: int) -> Schema:
    return {"type": "string", "maxLength": most}


_NAME, _KEY, _FLAG, _NUMBER = _text(63), _text(317), {"type": "boolean"}, {"type": "integer"}
_WORDS = _list(_text(32768), 256)
_MOUNT_PATH = {**_text(MAX_PATH_LENGTH), "pattern": ABSOLUTE_PATH}
_CONTAINER_SECURITY = _closed(
    {
        **dict.fromkeys(("allowPrivilegeEscalation", "privileged", "readOnlyRootFilesystem", "runAsNonRoot"), _FLAG),
        **dict.fromkeys(("runAsGroup", "runAsUser"), _NUMBER),
        "capabilities": _closed({"add": _WORDS, "drop": _WORDS}),
        "seccompProfile": _open({"type": _NAME}),
    }
)
_CONTAINER = _open(
    {
        "name": _NAME,
        "image": _text(1024),
        "command": _WORDS,
        "args": _WORDS,
        "env": _list(_open({"name": _text(256), "value": _text(32768)}, "name"), 128),
        "envFrom": _list(_open(), 16),
        "imagePullPolicy": _NAME,
        "ports": _list(_open({"hostPort": _NUMBER})),
        "resources": _open({"limits": _open(), "requests": _open()}),
        "securityContext": _CONTAINER_SECURITY,
        "volumeMounts": _list(
            _open({"name": _NAME, "mountPath": _MOUNT_PATH, "readOnly": _FLAG}, "name", "mountPath"),
        ),
    },
    "name",
)
# The sources that PodSecurity's restricted level allows, and hostPath, to be refused by its name.
_VOLUME = _closed(
    {
        "name": _NAME,
        **dict.fromkeys(("configMap", "downwardAPI", "emptyDir", "ephemeral", "hostPath", "image", "secret"), _open()),
        **dict.fromkeys(("csi", "persistentVolumeClaim"), _open({"readOnly": _FLAG})),
        "projected": _open({"sources": _list(_open({"serviceAccountToken": _open(), "podCertificate": _open()}))}),
    },
    "name",
)
_REQUIRED, _PREFERRED = (f"{how}DuringSchedulingIgnoredDuringExecution" for how in ("required", "preferred"))
_NODE_TERMS = _open({"nodeSelectorTerms": _list(_open({"matchFields": _list(_open())}))}, "nodeSelectorTerms")
TEMPLATE = _closed(
    {
        "metadata": _closed({"labels": _map(_NAME), "annotations": _map(_text(4096))}),
        "spec": _open(
            {
                **dict.fromkeys(("automountServiceAccountToken", "enableServiceLinks", "shareProcessNamespace"), _FLAG),
                **dict.fromkeys(("hostIPC", "hostNetwork", "hostPID"), _FLAG),
                **dict.fromkeys(("activeDeadlineSeconds", "terminationGracePeriodSeconds"), _NUMBER),
                "affinity": _open(
                    {
                        "nodeAffinity": _open({_REQUIRED: _NODE_TERMS, _PREFERRED: _list(_open())}),
                        "podAntiAffinity": _open({_REQUIRED: _list(_open())}),
                    }
                ),
                "containers": _list(_CONTAINER, 8),
                "hostname": _NAME,
                "initContainers": _list(_CONTAINER, 8),
                "nodeName": _text(253),
                "nodeSelector": _map(_NAME),
                "restartPolicy": _NAME,
                "schedulingGates": _list(_open()),
                "securityContext": _closed(
                    {
                        "fsGroup": _NUMBER,
                        "fsGroupChangePolicy": _NAME,
                        "supplementalGroups": _list(_NUMBER),
                        "supplementalGroupsPolicy": _NAME,
                    }
                ),
                "tolerations": _list(_open({"key": _KEY, "effect": _NAME})),
                "volumes": _list(_VOLUME),
            }
        ),
    }
)

_OF_AGENT = f"spec.containers, of the container {AGENT}"
_OF_POD = "spec.securityContext"
# Where the fields are that `pod` had of its own in earlier releases.
MOVED = {
    **dict.fromkeys(("labels", "annotations"), "metadata"),
    **dict.fromkeys(("env", "envFrom", "imagePullPolicy", "resources", "volumeMounts"), _OF_AGENT),
    **dict.fromkeys(("imagePullSecrets", "nodeSelector", "priorityClassName", "schedulerName"), "spec"),
    **dict.fromkeys(("serviceAccountName", "tolerations", "volumes"), "spec"),
    "fsGroup": _OF_POD,
    "terminationGracePeriod": "spec, as terminationGracePeriodSeconds",
}


class Pod(StrictModel):
    """The pods of a job, one for each host."""

    directory: SharedPlace = Field(
        description="The run directory: a folder below a mounted volume that all hosts share, or gs:// or s3://."
    )
    image: Image | None = Field(
        None, description="The trainer's image; left out, the accelerator class's or the operator's."
    )
    template: Annotated[dict[str, Any], WithJsonSchema(TEMPLATE)] = Field(
        default_factory=dict,
        max_length=2,
        description="The pods' metadata and spec, as a PodTemplateSpec of Kubernetes; "
        f"the container {AGENT} is the trainer's.",
    )

    @property
    def metadata(self) -> dict[str, dict[str, str]]:
        """The template's labels and annotations."""
        return dict(self.template.get("metadata", {}))

    @property
    def spec(self) -> dict[str, Any]:
        """The template's pod spec."""
        return dict(self.template.get("spec", {}))

    @property
    def agent(self) -> dict[str, Any]:
        """What the template adds to the trainer's own container."""
        return next((each for each in self.spec.get("containers", []) if each["name"] == AGENT), {})


def in_template(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod section that an earlier release has written, with fields of its own, in this one's spelling."""

    def of(place: str) -> dict[str, Any]:
        return {name: value for name, value in pod.items() if MOVED.get(name) == place}

    if not MOVED.keys() & pod.keys():
        return dict(pod)
    spec = of("spec") | {"containers": [{"name": AGENT, **of(_OF_AGENT)}], "securityContext": of(_OF_POD)}
    if "terminationGracePeriod" in pod:
        spec["terminationGracePeriodSeconds"] = ceil(Duration(pod["terminationGracePeriod"]).seconds)
    kept = {name: value for name, value in pod.items() if name not in MOVED}
    return {**kept, "template": {"metadata": of("metadata"), "spec": spec}}
