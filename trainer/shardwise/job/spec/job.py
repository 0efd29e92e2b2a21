"""The root of the job file: its kind and name, the hardware, and the training or a program."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from shardwise.job.quantity import Duration
from shardwise.job.spec.base import DNS_LABEL, DNS_LABEL_WORDS, Annotations, Grammar, Label, MarkKey, Unit
from shardwise.job.spec.pod import Pod
from shardwise.job.spec.program import Program
from shardwise.job.spec.recovery import Recovery
from shardwise.job.spec.training import Training
from shardwise.protocol.job_status import MAX_SLICES
from shardwise.protocol.strict_model import StrictModel

# An operator's own name, or as Kubernetes writes that of a controller: a domain, and a path in it.
_CONTROLLER = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[a-z0-9]([-a-z0-9]*[a-z0-9])?)?$"
_CONTROLLER_WORDS = Grammar("lower-case letters, digits, '-' and '.', after them '/' and a name if it is a domain's")


class Metadata(StrictModel):
    """The name and the marks of a job."""

    name: Annotated[str, DNS_LABEL_WORDS] = Field(
        min_length=1, max_length=40, pattern=DNS_LABEL, description="The job's name; hosts are named after it."
    )
    namespace: Label | None = Field(None, description="The Kubernetes namespace; unused elsewhere.")
    labels: dict[MarkKey, Annotated[str, Field(max_length=63)]] = Field(
        default_factory=dict, max_length=64, description="Marks to select jobs by, as Kubernetes keeps them."
    )
    annotations: Annotations = Field(
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
    # `training` below is what everything reads that has to do with a job of the trainer.
    training_if_any: Training | None = Field(
        None, alias="training", description="What is trained, on what, how, and for how long."
    )
    program: Program | None = Field(None, description="Own program that runs in place of the trainer.")
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
        None,
        description="Time after its end at which a cluster removes the job; left out, as its operator says, or never.",
    )
    managed_by: Annotated[str | None, _CONTROLLER_WORDS] = Field(
        None,
        min_length=1,
        max_length=63,
        pattern=_CONTROLLER,
        description="Which operator looks after the job, where a cluster has several, or another controller: all of "
        "Shardwise's leave it alone.",
    )
    pod: Pod | None = Field(None, description="The pods of the job; needed in a cluster, unused elsewhere.")

    @property
    def training(self) -> Training:
        """What is trained, of a job that has no program of its own."""
        assert self.training_if_any is not None, "only asked of a job with a training section"
        return self.training_if_any

    @property
    def num_steps(self) -> int | None:
        """The steps of the whole run; None of a program, which may report them."""
        return self.training_if_any.steps if self.training_if_any else None

    @property
    def checkpoint_path(self) -> str | None:
        """The folder or URL of the checkpoints that the job names; None for that of the run directory."""
        return self.training_if_any.checkpoint.path if self.training_if_any else None

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy, with `training` by the name that it is read by."""
        named = {"training_if_any" if name == "training" else name: value for name, value in (update or {}).items()}
        return super().model_copy(update=named, deep=deep)


class TrainingJob(StrictModel):
    """A job file."""

    api_version: Literal["shardwise.dev/v1alpha1"] = Field(description="The version of the file's format.")
    kind: Literal["TrainingJob"] = Field(description="The kind of object.")
    metadata: Metadata = Field(description="The name and the marks of the job.")
    spec: JobSpec = Field(description="What the job is to do.")

    def with_spec(self, **sections: Any) -> Self:
        """Return the job with other sections, such as `training`."""
        return self.model_copy(update={"spec": self.spec.model_copy(update=sections)})
