"""The result of a plan: for people through `show` and `pictures`, for programs as JSON."""

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from shardwise.protocol.pods import Verdict
from shardwise.train.work import Work

Link = Literal["ici", "nvlink", "network", "memory"]


class _Result(BaseModel):
    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="forbid")


def axis_words(mesh_axes: Iterable[str]) -> str:
    """Return the name of mesh axes together, as a job file calls them; `data` is two mesh axes."""
    return "+".join(dict.fromkeys("data" if axis.startswith("data") else axis for axis in mesh_axes))


class MemoryUse(_Result):
    """Bytes on one device at the peak of a step."""

    parameters: int
    optimizer: int
    gradients: int
    """Of all parameters, in float32, as the update takes them."""
    activations: int
    """What the backward pass keeps of the layers."""
    temporaries: int
    """All else that the compiler's peak holds: gathered weights, the loss's blocks, what a layer works with."""
    batch: int
    program: int
    total: int
    limit: int | None
    """What programs can use; None if the class does not give it."""


class HostMemory(_Result):
    """Bytes in the memory of one host that its devices keep there."""

    state: int
    """Of the state, all the time."""
    activations: int
    """What the backward pass keeps of the layers."""
    moved: int
    """Between one device and its host in one step, both ways together. No bound of the time has it."""


class Completions(_Result):
    """What making completions takes on one device, of a job that learns from rewards."""

    rows: int
    """Completions that are made at once, over all devices."""
    weights: int
    """Bytes of the weights that they are made with, beside the state."""
    caches: int
    """Bytes of keys and values."""
    total: int
    """The most bytes that the device holds then, with the state and the programs."""
    gathers: bool
    """Whether weights are gathered block by block, for want of memory; then `weights` are the part that is stored."""
    seconds: float | None
    """The least for a step's completions if each has maxTokens: weights and caches are read once for a token of all
    rows. None if the class does not say how fast its memory is."""


class Weight(_Result):
    """How one parameter lies on the mesh; its layers are one array."""

    name: str
    axes: dict[str, int]
    """The sizes of the whole array by the names of its axes, in order."""
    part: list[int]
    """The shape of what one device holds."""
    split: dict[str, str]
    """The mesh axes, as a job file calls them, by the axis that they split; an axis that none splits is left out."""
    part_bytes: int


class Moved(_Result):
    """Collectives that are alike, in one step of one device."""

    kind: str
    axes: list[str]
    link: Link
    devices: int
    dtype: str
    count: int
    payload_bytes: float
    wire_bytes: float
    asynchronous: int
    """How many of them run beside computation."""
    asynchronous_wire_bytes: float

    @property
    def axis(self) -> str:
        """Return the name of its axes together."""
        return axis_words(self.axes)


class Wire(_Result):
    """Bytes on the wire of one device over one axis, and the least that the layout needs."""

    bytes: float
    least: float | None
    ratio: float | None


class Flops(_Result):
    """Of one step over all devices."""

    model: float
    program: float
    """Recomputation included."""
    eight_bit: float = 0.0
    """Those of the program that are in 8 bits."""


class Bubble(_Result):
    """What a pipeline's stages wait for each other."""

    ticks: int
    """Of one pass; in each a stage does one visit of a microbatch, or nothing."""
    idle_share: float
    """As a share of all stages' ticks. Idle stages compute too, on data nobody uses; the program's FLOPs include
    that."""


class Bound(_Result):
    """The least seconds of a step, and of what."""

    seconds: float
    mfu: float
    """The share of the peak that the model's own FLOPs can reach."""
    binds: str
    """The largest term."""
    compute_seconds: float
    memory_seconds: float
    asynchronous_seconds: dict[Link, float]
    """On each link, of what runs beside computation."""
    synchronous_seconds: dict[Link, float]
    """On each link, of what computation waits for."""


class Layout(_Result):
    """A layout that a search compiled."""

    changes: dict[str, int | str]
    """The fields of the job that make it."""
    is_own: bool
    fits: bool | None
    needed_bytes: int
    seconds: float | None = None
    """The least of a step; None if XLA refused it."""
    mfu: float | None = None
    binds: str | None = None


class Plan(_Result):
    """A job's plan. What has a default is not known if XLA refused the program for want of memory."""

    job: str
    accelerator: str
    topology: str
    slices: int
    devices: int
    mesh: dict[str, int]
    attention: str
    remat: str
    microbatches: int
    xla_flags: list[str]
    compiled_for: Literal["hardware", "cpu"]
    """cpu: the compiler for the hardware is not installed, and this machine's stood in: its memory, no link."""
    notes: list[str] = []
    """What was assumed, and what the figures leave out."""
    compile_seconds: float = 0.0
    fits: bool | None
    """None if the class does not give the memory of a device."""
    needed_bytes: int
    """On one device, the program included."""
    limit_bytes: int | None
    refusal: str | None = None
    """XLA's message if it refused a program."""
    refused: Work | None = None
    """Which one that was; `needed_bytes` are its."""
    change: str | None = None
    """For a job that does not fit: a change with which it does."""
    memory: MemoryUse | None = None
    weights: list[Weight] = []
    collectives: list[Moved] = []
    wire: dict[str, Wire] = {}
    synchronous_gathers: int | None = None
    """Gathers of weights that computation waits for."""
    rematerialised: int | None = None
    """Instructions that XLA computes again of its own accord, because memory is short."""
    resident_bytes: int | None = None
    """For simulated devices: what the process of one host holds while it trains, all devices and Python included."""
    host_memory: HostMemory | None = None
    """None of a job that keeps nothing there."""
    completions: Completions | None = None
    """Of a job that learns from rewards."""
    local_checkpoint_bytes: int | None = None
    """Of each host's memory: what local checkpoints need at most; None of a job that makes none."""
    flops: Flops | None = None
    bubble: Bubble | None = None
    """None without a pipeline."""
    bound: Bound | None = None
    layouts: list[Layout] = []
    """Of a search, best first; the plan is the first one's."""

    @property
    def verdict(self) -> Verdict:
        """Return the plan in short: whether it fits, and what would."""
        return Verdict(
            fits=self.fits,
            needed_bytes=self.needed_bytes,
            limit_bytes=self.limit_bytes,
            change=self.change,
            stand_in=self.compiled_for == "cpu",
        )
