"""The sizes that the estimate of a job counts with: its mesh, its blocks' weights, and its activations by width."""

from collections.abc import Iterator
from typing import NamedTuple

from shardwise.job.adapter_sizes import Factors, block_adapters, expert_adapters
from shardwise.job.presets import padded_vocab_size, published_vocab_size
from shardwise.job.sizes import (
    block_matrices,
    inside_of_a_token,
    keys_seen_twice,
    of_first_blocks,
    values_of_heads,
)
from shardwise.job.spec import Model, TrainingJob
from shardwise.job.spec.training import Lora
from shardwise.job.topology import MeshShape, mesh_shape


class Blocks(NamedTuple):
    """A number of blocks that are alike.

    `weights` are those of a block's matrices, of which `apart` are experts, if these are split over devices; `inside`
    is the width of all MLPs that a token goes through in it. Their adapters are counted likewise, if there are any.
    """

    layers: int
    weights: int
    apart: int
    inside: int
    adapters: Factors
    adapters_apart: Factors


class Sizes(NamedTuple):
    """Dimensions, weights of blocks and of the tables, bytes of a computed value.

    `seen` is twice the keys that a token sees on average, summed over the layers; `heads` and `kv_heads` are the values
    of all of them, of queries and of keys or values.
    """

    shape: MeshShape
    blocks: tuple[Blocks, ...]
    embed: int
    length: int
    heads: int
    kv_heads: int
    seen: int
    vocab: int
    table: int
    width: int

    @property
    def layers(self) -> int:
        """Return the number of blocks."""
        return sum(kind.layers for kind in self.blocks)

    @property
    def mixtures_apart(self) -> int:
        """Return the blocks whose experts are split over devices."""
        return sum(kind.layers for kind in self.blocks if kind.apart)

    @property
    def inside(self) -> int:
        """Return the width of all MLPs that a token goes through in the block where it is widest."""
        return max(kind.inside for kind in self.blocks)

    @property
    def all_blocks(self) -> int:
        """Return the weights of all blocks."""
        return sum(kind.layers * kind.weights for kind in self.blocks)

    @property
    def all_whole_blocks(self) -> float:
        """Return the weights of all blocks as a device has them gathered: with all, or some of the experts."""
        return sum(kind.layers * self._whole(kind) for kind in self.blocks)

    @property
    def all_apart(self) -> float:
        """Return those of them that are experts which other devices have not, and so move over fewer devices."""
        return sum(kind.layers * kind.apart / self.shape.data_inner for kind in self.blocks)

    @property
    def whole_block(self) -> float:
        """Return the same of the largest block."""
        return max(self._whole(kind) for kind in self.blocks)

    def adapters_held(self, ways: int) -> float:
        """Return the parameters that a device holds of adapters of all blocks, which FSDP splits in so many ways."""
        tensor, inner = self.shape.tensor, self.shape.data_inner
        return sum(
            kind.layers
            * (
                kind.adapters.by_fsdp / ways
                + kind.adapters.others / tensor
                + kind.adapters_apart.by_fsdp / max(ways, inner)
                + kind.adapters_apart.others / tensor / inner
            )
            for kind in self.blocks
        )

    @property
    def whole_adapters(self) -> float:
        """Return those that it has of a block where most are gathered."""
        tensor, inner = self.shape.tensor, self.shape.data_inner
        kinds = ((kind.adapters, kind.adapters_apart) for kind in self.blocks)
        return max(
            here.by_fsdp + here.others / tensor + (apart.by_fsdp + apart.others / tensor) / inner
            for here, apart in kinds
        )

    def _whole(self, kind: Blocks) -> float:
        return kind.weights - kind.apart * (1 - 1 / self.shape.data_inner)


def sizes_of(job: TrainingJob) -> Sizes:
    """Return the sizes of a resolved job."""
    training = job.spec.training
    model, shape = training.model, mesh_shape(job)
    assert shape is not None
    embed, length = model.embed or 0, model.seq_len or 0
    vocab = padded_vocab_size(model.vocab_size or published_vocab_size(model.preset))
    heads, kv_heads = values_of_heads(model)
    return Sizes(
        shape=shape,
        blocks=tuple(_blocks(model, training.lora, is_split=training.mesh.expert > 1)),
        embed=embed,
        length=length,
        heads=heads,
        kv_heads=kv_heads,
        seen=keys_seen_twice(model.layers or 0, length, model.sliding_window, model.sliding_window_pattern),
        vocab=vocab,
        table=vocab * embed * (1 if model.tied_head else 2),
        width=2 if training.precision.compute == "bfloat16" else 4,
    )


def _blocks(model: Model, lora: Lora | None, *, is_split: bool) -> Iterator[Blocks]:
    """Yield the first blocks of a mixture, if they have one MLP each, and the others."""
    first, count = of_first_blocks(model)
    if count:
        yield _alike(first, lora, count, is_split=False)
    yield _alike(model, lora, (model.layers or 0) - count, is_split=is_split)


def _alike(model: Model, lora: Lora | None, count: int, *, is_split: bool) -> Blocks:
    experts = (model.experts.count or 0) if model.experts and is_split else 0
    apart = experts * 3 * (model.embed or 0) * (model.mlp or 0)  # they are gated
    none = Factors(0, 0)
    of_block, of_experts = (block_adapters(model, lora), expert_adapters(model, lora)) if lora else (none, none)
    adapters = (of_block, of_experts) if is_split else (of_block.plus(of_experts), none)
    return Blocks(count, block_matrices(model), apart, inside_of_a_token(model), *adapters)
