"""The stacks of a model's blocks, which a step goes through one block at a time.

There is one, or of a mixture of experts whose first blocks have one MLP each two: blocks of two kinds cannot be one
stack. Source of such first blocks: Dai et al., "DeepSeekMoE" (2024), whose loads become even slowly there.
"""

from dataclasses import replace

import haliax as hax
import haliax.nn as hnn
import jax
from haliax import Axis, NamedArray
from jax.ad_checkpoint import checkpoint_name

from shardwise.train.block import Block
from shardwise.train.config import GptConfig
from shardwise.train.dropout import Dropout
from shardwise.train.layout import Layout, in_float32
from shardwise.train.remat import INPUT, OF_A_LAYER

Array = jax.Array


def stacks(config: GptConfig, *, key: Array) -> tuple[hnn.Stacked[Block], hnn.Stacked[Block] | None]:
    """Return a model's blocks with weights of their own, and those before them that have one MLP where these have many.

    A block's weights are those of its number in the model, whichever stack it is in.
    """
    keys, first = jax.random.split(key, config.num_layers), config.num_dense_blocks
    if not first:
        return _stack(config, config.Layers, keys), None
    return _stack(config, config.Layers, keys[first:]), _stack(config.of_dense_blocks, config.DenseLayers, keys[:first])


def folded(
    stack: hnn.Stacked[Block],
    x: NamedArray,
    numbers: NamedArray,
    segments: Array | None,
    dropout: Dropout,
    layout: Layout,
) -> NamedArray:
    """Map what the first block of a stack gets, {batch, position, embed}, to what its last returns.

    It is a scan: the program has one block for all layers, and gathers one layer at a time.

    Args:
        stack: of blocks.
        x: the residual stream.
        numbers: int32 {layers} or {dense_layers}, which blocks of the model they are.
        segments: int32 [batch, position] or None; a token sees only tokens of its own segment.
        dropout: its rates and keys, or `Dropout.none()`.
        layout: where arrays live.

    """
    named = None if segments is None else hax.named(segments, ("batch", "position"))

    def layer(block: Block, x: NamedArray, number: NamedArray) -> NamedArray:
        x = hax.named(checkpoint_name(x.array, INPUT), x.axes)
        return in_float32(block)(x, number.array, named, dropout, layout)

    (Layers,) = numbers.axes
    through: NamedArray = replace(stack, Block=Layers).fold_via(layer)(x, numbers)
    return through


def one_by_one(stack: hnn.Stacked[Block], before: hnn.Stacked[Block] | None) -> tuple[Block, ...]:
    """Return all blocks of a model in their order, each by itself."""
    return (*(before.unstacked() if before else ()), *stack.unstacked())


def _stack(config: GptConfig, Layers: Axis, keys: Array) -> hnn.Stacked[Block]:
    made: hnn.Stacked[Block] = hnn.Stacked.init(Layers, Block, gradient_checkpointing=OF_A_LAYER[config.remat])(
        config, key=keys
    )
    return made
