"""The status of a TrainingJob in a cluster as types: what the operator writes and people read.

The schema of the CRD is generated from it; the operator builds the data itself. Numbers that may not be finite are
texts, because JSON has no such numbers.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from shardwise.protocol.strict_model import StrictModel

MAX_SLICES = 1024
# The status of a job holds some 250 bytes of each host in the worst case, and etcd refuses objects of 1.5 MB.
MAX_HOSTS = 4096
MAX_PLACED = MAX_HOSTS + MAX_SLICES  # what has a place: each host, and each slice as a whole

_Step = Annotated[int, Field(ge=0, le=2**31 - 1)]
_Number = Annotated[int, Field(ge=0, le=2**31 - 1)]
_Word = Annotated[str, Field(max_length=63)]
_Figure = Annotated[str, Field(max_length=32)]
_Time = Annotated[str, Field(max_length=40, json_schema_extra={"format": "date-time"})]
_HostName = Annotated[str, Field(max_length=16)]
_Node = Annotated[str, Field(max_length=253)]


def _map(most: int, description: str) -> Any:
    """Return the field of a mapping, which is empty at first."""
    return Field(default_factory=dict, max_length=most, description=description)


class Condition(StrictModel):
    """One statement on the job, as all of Kubernetes writes them."""

    type: Annotated[str, Field(min_length=1, max_length=63, description="What the statement is about.")]
    status: Annotated[Literal["True", "False", "Unknown"], Field(description="Whether it holds.")]
    reason: Annotated[str, Field(max_length=63, description="Why, in one word.")] = ""
    message: Annotated[str, Field(max_length=32768, description="Why, for people.")] = ""
    last_transition_time: Annotated[_Time, Field(description="When its status last changed.")]
    observed_generation: Annotated[int, Field(ge=0, le=2**53, description="The generation that it is about.")] = 0


class JobProgress(StrictModel):
    """How far the training is, by the last status of host 0."""

    step: Annotated[_Step | None, Field(description="The last completed step.")] = None
    of: Annotated[_Step | None, Field(description="The steps of the whole run.")] = None
    loss: Annotated[_Figure | None, Field(description="The loss of the last step.")] = None
    tokens_per_second: Annotated[_Figure | None, Field(description="Tokens per second of the whole job.")] = None
    mfu: Annotated[_Figure | None, Field(description="The share of the devices' peak in use.")] = None
    eta: Annotated[_Figure | None, Field(description="Time to the last step at this pace.")] = None
    slowest_host: Annotated[str | None, Field(max_length=63, description="The host that the others wait for.")] = None
    observed_at: Annotated[_Time | None, Field(description="When host 0 said so.")] = None


class SliceLoss(StrictModel):
    """What a slice has lost at once."""

    time: Annotated[_Time, Field(description="When it was charged.")]
    hosts: Annotated[
        tuple[_Number, ...], Field(strict=False, max_length=MAX_HOSTS, description="The hosts whose pods it took.")
    ]


class SavedCheckpoint(StrictModel):
    """The newest checkpoint that counts."""

    step: Annotated[_Step, Field(description="Its step.")]
    time: Annotated[_Time | None, Field(description="When it was complete.")] = None
    seconds: Annotated[_Figure | None, Field(description="How long the save took.")] = None


class Preflight(StrictModel):
    """The plan that comes before the pods, where the job asks for one."""

    of: Annotated[_Word, Field(description="What is planned, as a digest; what fits once is not planned again.")]
    finding: Annotated[
        Literal["Fits", "NotFitting", "Unknown"] | None,
        Field(description="What came of it; left out while it is made."),
    ] = None
    lost: Annotated[_Number, Field(description="How many of its pods were lost.")] = 0


class HostCount(StrictModel):
    """How many hosts of the job are there."""

    ready: Annotated[_Number, Field(description="Hosts whose trainer has joined the run.")]
    of: Annotated[_Number, Field(description="Hosts that the job asks for.")]
    summary: Annotated[_Figure | None, Field(description="Both, as the HOSTS column shows them.")] = None


class JobStatus(StrictModel):
    """How a job stands; measured, never guessed."""

    phase: Annotated[
        Literal["Pending", "Starting", "Running", "Recovering", "Suspending", "Suspended", "Complete", "Failed"] | None,
        Field(description="What the job is doing."),
    ] = None
    reason: Annotated[str | None, Field(max_length=63, description="Why, in one word.")] = None
    message: Annotated[str | None, Field(max_length=32768, description="Why, for people.")] = None
    conditions: Annotated[
        tuple[Condition, ...], Field(strict=False, max_length=16, description="Complete, Failed, Suspended, Ready...")
    ] = ()
    observed_generation: Annotated[
        int | None, Field(ge=0, le=2**53, description="The generation that the operator has looked at.")
    ] = None
    progress: Annotated[JobProgress | None, Field(description="How far the training is.")] = None
    checkpoint: Annotated[SavedCheckpoint | None, Field(description="The newest checkpoint.")] = None
    restarts: dict[_Word, _Number] = _map(32, "Restarts by cause.")
    restart_count: Annotated[_Number | None, Field(description="Restarts of all causes.")] = None
    hosts: Annotated[HostCount | None, Field(description="How many hosts are there.")] = None
    goodput: Annotated[_Figure | None, Field(description="The share of the time that went into kept steps.")] = None
    digest: Annotated[str | None, Field(max_length=128, description="The digest of the final weights.")] = None
    start_time: Annotated[_Time | None, Field(description="When this round began.")] = None
    run_time: Annotated[
        _Time | None, Field(description="When all pods of this round first ran; the deadline counts from it.")
    ] = None
    completion_time: Annotated[_Time | None, Field(description="When the job ended.")] = None
    round: Annotated[_Number | None, Field(description="How often the job was resumed.")] = None
    preflight: Annotated[Preflight | None, Field(description="The plan that comes before the pods.")] = None
    attempts: dict[_HostName, _Number] = _map(MAX_HOSTS, "The number of each host's pod, by slice-host.")
    pods: dict[_HostName, _Word] = _map(MAX_HOSTS, "The UID of each host's pod, by slice-host.")
    charged: dict[_Word, _Number] = _map(32, "Losses of pods since a newer checkpoint, by cause.")
    charged_step: Annotated[_Step | None, Field(description="The newest checkpoint at the last of them.")] = None
    last_loss: dict[_HostName, SliceLoss] = _map(MAX_SLICES, "What each slice has lost with its last charge.")
    losses: dict[_Word, _Number] = _map(32, "Losses of pods in the life of the job, by cause.")
    lost_at: dict[_HostName, _Node] = _map(MAX_PLACED, "Where a host or slice lost a pod.")
    avoid: dict[_HostName, _Node] = _map(MAX_PLACED, "Where that happened twice, so not there again.")
    leaving: dict[_HostName, _Node] = _map(MAX_HOSTS, "The node of a host that is to be taken down.")
    save_time: Annotated[_Time | None, Field(description="When a save was last asked for because of that.")] = None
    image: Annotated[
        str | None, Field(max_length=2048, description="The image of this round by its digest, for replaced pods.")
    ] = None
    not_before: Annotated[_Time | None, Field(description="No pod is made before this.")] = None
    stop_time: Annotated[_Time | None, Field(description="When a save and a stop were first asked for.")] = None
