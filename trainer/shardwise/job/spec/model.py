"""The `training.model` section: which model is trained, down to the last field.

A family such as Llama is a set of these values and nothing else: `job/presets.py` has them.

Sizes that are left out come from the preset (`job/presets.py`). The trainer reads the resolved section only.
"""

from typing import Annotated, Literal

from pydantic import Field

from shardwise.job.spec.base import FilledFrom, Unit
from shardwise.protocol.strict_model import StrictModel

PresetName = Literal[
    "tiny",
    "gpt2-small",
    "gpt2-medium",
    "gpt2-large",
    "gpt2-xl",
    "gptj-6b",
    "llama2-7b",
    "llama3.1-8b",
    "llama3.2-1b",
    "mistral-7b",
    "qwen2.5-0.5b",
    "qwen2.5-7b",
    "qwen3-0.6b",
    "qwen3-8b",
    "gemma2-2b",
    "gemma3-1b",
    "pythia-410m",
]

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


class RopeScaling(StrictModel):
    """How rotary positions are stretched over more positions than they were first trained on."""

    kind: Annotated[
        Literal["linear", "llama3", "yarn"],
        Field(description="linear: all frequencies; llama3: the low ones, smoothly; yarn: by frequency, and sharper."),
    ]
    factor: Annotated[float, Field(ge=1, le=1e6, description="By how much the positions are stretched."), Unit("times")]
    original_seq_len: Annotated[
        int | None,
        Field(ge=1, le=1048576, description="Positions of the first training; for llama3 and yarn."),
        Unit("tokens"),
        FilledFrom("seqLen / factor"),
    ] = None
    low_frequency_factor: Annotated[
        float,
        Field(gt=0, le=1e6, description="llama3: turns in originalSeqLen below which all is stretched."),
        Unit("turns"),
    ] = 1.0
    high_frequency_factor: Annotated[
        float, Field(gt=0, le=1e6, description="llama3: turns in originalSeqLen above which nothing is."), Unit("turns")
    ] = 4.0
    beta_slow: Annotated[
        float,
        Field(gt=0, le=1e6, description="yarn: turns in originalSeqLen below which all is stretched."),
        Unit("turns"),
    ] = 1.0
    beta_fast: Annotated[
        float, Field(gt=0, le=1e6, description="yarn: turns in originalSeqLen above which nothing is."), Unit("turns")
    ] = 32.0
    attention_factor: Annotated[
        float | None,
        Field(gt=0, le=1e6, description="yarn: what queries and keys are multiplied by."),
        Unit("times"),
        FilledFrom("0.1 ln(factor) + 1"),
    ] = None


class Model(StrictModel):
    """A model's shape, its variants, and how it is computed."""

    preset: Annotated[PresetName | None, Field(description="A published shape, which fills what is left out.")] = None
    layers: Annotated[
        int | None, Field(ge=1, le=1024, description="Number of transformer blocks."), Unit("blocks"), _PRESET
    ] = None
    heads: Annotated[
        int | None,
        Field(ge=1, le=1024, description="Attention heads; divides embed, unless headSize is given."),
        Unit("heads"),
        _PRESET,
    ] = None
    kv_heads: Annotated[
        int | None,
        Field(ge=1, le=1024, description="Heads of keys and values, each for as many query heads; divides heads."),
        Unit("heads"),
        FilledFrom(_PRESET_OR + "heads"),
    ] = None
    head_size: Annotated[
        int | None,
        Field(ge=1, le=65536, description="Width of one attention head."),
        Unit("values per head"),
        FilledFrom(_PRESET_OR + "embed / heads"),
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
        FilledFrom(_PRESET_OR + "4 x embed"),
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
        Literal["sequential", "parallel", "parallel-two-norms"] | None,
        Field(
            description="sequential: attention, then feed-forward (GPT-2); parallel: both from one norm (GPT-J); "
            "parallel-two-norms: each from its own (GPT-NeoX)."
        ),
        FilledFrom(_PRESET_OR + "sequential"),
    ] = None
    norm: Annotated[
        Literal["layer", "rms", "rms-unit-offset"] | None,
        Field(description="Layer norm, RMS norm, or RMS norm with gains counted from 1 (Gemma)."),
        FilledFrom(_PRESET_OR + "layer"),
    ] = None
    post_norm: Annotated[
        bool | None,
        Field(description="Whether a norm also follows attention and feed-forward, before they are added on (Gemma)."),
        FilledFrom(_PRESET_OR + "false"),
    ] = None
    qk_norm: Annotated[
        bool | None,
        Field(description="Whether every head's queries and keys are normed, before positions turn them (Qwen 3)."),
        FilledFrom(_PRESET_OR + "false"),
    ] = None
    activation: Annotated[
        Literal["gelu", "gelu-exact", "swiglu", "geglu"] | None,
        Field(
            description="Of the feed-forward layer: the tanh form of GELU or the exact one; or gated, by SiLU (swiglu) "
            "or the tanh form of GELU (geglu)."
        ),
        FilledFrom(_PRESET_OR + "gelu"),
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
    rotary_pairs: Annotated[
        Literal["interleaved", "half"] | None,
        Field(
            description="Which values are turned together: neighbours (GPT-J), or those half of it apart (GPT-NeoX)."
        ),
        FilledFrom(_PRESET_OR + "interleaved"),
    ] = None
    rope_theta: Annotated[
        float | None,
        Field(ge=1, le=1e12, description="The base of rotary positions' wavelengths."),
        Unit("longest over shortest wavelength"),
        FilledFrom(_PRESET_OR + "10000"),
    ] = None
    local_rope_theta: Annotated[
        float | None,
        Field(ge=1, le=1e12, description="The base in blocks with a sliding window, where ropeScaling does not count."),
        Unit("longest over shortest wavelength"),
        FilledFrom(_PRESET_OR + "ropeTheta and ropeScaling"),
    ] = None
    rope_scaling: Annotated[
        RopeScaling | None, Field(description="Stretches rotary positions."), FilledFrom(_PRESET_OR + "none")
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
    attention_out_bias: Annotated[
        bool | None,
        Field(description="Whether the last of attention's linear layers has one."),
        FilledFrom(_PRESET_OR + "attentionBias"),
    ] = None
    mlp_bias: Annotated[
        bool | None,
        Field(description="Whether the feed-forward layer's linear layers have biases."),
        FilledFrom(_PRESET_OR + "true"),
    ] = None
    query_pre_attn_scalar: Annotated[
        float | None,
        Field(gt=0, le=65536, description="Attention scores are divided by the root of it."),
        Unit("values per head"),
        FilledFrom(_PRESET_OR + "the head size"),
    ] = None
    attention_softcap: Annotated[
        float | None,
        Field(gt=0, le=1e6, description="Bends attention scores into this range, by tanh; left out: not at all."),
        Unit("score"),
        FilledFrom("the preset"),
    ] = None
    logit_softcap: Annotated[
        float | None,
        Field(gt=0, le=1e6, description="Bends the model's logits into this range, by tanh; left out: not at all."),
        Unit("nats"),
        FilledFrom("the preset"),
    ] = None
    sliding_window: Annotated[
        int | None,
        Field(ge=1, le=1048576, description="A token sees itself and so many less one before it; left out: all."),
        Unit("tokens"),
        FilledFrom("the preset"),
    ] = None
    sliding_window_pattern: Annotated[
        int | None,
        Field(ge=2, le=1024, description="Every so many-th block sees all; left out: slidingWindow is in every block."),
        Unit("blocks"),
        FilledFrom("the preset"),
    ] = None
    scale_embedding: Annotated[
        bool | None,
        Field(description="Whether the embedding is multiplied by the root of embed (Gemma)."),
        FilledFrom(_PRESET_OR + "false"),
    ] = None
    scale_by_inverse_layer: Annotated[
        bool, Field(description="Divides attention scores by the block's number, counted from 1.")
    ] = False
    norm_epsilon: Annotated[
        float | None,
        Field(gt=0, le=1, description="Added to the variance, or the mean square, in norms."),
        Unit("variance"),
        FilledFrom(_PRESET_OR + "1e-05"),
    ] = None
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
