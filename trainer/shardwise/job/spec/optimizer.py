"""The `training.optimizer` section: the update rule and the learning rate over the run.

Which fields an optimizer has, and their defaults, is a table in `job/presets.py`.
"""

from typing import Annotated, Literal

from pydantic import Field

from shardwise.job.spec.base import Count, FilledFrom, Unit
from shardwise.protocol.message import MAX_INT32
from shardwise.protocol.strict_model import StrictModel

OptimizerName = Literal["adamw", "adam", "lion", "muon"]

_OWN = FilledFrom("the optimizer")
_LearningRate = Annotated[float, Field(gt=0, le=100)]
_Beta = Annotated[float, Field(ge=0, lt=1)]


class Schedule(StrictModel):
    """The learning rate over the run, as a share of learningRate: a rise, then one of four shapes."""

    kind: Literal["constant", "cosine", "linear", "warmup-stable-decay"] = Field(
        "constant", description="The shape after the warm-up; warmup-stable-decay stays level, then falls linearly."
    )
    warmup_steps: Annotated[int, Unit("steps")] = Field(
        0, ge=0, le=MAX_INT32, description="Steps in which the rate rises from 0."
    )
    decay_steps: Annotated[Count | None, Unit("steps"), FilledFrom("to the last step")] = Field(
        None, description="Length of the fall: from the warm-up on, or the last steps (warmup-stable-decay)."
    )
    final_ratio: Annotated[float, Unit("ratio")] = Field(
        0.1, ge=0, le=1, description="The rate after the fall, as a share of learningRate."
    )


class ParameterGroup(StrictModel):
    """What is different for the parameters whose paths match; of several groups the first that matches counts."""

    match: str = Field(
        min_length=1, max_length=256, description="Parameters by path, such as blocks.*.bias; * is any text, dots too."
    )
    rate_factor: Annotated[float, Unit("ratio")] = Field(
        1.0, ge=0, le=1000, description="Times the learning rate; at 0 the parameters stay as they are."
    )
    weight_decay: Annotated[float | None, Unit("ratio"), FilledFrom("the optimizer's, for matrices")] = Field(
        None, ge=0, le=10, description="Pull to zero, of matrices and others alike; not for adam."
    )


class Average(StrictModel):
    """A mean of the weights over the steps, of which newer ones count more; it is saved and evaluated beside them."""

    decay: Annotated[float, Unit("per step")] = Field(
        gt=0, lt=1, description="What a step counts less than the next one; it averages about 1 / (1 - decay) steps."
    )


class Optimizer(StrictModel):
    """The update rule."""

    name: OptimizerName = Field("adamw", description="The update rule.")
    learning_rate: Annotated[_LearningRate, Unit("per step")] = Field(description="The highest learning rate.")
    schedule: Schedule = Field(Schedule(), description="The learning rate over the run.")
    beta1: Annotated[_Beta | None, Unit("per step"), _OWN] = Field(None, description="Decay of the mean of gradients.")
    beta2: Annotated[_Beta | None, Unit("per step"), _OWN] = Field(
        None, description="Decay of the mean of squared gradients (lion: of gradients)."
    )
    epsilon: Annotated[float | None, Unit("gradient"), _OWN] = Field(
        None,
        ge=1e-30,
        le=1,
        description="Added to the divisor of the update; lion: the least divisor, in root mean squares.",
    )
    weight_decay: Annotated[float | None, Unit("ratio"), _OWN] = Field(
        None, ge=0, le=10, description="Pull of matrices to zero, times the rate; not for adam."
    )
    clip_norm: Annotated[float | None, Unit("gradient norm")] = Field(
        1.0, gt=0, le=1e6, description="Norm that the whole gradient is scaled down to; null: never."
    )
    momentum: Annotated[_Beta | None, Unit("per step"), _OWN] = Field(
        None, description="Muon's decay of the mean of gradients; muon only."
    )
    adam_learning_rate: Annotated[_LearningRate | None, Unit("per step"), FilledFrom("learningRate, for muon")] = Field(
        None,
        description="The highest rate for what Muon leaves to Adam, with Nesterov's momentum as its own; muon only.",
    )
    memory: Literal["device", "host"] = Field(
        "device",
        description="Where its state lies: on the devices, or with their hosts, from where each step fetches it.",
    )
    groups: tuple[ParameterGroup, ...] = Field(
        (), strict=False, max_length=32, description="Parameters with rates and decays of their own."
    )
    average: Average | None = Field(None, description="A mean of the weights over the steps; left out, none.")
