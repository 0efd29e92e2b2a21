"""The `training` section: the trainer's whole config. `model` and `data` have files of their own."""

from typing import Annotated, Literal

from pydantic import Field

from shardwise.job.quantity import Duration
from shardwise.job.spec.base import MAX_INT32, Count, FilledFrom, PathText, Unit, XlaFlag
from shardwise.job.spec.data import Data
from shardwise.job.spec.model import Model
from shardwise.job.spec.optimizer import Optimizer
from shardwise.protocol.strict_model import StrictModel

_FloatType = Literal["float32", "bfloat16"]  # float16 would need loss scaling
_Ways = Annotated[int, Field(ge=1, le=4096)]


class Mesh(StrictModel):
    """How the devices are divided; the data axis takes what tensor and replica leave."""

    tensor: Annotated[_Ways, Field(description="Ways that heads, mlp and vocabulary are split."), Unit("devices")] = 1
    fsdp: Annotated[bool, Field(description="Splits weights and optimizer state over the data axis.")] = True
    replica: Annotated[
        int | None,
        Field(ge=1, le=4096, description="Whole copies of the weights; a multiple of slices."),
        Unit("copies"),
        FilledFrom("hardware.slices"),
    ] = None
    data_inner: Annotated[
        int | None,
        Field(ge=1, le=4096, description="Ways of the second of two steps in which FSDP splits data."),
        Unit("devices"),
        FilledFrom("on TPUs data / 16 where data is longer, 2 where it is all chips of several hosts; else 1"),
    ] = None
    context: Annotated[_Ways, Field(description="Ways that a sequence is split; only 1 for now."), Unit("devices")] = 1
    pipeline: Annotated[
        _Ways, Field(description="Ways that the layers are split; only 1 for now."), Unit("devices")
    ] = 1


class Batch(StrictModel):
    """How much one step trains on."""

    sequences: Annotated[Count, Field(description="Sequences of one step, over all devices."), Unit("sequences")]
    microbatches: Annotated[
        int, Field(ge=1, le=65536, description="Parts that a step goes through in turn, to save memory."), Unit("parts")
    ] = 1


class Precision(StrictModel):
    """Number formats by use."""

    params: Annotated[_FloatType, Field(description="Format of weights and optimizer state.")] = "float32"
    compute: Annotated[_FloatType, Field(description="Format of activations and matrix products.")] = "float32"
    output: Annotated[_FloatType, Field(description="Format of what enters the loss.")] = "float32"
    reduce: Annotated[
        Literal["compute", "float32"], Field(description="Format in which gradients are summed over devices.")
    ] = "compute"


class Loss(StrictModel):
    """The training objective."""

    z_loss: Annotated[
        float, Field(ge=0, le=1, description="Weight of the squared log of the softmax's normaliser."), Unit("ratio")
    ] = 0.0
    block_tokens: Annotated[
        int,
        Field(ge=1, le=16777216, description="Tokens whose logits exist at once; bounds the loss's memory."),
        Unit("tokens"),
    ] = 2048


_AfterBadStep = Literal["stop", "skip", "rollBack"]


class BadSteps(StrictModel):
    """What becomes of a step whose loss or gradient is not a number, or whose loss is far above those before it."""

    non_finite: Annotated[
        _AfterBadStep, Field(description="After a loss or gradient that is not a number: end, go on without, or back.")
    ] = "stop"
    loss_spike: Annotated[
        _AfterBadStep | None, Field(description="The same after a spike; left out, none is looked for.")
    ] = None
    sigmas: Annotated[
        float,
        Field(gt=0, le=1000, description="Standard deviations above the mean at which a loss is a spike."),
        Unit("ratio"),
    ] = 6.0
    window: Annotated[
        int, Field(ge=4, le=4096, description="Steps that the mean is of; there must be half of them."), Unit("steps")
    ] = 128
    max_skips: Annotated[
        int, Field(ge=1, le=100000, description="Steps that are skipped at most between two saves."), Unit("steps")
    ] = 10


class Keep(StrictModel):
    """Which checkpoints stay."""

    last: Annotated[
        int, Field(ge=1, le=10000, description="Newest checkpoints that are kept."), Unit("checkpoints")
    ] = 3
    every_steps: Annotated[
        Count | None,
        Field(description="Checkpoints at multiples of this stay for good; a multiple of checkpoint.everySteps."),
        Unit("steps"),
    ] = None


class Checkpoint(StrictModel):
    """Where and when the run is saved; both cadences may be given, and the last step is always saved."""

    path: Annotated[
        PathText | None, Field(description="Folder or URL of the checkpoints."), FilledFrom("DIR/checkpoints")
    ] = None
    every: Annotated[
        Duration | None,
        Field(description="Time between saves, from above 0s to 3650d."),
        FilledFrom("10m if everySteps is left out too"),
    ] = None
    every_steps: Annotated[Count | None, Field(description="Steps between saves."), Unit("steps")] = None
    keep: Annotated[Keep, Field(description="Which checkpoints stay.")] = Keep()


class Evaluation(StrictModel):
    """Loss on held-out documents; needs data.heldOut."""

    every_steps: Annotated[Count | None, Field(description="Steps between evaluations."), Unit("steps")] = None
    batches: Annotated[int, Field(ge=1, le=100000, description="Batches of one evaluation."), Unit("batches")] = 8


class Tracking(StrictModel):
    """Where metrics go besides metrics.jsonl."""

    tensorboard: Annotated[bool, Field(description="Writes TensorBoard events into the run's logs.")] = False
    wandb_project: Annotated[
        str | None, Field(min_length=1, max_length=128, description="Weights & Biases project to log to.")
    ] = None


class Training(StrictModel):
    """What is trained, on what, how, and for how long."""

    model: Annotated[Model, Field(description="The model.")]
    data: Annotated[Data, Field(description="The text.")]
    mesh: Annotated[Mesh, Field(description="How the devices are divided.")] = Mesh()
    batch: Annotated[Batch, Field(description="How much one step trains on.")]
    optimizer: Annotated[Optimizer, Field(description="How weights follow gradients.")]
    precision: Annotated[Precision, Field(description="Number formats.")] = Precision()
    loss: Annotated[Loss, Field(description="The training objective.")] = Loss()
    steps: Annotated[Count, Field(description="Optimizer steps of the whole run."), Unit("steps")]
    seed: Annotated[
        int,
        Field(ge=0, le=MAX_INT32, description="Seed of the initial weights, the data order and dropout."),
        Unit("number"),
    ] = 0
    checkpoint: Annotated[Checkpoint, Field(description="Where and when the run is saved.")] = Checkpoint()
    evaluation: Annotated[Evaluation, Field(description="Loss on held-out documents.")] = Evaluation()
    tracking: Annotated[Tracking, Field(description="Where metrics go besides metrics.jsonl.")] = Tracking()
    bad_steps: Annotated[BadSteps, Field(description="What becomes of steps that are not to be trained on.")] = (
        BadSteps()
    )
    xla_flags: Annotated[
        tuple[XlaFlag, ...],
        Field(strict=False, max_length=64, description="Options of XLA's compiler; they win over the accelerator's."),
    ] = ()
