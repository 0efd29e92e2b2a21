"""The config of the model that is built, from a resolved job: every choice made, every size an axis.

It knows nothing of meshes: `train/layout.py` maps its axes to them.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypeVar

from haliax import AxisSpec

from shardwise.job.kernels import Kernel, kernel_of
from shardwise.job.sizes import GATED
from shardwise.job.spec import Experts, Latent, RopeScaling, Training
from shardwise.train.model_axes import ModelAxes

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class GptConfig(ModelAxes):
    """A model's sizes, axes and choices. A family is a set of these values.

    Of the sizes that follow from others, None takes what follows.
    """

    block: Literal["sequential", "parallel", "parallel-two-norms"] = "sequential"
    norm: Literal["layer", "rms", "rms-unit-offset"] = "layer"
    pre_norm: bool = True
    post_norm: bool = False
    qk_norm: bool = False
    qk_norm_over: Literal["head", "all-heads"] = "head"
    activation: Literal["gelu", "gelu-exact", "swiglu", "geglu", "swiglu-clamped"] = "gelu"
    position: Literal["learned", "rotary"] = "learned"
    rotary_pairs: Literal["interleaved", "half"] = "interleaved"
    rope_theta: float = 10_000.0
    local_rope_theta: float | None = None
    rope_scaling: RopeScaling | None = None
    rotary_pattern: int | None = None
    tied_head: bool = True
    head_bias: bool = False
    attention_bias: bool = True
    attention_out_bias: bool = field(default=None)  # type: ignore[assignment]  # filled below: attention_bias
    attention_sinks: bool = False
    mlp_bias: bool = True
    experts_per_token: int = 0
    experts_share_one: bool = True
    expert_score: Literal["softmax", "sigmoid"] = "softmax"
    share_factor: float = 1.0
    pick_bias: bool = False
    expert_groups: int = 1
    groups_per_token: int = 1
    group_score: Literal["two-best", "best"] = "two-best"
    shared_gate: bool = False
    router_bias: bool = False
    balance: float = 0.0
    query_pre_attn_scalar: float = field(default=None)  # type: ignore[assignment]  # filled below: the head size
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    sliding_window: int | None = None
    sliding_window_pattern: int | None = None
    scale_embedding: bool = False
    embedding_factor: float = 1.0
    residual_factor: float = 1.0
    logit_divisor: float = 1.0
    scale_by_inverse_layer: bool = False
    norm_epsilon: float = 1e-5
    latent_epsilon: float = 1e-6
    init_std: float = 0.02
    embed_dropout: float = 0.0
    residual_dropout: float = 0.0
    remat: Literal["full", "offload", "dots", "none"] = "full"
    attention: Kernel = "blockwise"

    def __post_init__(self) -> None:
        """Fill in what follows from other fields."""
        if getattr(self, "head_size", None) is None:
            object.__setattr__(self, "head_size", self.embed_over_heads)
        follow = {
            "num_kv_heads": self.num_heads,
            "attention_out_bias": self.attention_bias,
            "query_pre_attn_scalar": float(self.head_size),
            "value_size": self.head_size,
        }
        for name, value in follow.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    @classmethod
    def of(cls, training: Training, *, tokenizer_size: int, platform: str) -> Self:
        """Return the config of a resolved job's model, for a tokenizer of so many entries on this JAX platform."""
        model = training.model
        return cls(
            num_layers=_filled(model.layers),
            num_heads=_filled(model.heads),
            embed_size=_filled(model.embed),
            mlp_size=_filled(model.mlp),
            seq_len=_filled(model.seq_len),
            vocab_size=model.vocab_size or tokenizer_size,
            num_kv_heads=_filled(model.kv_heads),
            head_size=_filled(model.head_size),
            block=_filled(model.block),
            norm=_filled(model.norm),
            pre_norm=_filled(model.pre_norm),
            post_norm=_filled(model.post_norm),
            qk_norm=_filled(model.qk_norm),
            qk_norm_over=_filled(model.qk_norm_over),
            activation=_filled(model.activation),
            position=_filled(model.position),
            rotary_dim=model.rotary_dim or 0,
            rotary_pairs=model.rotary_pairs or "interleaved",
            rope_theta=model.rope_theta or 10_000.0,
            local_rope_theta=model.local_rope_theta,
            rope_scaling=model.rope_scaling,
            rotary_pattern=model.rotary_pattern,
            tied_head=_filled(model.tied_head),
            head_bias=_filled(model.head_bias),
            attention_bias=_filled(model.attention_bias),
            attention_out_bias=_filled(model.attention_out_bias),
            attention_sinks=_filled(model.attention_sinks),
            mlp_bias=_filled(model.mlp_bias),
            num_experts=_filled(model.experts.count) if model.experts else 0,
            experts_per_token=_filled(model.experts.per_token) if model.experts else 0,
            experts_share_one=_filled(model.experts.share_one) if model.experts else True,
            **_of_router(model.experts),
            shared_size=(model.experts.shared or 0) if model.experts else 0,
            num_dense_blocks=_filled(model.experts.dense_blocks) if model.experts else 0,
            dense_mlp_size=(model.experts.dense_mlp or 0) if model.experts else 0,
            shared_gate=_filled(model.experts.shared_gate) if model.experts else False,
            router_bias=_filled(model.experts.router_bias) if model.experts else False,
            balance=_filled(model.experts.balance) if model.experts else 0.0,
            **_of_latent(model.latent),
            query_pre_attn_scalar=_filled(model.query_pre_attn_scalar),
            attention_softcap=model.attention_softcap,
            logit_softcap=model.logit_softcap,
            sliding_window=model.sliding_window,
            sliding_window_pattern=model.sliding_window_pattern,
            scale_embedding=_filled(model.scale_embedding),
            embedding_factor=_filled(model.embedding_factor),
            residual_factor=_filled(model.residual_factor),
            logit_divisor=_filled(model.logit_divisor),
            scale_by_inverse_layer=model.scale_by_inverse_layer,
            norm_epsilon=_filled(model.norm_epsilon),
            init_std=model.init_std,
            embed_dropout=model.dropout.embed,
            residual_dropout=model.dropout.residual,
            remat=model.remat,
            attention=kernel_of(training, platform),
        )

    @property
    def residual_init_std(self) -> float:
        """The deviation of the weights at first of what adds to the residual stream: smaller by 1 / sqrt(2 layers)."""
        return self.init_std / math.sqrt(2 * self.num_layers)

    @property
    def same_for_all_keys_counts(self) -> int:
        """In how many features of a head, the first ones, what is added to all keys alike changes attention."""
        if self.same_everywhere_counts:
            return self.head_size
        return self.rotary_dim if self.position == "rotary" else 0

    @property
    def same_everywhere_counts(self) -> bool:
        """Whether that is so in all of them: a bound bends scores, and sinks do not move with them."""
        return self.attention_softcap is not None or self.attention_sinks

    @property
    def normed_of_qk(self) -> tuple[AxisSpec, AxisSpec]:
        """What of a token's queries is scaled as one by their norm, and what of its keys."""
        if self.qk_norm_over == "head":
            return self.HeadSize, self.HeadSize
        return (self.Heads, self.HeadSize), (self.KvHeads if self.is_grouped else self.Heads, self.HeadSize)

    @property
    def embed_over_heads(self) -> int:
        """The usual size of a head."""
        return self.embed_size // self.num_heads

    @property
    def joined_heads(self) -> int:
        """The features of all heads, side by side."""
        return self.num_heads * self.head_size

    @property
    def is_grouped(self) -> bool:
        """Whether several heads of queries share one of keys and values."""
        return self.num_kv_heads != self.num_heads

    @property
    def is_latent(self) -> bool:
        """Whether keys and values are made of one narrow vector for each token."""
        return self.kv_rank > 0

    @property
    def of_dense_blocks(self) -> Self:
        """The config of the first blocks, which have one MLP each."""
        return replace(self, num_experts=0)

    @property
    def is_gated(self) -> bool:
        """Whether the MLP multiplies its activation by a second product."""
        return self.activation in GATED


def _of_latent(latent: Latent | None) -> dict[str, Any]:
    """Return the fields of latent attention, if there is any."""
    if latent is None:
        return {}
    return {
        "kv_rank": _filled(latent.kv_rank),
        "q_rank": latent.q_rank or 0,
        "value_size": _filled(latent.value_size),
        "latent_epsilon": _filled(latent.norm_epsilon),
    }


def _of_router(experts: Experts | None) -> dict[str, Any]:
    """Return the fields of a resolved mixture that say how experts are chosen and weighed."""
    if experts is None:
        return {}
    return {
        "expert_score": _filled(experts.score),
        "share_factor": _filled(experts.share_factor),
        "pick_bias": _filled(experts.pick_bias),
        "expert_groups": _filled(experts.groups),
        "groups_per_token": _filled(experts.groups_per_token),
        "group_score": _filled(experts.group_score),
    }


def _filled(value: T | None) -> T:
    """Return a field that resolving the job has filled in."""
    assert value is not None, "the job is not resolved"
    return value
