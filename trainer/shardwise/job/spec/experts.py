"""The `training.model.experts` section: a mixture of experts in the place of each block's MLP."""

from typing import Annotated

from pydantic import Field

from shardwise.job.spec.base import FilledFrom, Unit
from shardwise.protocol.strict_model import StrictModel

_PRESET = FilledFrom("the preset")
_PRESET_OR = "the preset, or else "


class Experts(StrictModel):
    """A mixture of experts in the place of each block's MLP, without a limit to how many tokens one takes."""

    count: Annotated[int | None, Unit("experts"), _PRESET] = Field(
        None, ge=2, le=1024, description="MLPs of each block; mlp is the width of one."
    )
    per_token: Annotated[int | None, Unit("experts"), _PRESET] = Field(
        None, ge=1, le=64, description="How many of them a token goes through."
    )
    share_one: Annotated[bool | None, FilledFrom(_PRESET_OR + "true")] = Field(
        None,
        description="Whether the shares of a token's experts add up to 1; false: they are the router's probabilities.",
    )
    shared: Annotated[int | None, Unit("values per token"), FilledFrom("the preset")] = Field(
        None, ge=1, le=1048576, description="Width of an MLP that every token goes through beside its experts, if any."
    )
    shared_gate: Annotated[bool | None, FilledFrom(_PRESET_OR + "false")] = Field(
        None, description="Whether a token decides by a sigmoid how much of that it takes (Qwen 2 with experts)."
    )
    balance: Annotated[float | None, Unit("ratio"), FilledFrom(_PRESET_OR + "0.01")] = Field(
        None,
        ge=0,
        le=10,
        description="Factor of the mean imbalance of loads, by layer and sequence, in what is minimised.",
    )
