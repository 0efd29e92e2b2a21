"""The status of a TrainingJob in a cluster as types: what the operator writes and people read.

The schema of the CRD is generated from it, and the operator's `write/status.py` makes its groups of these types.
Numbers that may not be finite are texts, because JSON has no such numbers.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from shardwise.protocol.message import MAX_INT32
from shardwise.protocol.strict_model import StrictModel

MAX_SLICES = 1024
# The status of a job holds some 250 bytes of each host in the worst case, and etcd refuses objects of 1.5 MB.
MAX_HOSTS = 4096
MAX_PLACED = MAX_HOSTS + MAX_SLICES  # what has a place: each host, and each slice as a whole
MAX_NUMBERED = MAX_HOSTS + 1  # what has pods of its own, each with its number: each host, and the plan
MAX_PHASES = 10  # that a status keeps of a job's past
MAX_MESSAGE = 32768  # characters, of a condition too

_Step = Annotated[int, Field(ge=0, le=MAX_INT32)]
_Number = Annotated[int, Field(ge=0, le=MAX_INT32)]
_Word = Annotated[str, Field(max_length=63)]
_Figure = Annotated[str, Field(max_length=32)]
_Time = Annotated[str, Field(max_length=40, json_schema_extra={"format": "date-time"})]
_HostName = Annotated[str, Field(max_length=16)]
_Node = Annotated[str, Field(max_length=253)]
_Phase = Literal["Pending", "Starting", "Running", "Recovering", "Suspending", "Suspended", "Complete", "Failed"]


def _map(most: int, description: str) -> Any:
    """Return the field of a mapping, which is empty at first."""
    return Field(default_factory=dict, max_length=most, description=description)


class Condition(StrictModel):
    """One statement on the job, as all of Kubernetes writes them."""

    type: str = Field(min_length=1, max_length=63, description="What the statement is about.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: str = Field("", max_length=63, description="Why, in one word.")
    message: str = Field("", max_length=MAX_MESSAGE, description="Why, for people.")
    last_transition_time: _Time = Field(description="When its status last changed.")
    observed_generation: int = Field(0, ge=0, le=2**53, description="The generation that it is about.")


class JobProgress(StrictModel):
    """How far the training is, by the last status of host 0."""

    step: _Step | None = Field(None, description="The last completed step.")
    of: _Step | None = Field(None, description="The steps of the whole run.")
    loss: _Figure | None = Field(None, description="The loss of the last step.")
    held_out_loss: _Figure | None = Field(None, description="The loss of the last evaluation on held-out documents.")
    tokens_per_second: _Figure | None = Field(None, description="Tokens per second of the whole job.")
    mfu: _Figure | None = Field(None, description="The share of the devices' peak in use.")
    eta: _Figure | None = Field(None, description="Time to the last step at this pace.")
    slowest_host: str | None = Field(None, max_length=63, description="The host that the others wait for.")
    observed_at: _Time | None = Field(None, description="When host 0 said so.")


class SliceLoss(StrictModel):
    """What a slice has lost at once."""

    time: _Time = Field(description="When it was charged.")
    hosts: tuple[_Number, ...] = Field(strict=False, max_length=MAX_HOSTS, description="The hosts whose pods it took.")
    cause: _Word | None = Field(None, description="Why, as it was charged.")


class SavedCheckpoint(StrictModel):
    """The newest checkpoint that counts."""

    step: _Step = Field(description="Its step.")
    time: _Time | None = Field(None, description="When it was complete.")
    seconds: _Figure | None = Field(None, description="How long the save took.")


class SavesFailed(StrictModel):
    """The saves that have failed since the newest checkpoint."""

    in_a_row: _Number = Field(description="How many.")
    reason: str = Field(max_length=4096, description="Why the last one failed.")
    time: _Time = Field(description="When that was heard.")


class Preflight(StrictModel):
    """The plan that comes before the pods, where the job asks for one."""

    of: _Word = Field(description="What is planned, as a digest; what fits once is not planned again.")
    finding: Literal["Fits", "NotFitting", "Unknown"] | None = Field(
        None, description="What came of it; left out while it is made."
    )
    lost: _Number = Field(0, description="How many of its pods were lost.")


class Growth(StrictModel):
    """How a round with fewer slices takes in those that are back."""

    ask_time: _Time | None = Field(None, description="When the run was to save and stop for it.")
    begun: bool = Field(False, description="Whether this round has slices that were taken in and have not run yet.")
    in_vain: _Number = Field(0, description="How often in a row slices were asked for that could not be used.")
    not_before: _Time | None = Field(None, description="No places are held for slices before this.")


class HostCount(StrictModel):
    """How many hosts of the job are there."""

    ready: _Number = Field(description="Hosts whose trainer has joined the run.")
    of: _Number = Field(description="Hosts that the job asks for.")
    summary: _Figure | None = Field(None, description="Both, as the HOSTS column shows them.")


class PhaseRecord(StrictModel):
    """One phase that the job went through. The next one begins when it ends."""

    name: _Phase = Field(description="The phase.")
    number: _Number = Field(description="Which of the job's phases it is, from 0.")
    start: _Time = Field(description="When it began, to the millisecond.")
    end: _Time | None = Field(None, description="When it ended; left out while it lasts, and of the end.")
    cause: _Word | None = Field(None, description="The cause of the last restart that was counted in it.")
    step: _Step | None = Field(None, description="The last completed step when it ended.")


class JobStatus(StrictModel):
    """How a job stands; measured, never guessed."""

    phase: _Phase | None = Field(None, description="What the job is doing.")
    reason: str | None = Field(None, max_length=63, description="Why, in one word.")
    message: str | None = Field(None, max_length=MAX_MESSAGE, description="Why, for people.")
    conditions: tuple[Condition, ...] = Field(
        (), strict=False, max_length=16, description="Complete, Failed, Suspended, Ready..."
    )
    observed_generation: int | None = Field(
        None, ge=0, le=2**53, description="The generation that the operator has looked at."
    )
    phases: tuple[PhaseRecord, ...] = Field(
        (), strict=False, max_length=MAX_PHASES, description="The last phases that the job went through, and this one."
    )
    progress: JobProgress | None = Field(None, description="How far the training is.")
    checkpoint: SavedCheckpoint | None = Field(None, description="The newest checkpoint.")
    failed_saves: SavesFailed | None = Field(
        None, description="The saves that have failed since the newest checkpoint; left out while none has."
    )
    restarts: dict[_Word, _Number] = _map(32, "Restarts by cause.")
    restart_count: _Number | None = Field(None, description="Restarts of all causes.")
    hosts: HostCount | None = Field(None, description="How many hosts are there.")
    goodput: _Figure | None = Field(None, description="The share of the time that went into kept steps.")
    digest: str | None = Field(None, max_length=128, description="The digest of the final weights.")
    start_time: _Time | None = Field(None, description="When this round began.")
    run_time: _Time | None = Field(
        None, description="When all pods of this round first ran; the deadline counts from it."
    )
    completion_time: _Time | None = Field(None, description="When the job ended.")
    round: _Number | None = Field(
        None,
        description="The number of the round, from 0; it grows when all pods are made anew, as by a resume.",
    )
    slices: _Number | None = Field(
        None, description="The slices of this round, where they are fewer than the job asks for."
    )
    growth: Growth | None = Field(None, description="How slices that were left out are taken in again.")
    sealed_round: _Number | None = Field(
        None, description="The last round whose content has the operator's seal, so that nothing else counts."
    )
    preflight: Preflight | None = Field(None, description="The plan that comes before the pods.")
    attempts: dict[_HostName, _Number] = _map(MAX_NUMBERED, "The number of each host's pod, by slice-host.")
    pods: dict[_HostName, _Word] = _map(MAX_HOSTS, "The UID of each host's pod, by slice-host.")
    charged: dict[_Word, _Number] = _map(32, "Losses of pods since a newer checkpoint, by cause.")
    charged_step: _Step | None = Field(None, description="The newest checkpoint at the last of them.")
    last_loss: dict[_HostName, SliceLoss] = _map(MAX_SLICES, "What each slice has lost with its last charge.")
    losses: dict[_Word, _Number] = _map(32, "Losses of pods in the life of the job, by cause.")
    lost_at: dict[_HostName, _Node] = _map(MAX_PLACED, "Where a host or slice lost a pod.")
    avoid: dict[_HostName, _Node] = _map(MAX_PLACED, "Where that happened twice, so not there again.")
    leaving: dict[_HostName, _Node] = _map(MAX_HOSTS, "The node of a host that is to be taken down.")
    save_time: _Time | None = Field(None, description="When a save was last asked for because of that.")
    image: str | None = Field(
        None, max_length=2048, description="The image of this round by its digest, for replaced pods."
    )
    not_before: _Time | None = Field(None, description="No pod is made before this.")
    stop_time: _Time | None = Field(None, description="When a save and a stop were first asked for.")
