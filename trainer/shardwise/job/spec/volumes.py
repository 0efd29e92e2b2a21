"""The volumes of a job's pods: a closed list of sources, named as Kubernetes names them.

A volume of the machine itself is not in the list; where a machine type needs one, its accelerator class has it.
"""

from typing import Annotated, Literal

from pydantic import Field

from shardwise.job.quantity import Quantity
from shardwise.job.spec.base import AbsolutePath, Label, MarkKey, ObjectName, PathText, SpecModel

_Optional = Annotated[bool, Field(description="Whether the pod starts without it.")]


class ClaimVolume(SpecModel):
    """A persistent volume that is there already."""

    claim_name: Annotated[ObjectName, Field(description="The claim, in the job's namespace.")]
    read_only: Annotated[bool, Field(description="Whether no pod may write to it.")] = False


class ConfigMapVolume(SpecModel):
    """The entries of a ConfigMap as files."""

    name: Annotated[ObjectName, Field(description="The ConfigMap, in the job's namespace.")]
    optional: _Optional = False


class SecretVolume(SpecModel):
    """The entries of a Secret as files."""

    secret_name: Annotated[ObjectName, Field(description="The Secret, in the job's namespace.")]
    optional: _Optional = False


class EmptyDirVolume(SpecModel):
    """A folder that is each pod's own and goes with it."""

    medium: Annotated[
        Literal["Memory"] | None, Field(description="Memory keeps it there; left out, on the node's disk.")
    ] = None
    size_limit: Annotated[Quantity | None, Field(description="The most that it may hold, in bytes.")] = None


class CsiVolume(SpecModel):
    """A volume that a driver makes for the pod, such as a bucket as a folder; all hosts must see the same files."""

    driver: Annotated[ObjectName, Field(description="The driver's name.")]
    read_only: Annotated[bool, Field(description="Whether no pod may write to it.")] = False
    volume_attributes: Annotated[
        dict[MarkKey, Annotated[str, Field(max_length=1024)]],
        Field(default_factory=dict, max_length=32, description="What the driver wants to know."),
    ]


class Volume(SpecModel):
    """One volume: a name and exactly one source."""

    name: Annotated[Label, Field(description="What volumeMounts call it; unique.")]
    persistent_volume_claim: Annotated[ClaimVolume | None, Field(description="A persistent volume.")] = None
    config_map: Annotated[ConfigMapVolume | None, Field(description="A ConfigMap's entries.")] = None
    secret: Annotated[SecretVolume | None, Field(description="A Secret's entries.")] = None
    empty_dir: Annotated[EmptyDirVolume | None, Field(description="A folder of each pod's own.")] = None
    csi: Annotated[CsiVolume | None, Field(description="A volume that a driver makes.")] = None


class VolumeMount(SpecModel):
    """Where a volume is seen in the container."""

    name: Annotated[Label, Field(description="One of volumes.")]
    mount_path: Annotated[AbsolutePath, Field(description="The folder in the container; unique.")]
    sub_path: Annotated[PathText | None, Field(description="The part of the volume; left out, all of it.")] = None
    read_only: Annotated[bool, Field(description="Whether the container may not write to it.")] = False
