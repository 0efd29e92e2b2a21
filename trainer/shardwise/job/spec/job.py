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

    name: Annotated[str, DNS_LABEL_WORDS] = Field(
        min_length=1, max_length=40, pattern=DNS_LABEL, description="The job's name; hosts are named after it."
    )
    namespace: Label | None = Field(None, description="The Kubernetes namespace; unused elsewhere.")
    labels: dict[MarkKey, Annotated[str, Field(max_length=63)]] = Field(
        default_factory=dict, max_length=64, description="Marks to select jobs by, as Kubernetes keeps them."
    )
    annotations: dict[MarkKey, Annotated[str, Field(max_length=4096)]] = Field(
        default_factory=dict, max_length=64, description="Notes for people and tools, as Kubernetes keeps them."
    )


class Hardware(StrictModel):
    """What the job runs on."""

    accelerator: str = Field(
        min_length=1, max_length=63, description="The class of machine; cpu-sim simulates devices on any CPU."
    )
    topology: Annotated[str, Grammar("whole numbers joined by 'x', such as 1x8")] = Field(
        min_length=1,
        max_length=32,
        pattern=r"^[1-9][0-9]*(x[1-9][0-9]*)*$",
        description="The devices of one slice: hosts x devices per host, or a TPU's grid of chips.",
    )
    slices: Annotated[int, Unit("slices")] = Field(
        1, ge=1, le=MAX_SLICES, description="Equal groups of devices that a slower network joins."
    )


class JobSpec(StrictModel):
    """What the job is to do."""

    hardware: Hardware = Field(description="What the job runs on.")
    training: Training = Field(description="What is trained, on what, how, and for how long.")
    recovery: Recovery = Field(Recovery(), description="What happens when something ends that should not.")
    deadline: Duration | None = Field(
        None,
        description="Time after which the job is saved and stopped, from above 0s to 3650d; "
        "in clusters it counts from when all hosts run.",
    )
    suspend: bool = Field(False, description="Saves, then gives the pods back until false; for clusters.")
    preflight: Literal["plan"] | None = Field(
        None,
        description="plan: what does not fit is found in a small pod, before any accelerator is asked for; "
        "for clusters.",
    )
    ttl_after_finished: Duration | None = Field(
        None, description="Time after its end at which a cluster removes the job; left out, never."
    )
    managed_by: Annotated[str | None, DNS_LABEL_WORDS] = Field(
        None,
        min_length=1,
        max_length=63,
        pattern=DNS_LABEL,
        description="Which operator looks after the job, where a cluster has several.",
    )
    pod: Pod | None = Field(None, description="The pods of the job; needed in a cluster, unused elsewhere.")


class TrainingJob(StrictModel):
    """A job file."""

    api_version: Literal["shardwise.dev/v1alpha1"] = Field(description="The version of the file's format.")
    kind: Literal["TrainingJob"] = Field(description="The kind of object.")
    metadata: Metadata = Field(description="The name and the marks of the job.")
    spec: JobSpec = Field(description="What the job is to do.")
