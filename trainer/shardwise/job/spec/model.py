"""The `training.model` section: which GPT is trained, down to the last field.

Sizes that are left out come from the preset (`job/presets.py`). The trainer reads the resolved section only.
"""

from typing import Annotated, Literal

from pydantic import Field

from shardwise.job.spec.base import FilledFrom, Unit
from shardwise.protocol.strict_model import StrictModel

PresetName = Literal["tiny", "gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl", "gptj-6b"]

_PRESET = FilledFrom("the preset")
_PRESET_OR = "the preset, or else "
_Rate = Annotated[float, Field(ge=0, lt=1)]


class Dropout(StrictModel):
    """The share of values that training sets to zero, by place."""

    embed: Annotated[_Rate, Field(description="Dropout after the embedding."), Unit("probability")] = 0.0
    residual: Annotated[
        _Rate, Field(description="Dropout on each branch before it is added on."), Unit("probability")
    ] = 0.0
    attention: Annotated[
        _Rate, Field(description="Dropout on attention weights; must be 0: the kernels have none."), Unit("probability")
    ] = 0.0


class Model(StrictModel):
    """A GPT's shape, its variants, and how it is computed."""

    preset: Annotated[PresetName | None, Field(description="A published shape, which fills what is left out.")] = None
    layers: Annotated[
        int | None, Field(ge=1, le=1024, description="Number of transformer blocks."), Unit("blocks"), _PRESET
    ] = None
    heads: Annotated[
        int | None, Field(ge=1, le=1024, description="Attention heads; divides embed."), Unit("heads"), _PRESET
    ] = None
    embed: Annotated[
        int | None,
        Field(ge=1, le=65536, description="Width of the residual stream."),
        Unit("values per token"),
        _PRESET,
    ] = None
    mlp: Annotated[
        int | None,
        Field(ge=1, le=1048576, description="Width inside the feed-forward layer."),
        Unit("values per token"),
        FilledFrom("4 x embed"),
    ] = None
    seq_len: Annotated[
        int | None, Field(ge=1, le=1048576, description="Tokens of one training sequence."), Unit("tokens"), _PRESET
    ] = None
    vocab_size: Annotated[
        int | None,
        Field(ge=1, le=16777216, description="Rows of the token table before padding; at least the tokenizer's."),
        Unit("tokens"),
        FilledFrom("the tokenizer"),
    ] = None
    block: Annotated[
        Literal["sequential", "parallel"] | None,
        Field(description="sequential: attention, then feed-forward (GPT-2); parallel: both from one norm (GPT-J)."),
        FilledFrom(_PRESET_OR + "sequential"),
    ] = None
    position: Annotated[
        Literal["learned", "rotary"] | None,
        Field(description="learned: a table of positions; rotary: queries and keys are turned by position."),
        FilledFrom(_PRESET_OR + "learned"),
    ] = None
    rotary_dim: Annotated[
        int | None,
        Field(ge=2, le=65536, description="How much of each head rotary positions turn; even; rotary only."),
        Unit("values per head"),
        FilledFrom(_PRESET_OR + "the whole head"),
    ] = None
    tied_head: Annotated[
        bool | None,
        Field(description="Whether the output layer is the token table."),
        FilledFrom(_PRESET_OR + "true"),
    ] = None
    head_bias: Annotated[
        bool | None, Field(description="Whether the output layer has a bias."), FilledFrom(_PRESET_OR + "false")
    ] = None
    attention_bias: Annotated[
        bool | None,
        Field(description="Whether attention's linear layers have biases."),
        FilledFrom(_PRESET_OR + "true"),
    ] = None
    scale_by_inverse_layer: Annotated[
        bool, Field(description="Divides attention scores by the block's number, counted from 1.")
    ] = False
    norm_epsilon: Annotated[
        float, Field(gt=0, le=1, description="Added to the variance in layer norms."), Unit("variance")
    ] = 1e-5
    init_std: Annotated[
        float,
        Field(gt=0, le=1, description="Deviation of initial weights; 1/sqrt(2 layers) of it before a residual."),
        Unit("weight"),
    ] = 0.02
    dropout: Annotated[Dropout, Field(description="Dropout by place.")] = Dropout()
    remat: Annotated[
        Literal["full", "dots", "none"],
        Field(description="What the backward pass computes again: all of a block, all but matrix products, nothing."),
    ] = "full"
    attention: Annotated[
        Literal["auto", "plain", "blockwise", "splash", "cudnn"],
        Field(description="The attention kernel; auto takes the accelerator's best."),
    ] = "auto"
