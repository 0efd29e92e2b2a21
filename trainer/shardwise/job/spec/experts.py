"""The `training.model.experts` section: a mixture of experts in the place of each block's MLP."""

from typing import Annotated, Literal

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
    score: Annotated[Literal["softmax", "sigmoid"] | None, FilledFrom(_PRESET_OR + "softmax")] = Field(
        None, description="What a router makes of its logits: probabilities, or of each expert by itself (DeepSeek-V3)."
    )
    share_one: Annotated[bool | None, FilledFrom(_PRESET_OR + "true")] = Field(
        None,
        description="Whether the shares of a token's experts add up to 1; false: they are the router's scores.",
    )
    share_factor: Annotated[float | None, Unit("times"), FilledFrom(_PRESET_OR + "1")] = Field(
        None, gt=0, le=1e6, description="What the shares are multiplied by then (DeepSeek-V3)."
    )
    pick_bias: Annotated[bool | None, FilledFrom(_PRESET_OR + "false")] = Field(
        None, description="Whether each expert has a bias that counts in the choice alone, not in the shares."
    )
    bias_rate: Annotated[
        float | None, Unit("score per step"), FilledFrom("the preset, or else 0.001 with pickBias")
    ] = Field(
        None,
        ge=0,
        le=1,
        description="By how much a step moves it towards even loads; 0 keeps it as it is, as lora always does.",
    )
    groups: Annotated[int | None, Unit("groups"), FilledFrom(_PRESET_OR + "1")] = Field(
        None, ge=1, le=1024, description="Neighbouring experts that are chosen among together; divides count."
    )
    groups_per_token: Annotated[int | None, Unit("groups"), FilledFrom(_PRESET_OR + "1")] = Field(
        None, ge=1, le=1024, description="From how many of the groups, the best ones, a token's experts come."
    )
    group_score: Annotated[Literal["two-best", "best"] | None, FilledFrom(_PRESET_OR + "two-best")] = Field(
        None,
        description="What a group is chosen by: its two best scores added up (DeepSeek-V3), or the best (DeepSeek-V2).",
    )
    shared: Annotated[int | None, Unit("values per token"), FilledFrom("the preset")] = Field(
        None, ge=1, le=1048576, description="Width of an MLP that every token goes through beside its experts, if any."
    )
    shared_gate: Annotated[bool | None, FilledFrom(_PRESET_OR + "false")] = Field(
        None, description="Whether a token decides by a sigmoid how much of that it takes (Qwen 2 with experts)."
    )
    router_bias: Annotated[bool | None, FilledFrom(_PRESET_OR + "false")] = Field(
        None, description="Whether the router, which gives each expert its logit, has a bias (gpt-oss)."
    )
    dense_blocks: Annotated[int | None, Unit("blocks"), FilledFrom(_PRESET_OR + "0")] = Field(
        None, ge=0, le=1023, description="How many blocks, the first ones, have one MLP in the place of experts."
    )
    dense_mlp: Annotated[int | None, Unit("values per token"), FilledFrom("the preset")] = Field(
        None, ge=1, le=1048576, description="Width of the MLP of such a first block."
    )
    balance: Annotated[float | None, Unit("ratio"), FilledFrom(_PRESET_OR + "0.01")] = Field(
        None,
        ge=0,
        le=10,
        description="Factor of the mean imbalance of loads, by layer and sequence, in what is minimised.",
    )
