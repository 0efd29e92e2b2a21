"""The `pod` section: what a cluster must know of a job's pods, beside what its accelerator class says.

A closed list, named as Kubernetes names it.  A laptop has no pods, and `shardwise run` reads nothing of it.
"""

from typing import Annotated, Literal

from pydantic import Field

from shardwise.job.quantity import Duration, Quantity
from shardwise.job.spec.base import MAX_INT32, AbsolutePath, Grammar, MarkKey, ObjectName, SpecModel, Unit
from shardwise.job.spec.volumes import Volume, VolumeMount

LabelValue = Annotated[str, Field(max_length=63)]
Image = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^\s]+$"), Grammar("without spaces")]
Quantities = dict[MarkKey, Quantity]
VariableName = Annotated[
    str,
    Field(min_length=1, max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"),
    Grammar("letters, digits and '_', no digit first"),
]


class Toleration(SpecModel):
    """A taint of nodes that the pods may run on all the same."""

    key: Annotated[MarkKey | None, Field(description="The taint's key; left out with Exists, every taint.")] = None
    operator: Annotated[
        Literal["Exists", "Equal"] | None,
        Field(description="Whether any value is tolerated or one; left out, Equal."),
    ] = None
    value: Annotated[str | None, Field(max_length=63, description="The taint's value; not with Exists.")] = None
    effect: Annotated[
        Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None,
        Field(description="The taint's effect; left out, all."),
    ] = None
    toleration_seconds: Annotated[
        int | None,
        Field(ge=0, le=MAX_INT32, description="How long NoExecute is tolerated; left out, for good."),
        Unit("seconds"),
    ] = None


class Resources(SpecModel):
    """What the container of each host asks for, beside the devices, which its accelerator class asks for."""

    requests: Annotated[
        Quantities, Field(default_factory=dict, max_length=32, description="Amounts that a node must have free.")
    ]
    limits: Annotated[
        Quantities, Field(default_factory=dict, max_length=32, description="Amounts that it may not go beyond.")
    ]


class EnvVariable(SpecModel):
    """One variable of the training processes."""

    name: Annotated[VariableName, Field(description="The variable; unique, and none that Shardwise sets itself.")]
    value: Annotated[str, Field(max_length=32768, description="Its value, as it stands.")]


class NamedReference(SpecModel):
    """A ConfigMap or Secret by name."""

    name: Annotated[ObjectName, Field(description="Its name, in the job's namespace.")]
    optional: Annotated[bool, Field(description="Whether the pod starts without it.")] = False


class EnvSource(SpecModel):
    """Variables from the entries of a ConfigMap or a Secret: exactly one of the two."""

    prefix: Annotated[VariableName | None, Field(description="Put before each entry's name.")] = None
    config_map_ref: Annotated[NamedReference | None, Field(description="A ConfigMap.")] = None
    secret_ref: Annotated[NamedReference | None, Field(description="A Secret.")] = None


class ImagePullSecret(SpecModel):
    """A Secret that opens a registry."""

    name: Annotated[ObjectName, Field(description="The Secret, in the job's namespace.")]


class Pod(SpecModel):
    """The pods of a job, one for each host."""

    directory: Annotated[
        AbsolutePath,
        Field(description="The run directory: a folder below a mounted volume that all hosts share."),
    ]
    image: Annotated[
        Image | None, Field(description="The trainer's image; left out, the accelerator class's or the operator's.")
    ] = None
    image_pull_policy: Annotated[
        Literal["Always", "IfNotPresent", "Never"] | None,
        Field(description="When a node fetches the image; left out, as Kubernetes does by its tag."),
    ] = None
    image_pull_secrets: Annotated[
        tuple[ImagePullSecret, ...], Field(strict=False, max_length=16, description="What opens private registries.")
    ] = ()
    service_account_name: Annotated[
        ObjectName | None, Field(description="Who the pods are to a cloud; they get no token of the cluster.")
    ] = None
    node_selector: Annotated[
        dict[MarkKey, LabelValue],
        Field(default_factory=dict, max_length=64, description="Labels of the nodes, beside the class's."),
    ]
    tolerations: Annotated[
        tuple[Toleration, ...],
        Field(strict=False, max_length=64, description="Taints of the nodes, beside the class's."),
    ] = ()
    scheduler_name: Annotated[ObjectName | None, Field(description="Who places the pods.")] = None
    priority_class_name: Annotated[ObjectName | None, Field(description="The pods' PriorityClass.")] = None
    labels: Annotated[
        dict[MarkKey, LabelValue],
        Field(default_factory=dict, max_length=64, description="Labels of the pods; none of shardwise.dev."),
    ]
    annotations: Annotated[
        dict[MarkKey, Annotated[str, Field(max_length=4096)]],
        Field(default_factory=dict, max_length=64, description="Annotations of the pods; none of shardwise.dev."),
    ]
    resources: Annotated[
        Resources, Field(default_factory=Resources, description="What the container of each host asks for.")
    ]
    volumes: Annotated[
        tuple[Volume, ...], Field(strict=False, max_length=64, description="The pods' volumes, by name.")
    ] = ()
    volume_mounts: Annotated[
        tuple[VolumeMount, ...], Field(strict=False, max_length=64, description="Where the volumes are seen.")
    ] = ()
    env: Annotated[
        tuple[EnvVariable, ...], Field(strict=False, max_length=128, description="Variables of the training processes.")
    ] = ()
    env_from: Annotated[
        tuple[EnvSource, ...], Field(strict=False, max_length=16, description="Variables from ConfigMaps and Secrets.")
    ] = ()
    fs_group: Annotated[
        int | None,
        Field(ge=1, le=MAX_INT32, description="The group that owns the volumes; left out, 10001."),
        Unit("group number"),
    ] = None
    termination_grace_period: Annotated[
        Duration,
        Field(description="Time to save in before a pod that is told to go is ended; more than a save takes."),
        Unit("duration"),
    ] = Duration("2m")
