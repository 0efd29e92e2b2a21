"""The `training.optimizer` section: the update rule and the learning rate over the run.

Which fields an optimizer has, and their defaults, is a table in `job/presets.py`.
"""

from typing import Annotated, Literal

from pydantic import Field

from shardwise.job.spec.base import MAX_INT32, Count, FilledFrom, Unit
from shardwise.protocol.strict_model import StrictModel

OptimizerName = Literal["adamw", "adam", "lion", "muon"]

_OWN = FilledFrom("the optimizer")
_LearningRate = Annotated[float, Field(gt=0, le=100)]
_Beta = Annotated[float, Field(ge=0, lt=1)]


class Schedule(StrictModel):
    """The learning rate over the run, as a share of learningRate: a rise, then one of four shapes."""

    kind: Annotated[
        Literal["constant", "cosine", "linear", "warmup-stable-decay"],
        Field(description="The shape after the warm-up; warmup-stable-decay stays level, then falls linearly."),
    ] = "constant"
    warmup_steps: Annotated[
        int, Field(ge=0, le=MAX_INT32, description="Steps in which the rate rises from 0."), Unit("steps")
    ] = 0
    decay_steps: Annotated[
        Count | None,
        Field(description="Length of the fall: from the warm-up on, or the last steps (warmup-stable-decay)."),
        Unit("steps"),
        FilledFrom("to the last step"),
    ] = None
    final_ratio: Annotated[
        float, Field(ge=0, le=1, description="The rate after the fall, as a share of learningRate."), Unit("ratio")
    ] = 0.1


class Optimizer(StrictModel):
    """The update rule."""

    name: Annotated[OptimizerName, Field(description="The update rule.")] = "adamw"
    learning_rate: Annotated[_LearningRate, Field(description="The highest learning rate."), Unit("per step")]
    schedule: Annotated[Schedule, Field(description="The learning rate over the run.")] = Schedule()
    beta1: Annotated[_Beta | None, Field(description="Decay of the mean of gradients."), Unit("per step"), _OWN] = None
    beta2: Annotated[
        _Beta | None,
        Field(description="Decay of the mean of squared gradients (lion: of gradients)."),
        Unit("per step"),
        _OWN,
    ] = None
    epsilon: Annotated[
        float | None,
        Field(
            ge=1e-30,
            le=1,
            description="Added to the divisor of the update; lion: the least divisor, in root mean squares.",
        ),
        Unit("gradient"),
        _OWN,
    ] = None
    weight_decay: Annotated[
        float | None,
        Field(ge=0, le=10, description="Pull of matrices to zero, times the rate; not for adam."),
        Unit("ratio"),
        _OWN,
    ] = None
    clip_norm: Annotated[
        float | None,
        Field(gt=0, le=1e6, description="Norm that the whole gradient is scaled down to; null: never."),
        Unit("gradient norm"),
    ] = 1.0
    momentum: Annotated[
        _Beta | None, Field(description="Muon's decay of the mean of gradients; muon only."), Unit("per step"), _OWN
    ] = None
    adam_learning_rate: Annotated[
        _LearningRate | None,
        Field(description="The highest rate for what Muon leaves to Adam; muon only."),
        Unit("per step"),
        FilledFrom("learningRate, for muon"),
    ] = None
