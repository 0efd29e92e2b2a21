"""The root of the job file: its kind and name, the hardware, and the training."""

from typing import Annotated, Literal

from pydantic import Field

from shardwise.job.quantity import Duration
from shardwise.job.spec.base import DNS_LABEL, DNS_LABEL_WORDS, Grammar, Label, MarkKey, Unit
from shardwise.job.spec.pod import Pod
from shardwise.job.spec.recovery import Recovery
from shardwise.job.spec.training import Training
from shardwise.protocol.job_status import MAX_SLICES
from shardwise.protocol.strict_model import StrictModel


class Metadata(StrictModel):
    """The name and the marks of a job."""

    name: Annotated[
        str,
        Field(min_length=1, max_length=40, pattern=DNS_LABEL, description="The job's name; hosts are named after it."),
        DNS_LABEL_WORDS,
    ]
    namespace: Annotated[Label | None, Field(description="The Kubernetes namespace; unused elsewhere.")] = None
    labels: Annotated[
        dict[MarkKey, Annotated[str, Field(max_length=63)]],
        Field(default_factory=dict, max_length=64, description="Marks to select jobs by, as Kubernetes keeps them."),
    ]
    annotations: Annotated[
        dict[MarkKey, Annotated[str, Field(max_length=4096)]],
        Field(default_factory=dict, max_length=64, description="Notes for people and tools, as Kubernetes keeps them."),
    ]


class Hardware(StrictModel):
    """What the job runs on."""

    accelerator: Annotated[
        str,
        Field(min_length=1, max_length=63, description="The class of machine; cpu-sim simulates devices on any CPU."),
    ]
    topology: Annotated[
        str,
        Field(
            min_length=1,
            max_length=32,
            pattern=r"^[1-9][0-9]*(x[1-9][0-9]*)*$",
            description="The devices of one slice: hosts x devices per host, or a TPU's grid of chips.",
        ),
        Grammar("whole numbers joined by 'x', such as 1x8"),
    ]
    slices: Annotated[
        int,
        Field(ge=1, le=MAX_SLICES, description="Equal groups of devices that a slower network joins."),
        Unit("slices"),
    ] = 1


class JobSpec(StrictModel):
    """What the job is to do."""

    hardware: Annotated[Hardware, Field(description="What the job runs on.")]
    training: Annotated[Training, Field(description="What is trained, on what, how, and for how long.")]
    recovery: Annotated[Recovery, Field(description="What happens when something ends that should not.")] = Recovery()
    deadline: Annotated[
        Duration | None,
        Field(
            description="Time after which the job is saved and stopped, from above 0s to 3650d; "
            "in clusters it counts from when all hosts run."
        ),
    ] = None
    suspend: Annotated[bool, Field(description="Saves, then gives the pods back until false; for clusters.")] = False
    preflight: Annotated[
        Literal["plan"] | None,
        Field(
            description="plan: what does not fit is found in a small pod, before any accelerator is asked for; "
            "for clusters."
        ),
    ] = None
    ttl_after_finished: Annotated[
        Duration | None, Field(description="Time after its end at which a cluster removes the job; left out, never.")
    ] = None
    managed_by: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=63,
            pattern=DNS_LABEL,
            description="Which operator looks after the job, where a cluster has several.",
        ),
        DNS_LABEL_WORDS,
    ] = None
    pod: Annotated[Pod | None, Field(description="The pods of the job; needed in a cluster, unused elsewhere.")] = None


class TrainingJob(StrictModel):
    """A job file."""

    api_version: Annotated[Literal["shardwise.dev/v1alpha1"], Field(description="The version of the file's format.")]
    kind: Annotated[Literal["TrainingJob"], Field(description="The kind of object.")]
    metadata: Annotated[Metadata, Field(description="The name and the marks of the job.")]
    spec: Annotated[JobSpec, Field(description="What the job is to do.")]
