"""The `training.model` section: which model is trained, down to the last field.

A family such as Llama is a set of these values and nothing else: `job/family_values.py` has them.

Sizes that are left out come from the preset (`job/presets.py`). The trainer reads the resolved section only.
"""

from typing import Annotated, Literal

from pydantic import Field

from shardwise.job.spec.base import FilledFrom, Unit
from shardwise.job.spec.experts import Experts
from shardwise.job.spec.latent import LatentIfAny
from shardwise.job.spec.rope_scaling import RopeScaling
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
    "phi4-14b",
    "mixtral-8x7b",
    "qwen2.5-0.5b",
    "qwen2.5-7b",
    "qwen1.5-moe-a2.7b",
    "qwen3-0.6b",
    "qwen3-8b",
    "qwen3-30b-a3b",
    "gpt-oss-20b",
    "gpt-oss-120b",
    "granite3.3-2b",
    "smollm3-3b",
    "olmo2-1b",
    "olmo2-7b",
    "olmo3-7b",
    "gemma2-2b",
    "gemma3-1b",
    "pythia-410m",
    "deepseek-v2-lite",
    "moonlight-16b-a3b",
    "glm4.5-air",
    "dots.llm1",
]

Activation = Literal["gelu", "gelu-exact", "swiglu", "geglu", "swiglu-clamped"]

_PRESET = FilledFrom("the preset")
_PRESET_OR = "the preset, or else "
_Rate = Annotated[float, Field(ge=0, lt=1)]


class Dropout(StrictModel):
    """The share of values that training sets to zero, by place."""

    embed: Annotated[_Rate, Unit("probability")] = Field(0.0, description="Dropout after the embedding.")
    residual: Annotated[_Rate, Unit("probability")] = Field(
        0.0, description="Dropout on each branch before it is added on."
    )
    attention: Annotated[_Rate, Unit("probability")] = Field(
        0.0, description="Dropout on attention weights; must be 0: the kernels have none."
    )


class Model(StrictModel):
    """A model's shape, its variants, and how it is computed."""

    preset: PresetName | None = Field(None, description="A published shape, which fills what is left out.")
    layers: Annotated[int | None, Unit("blocks"), _PRESET] = Field(
        None, ge=1, le=1024, description="Number of transformer blocks."
    )
    heads: Annotated[int | None, Unit("heads"), _PRESET] = Field(
        None, ge=1, le=1024, description="Attention heads; divides embed, unless headSize is given."
    )
    kv_heads: Annotated[int | None, Unit("heads"), FilledFrom(_PRESET_OR + "heads")] = Field(
        None, ge=1, le=1024, description="Heads of keys and values, each for as many query heads; divides heads."
    )
    head_size: Annotated[int | None, Unit("values per head"), FilledFrom(_PRESET_OR + "embed / heads")] = Field(
        None, ge=1, le=65536, description="Width of one attention head."
    )
    embed: Annotated[int | None, Unit("values per token"), _PRESET] = Field(
        None, ge=1, le=65536, description="Width of the residual stream."
    )
    mlp: Annotated[int | None, Unit("values per token"), FilledFrom(_PRESET_OR + "4 x embed")] = Field(
        None, ge=1, le=1048576, description="Width inside the feed-forward layer."
    )
    seq_len: Annotated[int | None, Unit("tokens"), _PRESET] = Field(
        None, ge=1, le=1048576, description="Tokens of one training sequence."
    )
    vocab_size: Annotated[int | None, Unit("tokens"), FilledFrom("the tokenizer")] = Field(
        None, ge=1, le=16777216, description="Rows of the token table before padding; at least the tokenizer's."
    )
    block: Annotated[
        Literal["sequential", "parallel", "parallel-two-norms"] | None, FilledFrom(_PRESET_OR + "sequential")
    ] = Field(
        None,
        description="sequential: attention, then feed-forward (GPT-2); parallel: both from one norm (GPT-J); "
        "parallel-two-norms: each from its own (GPT-NeoX).",
    )
    norm: Annotated[Literal["layer", "rms", "rms-unit-offset"] | None, FilledFrom(_PRESET_OR + "layer")] = Field(
        None, description="Layer norm, RMS norm, or RMS norm with gains counted from 1 (Gemma)."
    )
    pre_norm: Annotated[bool | None, FilledFrom(_PRESET_OR + "true")] = Field(
        None, description="Whether a norm precedes attention and feed-forward; false: postNorm alone (OLMo 2)."
    )
    post_norm: Annotated[bool | None, FilledFrom(_PRESET_OR + "false")] = Field(
        None, description="Whether a norm also follows attention and feed-forward, before they are added on (Gemma)."
    )
    qk_norm: Annotated[bool | None, FilledFrom(_PRESET_OR + "false")] = Field(
        None, description="Whether every head's queries and keys are normed, before positions turn them (Qwen 3)."
    )
    qk_norm_over: Annotated[Literal["head", "all-heads"] | None, FilledFrom(_PRESET_OR + "head")] = Field(
        None, description="What qkNorm scales as one: each head, or all heads of a token together (OLMo 2)."
    )
    activation: Annotated[Activation | None, FilledFrom(_PRESET_OR + "gelu")] = Field(
        None,
        description="Of the feed-forward layer: the tanh form of GELU or the exact one; or gated, by SiLU (swiglu), "
        "the tanh form of GELU (geglu), or a steeper SiLU of bounded values (swiglu-clamped, gpt-oss).",
    )
    experts: Annotated[Experts | None, FilledFrom(_PRESET_OR + "none")] = Field(
        None, description="Makes each block's feed-forward layer a mixture of experts (Mixtral)."
    )
    latent: LatentIfAny = None
    position: Annotated[Literal["learned", "rotary"] | None, FilledFrom(_PRESET_OR + "learned")] = Field(
        None, description="learned: a table of positions; rotary: queries and keys are turned by position."
    )
    rotary_dim: Annotated[int | None, Unit("values per head"), FilledFrom(_PRESET_OR + "the whole head")] = Field(
        None, ge=2, le=65536, description="How much of each head rotary positions turn; even; rotary only."
    )
    rotary_pairs: Annotated[Literal["interleaved", "half"] | None, FilledFrom(_PRESET_OR + "interleaved")] = Field(
        None, description="Which values are turned together: neighbours (GPT-J), or those half of it apart (GPT-NeoX)."
    )
    rope_theta: Annotated[float | None, Unit("longest over shortest wavelength"), FilledFrom(_PRESET_OR + "10000")] = (
        Field(None, gt=1, le=1e12, description="The base of rotary positions' wavelengths.")
    )
    local_rope_theta: Annotated[
        float | None, Unit("longest over shortest wavelength"), FilledFrom(_PRESET_OR + "ropeTheta and ropeScaling")
    ] = Field(
        None, gt=1, le=1e12, description="The base in blocks with a sliding window, where ropeScaling does not count."
    )
    rope_scaling: Annotated[RopeScaling | None, FilledFrom(_PRESET_OR + "none")] = Field(
        None, description="Stretches rotary positions."
    )
    rotary_pattern: Annotated[int | None, Unit("blocks"), FilledFrom(_PRESET_OR + "none")] = Field(
        None, ge=1, le=1024, description="Every so many-th block turns nothing, and so knows no positions (SmolLM3)."
    )
    tied_head: Annotated[bool | None, FilledFrom(_PRESET_OR + "true")] = Field(
        None, description="Whether the output layer is the token table."
    )
    head_bias: Annotated[bool | None, FilledFrom(_PRESET_OR + "false")] = Field(
        None, description="Whether the output layer has a bias."
    )
    attention_bias: Annotated[bool | None, FilledFrom(_PRESET_OR + "true")] = Field(
        None, description="Whether attention's linear layers have biases."
    )
    attention_out_bias: Annotated[bool | None, FilledFrom(_PRESET_OR + "attentionBias")] = Field(
        None, description="Whether the last of attention's linear layers has one."
    )
    attention_sinks: Annotated[bool | None, FilledFrom(_PRESET_OR + "false")] = Field(
        None, description="Whether each head has a learned logit beside its scores that stands for no value (gpt-oss)."
    )
    mlp_bias: Annotated[bool | None, FilledFrom(_PRESET_OR + "true")] = Field(
        None, description="Whether the feed-forward layer's linear layers have biases."
    )
    query_pre_attn_scalar: Annotated[
        float | None, Unit("values per head"), FilledFrom(_PRESET_OR + "the head size")
    ] = Field(None, gt=0, le=65536, description="Attention scores are divided by the root of it.")
    attention_softcap: Annotated[float | None, Unit("score"), FilledFrom("the preset")] = Field(
        None, gt=0, le=1e6, description="Bends attention scores into this range, by tanh; left out: not at all."
    )
    logit_softcap: Annotated[float | None, Unit("nats"), FilledFrom("the preset")] = Field(
        None, gt=0, le=1e6, description="Bends the model's logits into this range, by tanh; left out: not at all."
    )
    sliding_window: Annotated[int | None, Unit("tokens"), FilledFrom("the preset")] = Field(
        None, ge=1, le=1048576, description="A token sees itself and so many less one before it; left out: all."
    )
    sliding_window_pattern: Annotated[int | None, Unit("blocks"), FilledFrom("the preset")] = Field(
        None, ge=2, le=1024, description="Every so many-th block sees all; left out: slidingWindow is in every block."
    )
    scale_embedding: Annotated[bool | None, FilledFrom(_PRESET_OR + "false")] = Field(
        None, description="Whether the embedding is multiplied by the root of embed (Gemma)."
    )
    embedding_factor: Annotated[float | None, Unit("times"), FilledFrom(_PRESET_OR + "1")] = Field(
        None, gt=0, le=1e6, description="What the embedding is multiplied by (Granite)."
    )
    residual_factor: Annotated[float | None, Unit("times"), FilledFrom(_PRESET_OR + "1")] = Field(
        None, gt=0, le=1e6, description="What attention and feed-forward add is multiplied by (Granite)."
    )
    logit_divisor: Annotated[float | None, Unit("times"), FilledFrom(_PRESET_OR + "1")] = Field(
        None, gt=0, le=1e6, description="What the model's logits are divided by, before any logitSoftcap (Granite)."
    )
    scale_by_inverse_layer: bool = Field(
        False, description="Divides attention scores by the block's number, counted from 1."
    )
    norm_epsilon: Annotated[float | None, Unit("variance"), FilledFrom(_PRESET_OR + "1e-05")] = Field(
        None, gt=1e-20, le=1, description="Added to the variance, or the mean square, in norms."
    )
    init_std: Annotated[float, Unit("weight")] = Field(
        0.02, gt=0, le=1, description="Deviation of initial weights; 1/sqrt(2 layers) of it before a residual."
    )
    dropout: Dropout = Field(Dropout(), description="Dropout by place.")
    remat: Literal["full", "offload", "dots", "none"] = Field(
        "full",
        description="What the backward pass computes again: all of a block (offload keeps its input with the host), "
        "all but matrix products, nothing.",
    )
    attention: Literal["auto", "plain", "blockwise", "splash", "cudnn"] = Field(
        "auto", description="The attention kernel; auto takes the accelerator's best."
    )
