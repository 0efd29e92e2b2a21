"""A model's sizes as named axes: a capital property is an axis. Which mesh axes split them is for `train/axes.py`."""

from dataclasses import dataclass, field

from haliax import Axis

from shardwise.job.presets import padded_vocab_size


@dataclass(frozen=True, kw_only=True)
class ModelAxes:
    """The sizes of a model.

    `vocab_size` counts the real entries; the `Vocab` axis is padded (`padded_vocab_size`), and the padding is masked
    wherever logits are made.
    """

    num_layers: int
    num_heads: int
    embed_size: int
    mlp_size: int
    seq_len: int
    vocab_size: int
    num_kv_heads: int = field(default=None)  # type: ignore[assignment]  # filled by GptConfig: the heads
    head_size: int = field(default=None)  # type: ignore[assignment]  # there too: embed over heads
    num_experts: int = 0
    shared_size: int = 0
    rotary_dim: int = 0
    kv_rank: int = 0
    q_rank: int = 0
    value_size: int = field(default=None)  # type: ignore[assignment]  # there too: the head size
    num_dense_blocks: int = 0
    dense_mlp_size: int = 0

    @property
    def Layers(self) -> Axis:
        """The blocks, stacked, but for those that are `DenseLayers`."""
        return Axis("layers", self.num_layers - self.num_dense_blocks)

    @property
    def DenseLayers(self) -> Axis:
        """The first blocks of a mixture that have one MLP each, stacked."""
        return Axis("dense_layers", self.num_dense_blocks)

    @property
    def Embed(self) -> Axis:
        """The residual stream."""
        return Axis("embed", self.embed_size)

    @property
    def Heads(self) -> Axis:
        """The attention heads, of queries."""
        return Axis("heads", self.num_heads)

    @property
    def KvHeads(self) -> Axis:
        """The heads of keys and values, each for as many neighbouring heads of queries."""
        return Axis("kv_heads", self.num_kv_heads)

    @property
    def HeadSize(self) -> Axis:
        """One head's features."""
        return Axis("head_size", self.head_size)

    @property
    def ValueSize(self) -> Axis:
        """One head's features of a value, where latent attention has them of a size of their own."""
        return Axis("value_size", self.value_size)

    @property
    def KvDown(self) -> Axis:
        """What latent attention makes of a token for keys and values: the narrow vector, and the key that is turned."""
        return Axis("kv_down", self.kv_rank + self.rotary_dim)

    @property
    def KvLatent(self) -> Axis:
        """The narrow vector of keys and values, normed, as all heads read it."""
        return Axis("kv_latent", self.kv_rank)

    @property
    def KeySize(self) -> Axis:
        """One head's features of a key but for the part that is turned, which all heads share."""
        return Axis("key_size", self.head_size - self.rotary_dim)

    @property
    def KeyValue(self) -> Axis:
        """What one head reads there: its key but for the part that is turned, and its value, in this order."""
        return Axis("key_value", self.KeySize.size + self.value_size)

    @property
    def QDown(self) -> Axis:
        """The narrow vector of queries, as it is made of a token."""
        return Axis("q_down", self.q_rank)

    @property
    def QLatent(self) -> Axis:
        """The same, normed, as all heads read it."""
        return Axis("q_latent", self.q_rank)

    @property
    def Qkv(self) -> Axis:
        """Query, key and value, in this order."""
        return Axis("qkv", 3)

    @property
    def Kv(self) -> Axis:
        """Key and value, in this order."""
        return Axis("kv", 2)

    @property
    def Mlp(self) -> Axis:
        """The hidden features between the two products of a block's MLP."""
        return Axis("mlp", self.mlp_size)

    @property
    def Experts(self) -> Axis:
        """The MLPs of a mixture, side by side."""
        return Axis("experts", self.num_experts)

    @property
    def Routes(self) -> Axis:
        """The same as what a router chooses from: a matrix of its own, where `experts` stacks matrices."""
        return Axis("routes", self.num_experts)

    @property
    def Shared(self) -> Axis:
        """The hidden features of the MLP that every token goes through beside its experts."""
        return Axis("shared", self.shared_size)

    @property
    def DenseMlp(self) -> Axis:
        """The hidden features of the MLP of such a first block."""
        return Axis("dense_mlp", self.dense_mlp_size)

    @property
    def Gates(self) -> Axis:
        """What a token decides by how much it takes of that MLP: one number."""
        return Axis("gates", 1)

    @property
    def Position(self) -> Axis:
        """The positions of one sequence."""
        return Axis("position", self.seq_len)

    @property
    def Vocab(self) -> Axis:
        """The vocabulary, padded so that any tensor size divides it and its shape is the same on every mesh."""
        return Axis("vocab", padded_vocab_size(self.vocab_size))
