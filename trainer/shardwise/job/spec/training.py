"""The `training` section: the trainer's whole config. `model` and `data` have files of their own."""

from typing import Annotated, Literal

from pydantic import Field

from shardwise.job.quantity import Duration
from shardwise.job.spec.base import Count, FilledFrom, PathText, Unit, XlaFlag
from shardwise.job.spec.batch import Batch
from shardwise.job.spec.data import Data, EvaluationSet
from shardwise.job.spec.loss import Loss
from shardwise.job.spec.model import Model
from shardwise.job.spec.optimizer import Optimizer
from shardwise.job.spec.reinforcement import Reinforcement
from shardwise.job.spec.tracking import Profile, Tracking
from shardwise.protocol.message import MAX_INT32
from shardwise.protocol.strict_model import StrictModel

_FloatType = Literal["float32", "bfloat16"]  # float16 would need loss scaling
ContextStrategy = Literal["gather", "ring"]
_Ways = Annotated[int, Field(ge=1, le=4096)]


class Mesh(StrictModel):
    """How the devices are divided; the data axis takes what tensor, context, pipeline and replica leave."""

    tensor: Annotated[_Ways, Unit("devices")] = Field(1, description="Ways that heads, mlp and vocabulary are split.")
    fsdp: bool = Field(True, description="Splits weights and optimizer state over the data axis, and over context.")
    replica: Annotated[int | None, Unit("copies"), FilledFrom("hardware.slices")] = Field(
        None, ge=1, le=4096, description="Whole copies of the weights; a multiple of slices."
    )
    data_inner: Annotated[
        int | None,
        Unit("devices"),
        FilledFrom("expert; without, on TPUs data / 16 where data is longer, 2 where it is all chips of several hosts"),
    ] = Field(None, ge=1, le=4096, description="Ways of the second of two steps in which FSDP splits data.")
    expert: Annotated[_Ways, Unit("devices")] = Field(
        1, description="Ways that the experts of a mixture are split, over neighbours in data; divides both."
    )
    context: Annotated[_Ways, Unit("devices")] = Field(
        1, description="Ways that each sequence is split, for long ones; twice as many divide seqLen."
    )
    context_strategy: ContextStrategy = Field(
        "gather", description="Whether each device gathers the keys of its sequences, or they pass around a ring."
    )
    pipeline: Annotated[_Ways, Unit("devices")] = Field(
        1, description="Ways that the layers are split, into stages that pass microbatches on; divides both."
    )
    pipeline_rounds: Annotated[int, Unit("rounds")] = Field(
        1, ge=1, le=4096, description="Times that a microbatch goes through all stages; more make the bubble smaller."
    )


class Precision(StrictModel):
    """Number formats by use."""

    params: _FloatType = Field(
        "float32", description="Format of the model's weights; the optimizer keeps weights and state in float32."
    )
    compute: _FloatType = Field("float32", description="Format of activations and matrix products.")
    output: _FloatType = Field("float32", description="Format of what enters the loss.")
    products: Literal["compute", "float8", "int8"] = Field(
        "compute", description="Format in which activations are multiplied by the weights of layers."
    )
    reduce: Literal["compute", "float32"] = Field(
        "compute", description="Format in which gradients are summed over devices."
    )


_AfterBadStep = Literal["stop", "skip", "rollBack"]


class BadSteps(StrictModel):
    """What becomes of a step whose loss or gradient is not a number, or whose loss is far above those before it."""

    non_finite: _AfterBadStep = Field(
        "stop", description="After a loss or gradient that is not a number: end, go on without, or back."
    )
    loss_spike: _AfterBadStep | None = Field(None, description="The same after a spike; left out, none is looked for.")
    sigmas: Annotated[float, Unit("ratio")] = Field(
        6.0, gt=0, le=1000, description="Standard deviations above the mean at which a loss is a spike."
    )
    window: Annotated[int, Unit("steps")] = Field(
        128, ge=4, le=4096, description="Steps of one phase that the mean is of; there must be half of them."
    )
    max_skips: Annotated[int, Unit("steps")] = Field(
        10,
        ge=1,
        le=100000,
        description="Steps that are skipped at most between two saves, and at most one after the other over all saves.",
    )


class Keep(StrictModel):
    """Which checkpoints stay."""

    last: Annotated[int, Unit("checkpoints")] = Field(
        3, ge=1, le=10000, description="Newest checkpoints that are kept."
    )
    every_steps: Annotated[Count | None, Unit("steps")] = Field(
        None, description="Checkpoints at multiples of this stay for good; a multiple of checkpoint.everySteps."
    )


class LocalCheckpoints(StrictModel):
    """Saves on the hosts themselves, in memory, each part on two of them; from these a lost trainer or host goes on."""

    every_steps: Annotated[Count, Unit("steps")] = Field(description="Steps between local saves.")


class Checkpoint(StrictModel):
    """Where and when the run is saved; both cadences may be given, and the last step is always saved."""

    path: Annotated[PathText | None, FilledFrom("DIR/checkpoints")] = Field(
        None, description="Folder or URL of the checkpoints."
    )
    every: Annotated[Duration | None, FilledFrom("10m if everySteps is left out too")] = Field(
        None, description="Time between saves, from above 0s to 3650d."
    )
    every_steps: Annotated[Count | None, Unit("steps")] = Field(None, description="Steps between saves.")
    keep: Keep = Field(Keep(), description="Which checkpoints stay.")
    local: LocalCheckpoints | None = Field(None, description="Saves on the hosts beside those; left out, none.")


class Evaluation(StrictModel):
    """Loss on held-out documents, and on sets of text of their own; needs data.heldOut or sets."""

    every_steps: Annotated[Count | None, Unit("steps")] = Field(None, description="Steps between evaluations.")
    batches: Annotated[int, Unit("batches")] = Field(
        8, ge=1, le=100000, description="Batches of one evaluation, of each set at most."
    )
    sets: tuple[EvaluationSet, ...] = Field(
        (), strict=False, max_length=32, description="Sets beside the held-out documents; never trained on."
    )


class StartFrom(StrictModel):
    """What a run without a checkpoint of its own begins from: one of another run, or imported weights."""

    path: PathText = Field(description="Run directory, or folder or URL of checkpoints.")
    step: Annotated[int | None, Unit("step"), FilledFrom("the newest that is whole")] = Field(
        None, ge=0, le=MAX_INT32, description="Its checkpoint."
    )
    restore: Literal["weights", "all"] = Field(
        "weights", description="weights: optimizer and count of steps begin anew; all: they go on as well."
    )


class Lora(StrictModel):
    """Low-rank adapters beside the weights of startFrom, which stay as they are: they alone are trained and saved."""

    rank: Annotated[int, Unit("number")] = Field(ge=1, le=4096, description="Inner size of an adapter's two factors.")
    alpha: Annotated[float | None, Unit("number"), FilledFrom("2 x rank")] = Field(
        None, gt=0, le=65536, description="What an adapter adds is multiplied by alpha / rank."
    )
    mlp: Annotated[bool | None, FilledFrom("true; false with model.experts")] = Field(
        None, description="Whether MLPs have adapters as attention has, experts each their own."
    )


class Training(StrictModel):
    """What is trained, on what, how, and for how long."""

    model: Annotated[Model, Field(description="The model.")]
    data: Annotated[Data, Field(description="The text.")]
    mesh: Annotated[Mesh, Field(description="How the devices are divided.")] = Mesh()
    batch: Annotated[Batch, Field(description="How much one step trains on.")]
    optimizer: Annotated[Optimizer, Field(description="How weights follow gradients.")]
    precision: Annotated[Precision, Field(description="Number formats.")] = Precision()
    loss: Annotated[Loss, Field(description="The training objective.")] = Loss()
    reinforcement: Annotated[
        Reinforcement | None, Field(description="Rewards that the model learns from; left out, none.")
    ] = None
    steps: Annotated[Count, Field(description="Optimizer steps of the whole run."), Unit("steps")]
    seed: Annotated[
        int,
        Field(ge=0, le=MAX_INT32, description="Seed of the initial weights, the data order and dropout."),
        Unit("number"),
    ] = 0
    start_from: Annotated[
        StartFrom | None, Field(description="What the run begins from; left out, weights drawn from the seed.")
    ] = None
    lora: Annotated[
        Lora | None, Field(description="Adapters that are trained in place of the weights; left out, none.")
    ] = None
    checkpoint: Annotated[Checkpoint, Field(description="Where and when the run is saved.")] = Checkpoint()
    evaluation: Annotated[Evaluation, Field(description="Loss on held-out documents.")] = Evaluation()
    tracking: Annotated[Tracking, Field(description="Where metrics go besides metrics.jsonl.")] = Tracking()
    profile: Annotated[Profile | None, Field(description="Which steps are traced; left out, none.")] = None
    bad_steps: Annotated[BadSteps, Field(description="What becomes of steps that are not to be trained on.")] = (
        BadSteps()
    )
    xla_flags: Annotated[
        tuple[XlaFlag, ...],
        Field(strict=False, max_length=64, description="Options of XLA's compiler; they win over the accelerator's."),
    ] = ()

    @property
    def learns_preferences(self) -> bool:
        """Whether sequences are answers that are good or bad; of a valid job, all are or none."""
        return any(source.is_judged for source in self.data.train)

    @property
    def has_reference(self) -> bool:
        """Whether answers are compared with what the weights of startFrom make of them, beside the model."""
        learning, compares = self.reinforcement, self.learns_preferences and self.loss.compares
        return learning.kl_weight > 0 if learning else compares

    @property
    def has_unmatched(self) -> bool:
        """Whether a step looks at prompts with answers to others, too."""
        return self.learns_preferences and self.loss.preferences == "kto"

    @property
    def updates(self) -> int:
        """Steps that learn from what the same weights have made, each from its own part; 1 of any other job."""
        return self.reinforcement.updates if self.reinforcement else 1

    @property
    def clips(self) -> bool:
        """Whether weights have changed since a completion was made, so that likelihoods have a ratio."""
        return self.updates > 1

    @property
    def more_forwards(self) -> int:
        """How often a step goes forward without going back: of what was, and with answers to others of both."""
        return self.has_reference + 2 * self.has_unmatched
