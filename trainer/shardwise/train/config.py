"""The config of the model that is built, from a resolved job: every choice made, every size an axis.

It knows nothing of meshes: `train/layout.py` maps its axes to them.
"""

from dataclasses import dataclass
from typing import Literal, Self, TypeVar

from haliax import Axis

from shardwise.job.kernels import Kernel, kernel_of
from shardwise.job.presets import padded_vocab_size
from shardwise.job.spec import Training

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class GptConfig:
    """A GPT's sizes and choices; a capital property is a named axis.

    `vocab_size` counts the real entries; the `Vocab` axis is padded (`padded_vocab_size`), and the padding is masked
    wherever logits are made.
    """

    num_layers: int
    num_heads: int
    embed_size: int
    mlp_size: int
    seq_len: int
    vocab_size: int
    block: Literal["sequential", "parallel"] = "sequential"
    position: Literal["learned", "rotary"] = "learned"
    rotary_dim: int = 0
    tied_head: bool = True
    head_bias: bool = False
    attention_bias: bool = True
    scale_by_inverse_layer: bool = False
    norm_epsilon: float = 1e-5
    init_std: float = 0.02
    embed_dropout: float = 0.0
    residual_dropout: float = 0.0
    remat: Literal["full", "dots", "none"] = "full"
    attention: Kernel = "blockwise"

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
            block=_filled(model.block),
            position=_filled(model.position),
            rotary_dim=model.rotary_dim or 0,
            tied_head=_filled(model.tied_head),
            head_bias=_filled(model.head_bias),
            attention_bias=_filled(model.attention_bias),
            scale_by_inverse_layer=model.scale_by_inverse_layer,
            norm_epsilon=model.norm_epsilon,
            init_std=model.init_std,
            embed_dropout=model.dropout.embed,
            residual_dropout=model.dropout.residual,
            remat=model.remat,
            attention=kernel_of(training, platform),
        )

    @property
    def Layers(self) -> Axis:
        """The blocks, stacked."""
        return Axis("layers", self.num_layers)

    @property
    def Embed(self) -> Axis:
        """The residual stream."""
        return Axis("embed", self.embed_size)

    @property
    def Heads(self) -> Axis:
        """The attention heads."""
        return Axis("heads", self.num_heads)

    @property
    def HeadSize(self) -> Axis:
        """One head's features."""
        return Axis("head_size", self.embed_size // self.num_heads)

    @property
    def Qkv(self) -> Axis:
        """Query, key and value, in this order."""
        return Axis("qkv", 3)

    @property
    def Mlp(self) -> Axis:
        """The hidden features between the two products of a block's MLP."""
        return Axis("mlp", self.mlp_size)

    @property
    def Position(self) -> Axis:
        """The positions of one sequence."""
        return Axis("position", self.seq_len)

    @property
    def Vocab(self) -> Axis:
        """The vocabulary, padded so that any tensor size divides it and its shape is the same on every mesh."""
        return Axis("vocab", padded_vocab_size(self.vocab_size))


def _filled(value: T | None) -> T:
    """Return a field that resolving the job has filled in."""
    assert value is not None, "the job is not resolved"
    return value
