"""One published tensor as a part of one of our parameters: its name, its place, and how its axes lie.

A row is (name, parameter, axes): the axes are ours, in the published order, brackets around those that the published
tensor has joined into one. `layers.{}` stands for every layer, a second `{}` for every expert. A row whose parameter a
model lacks, or has with other axes, does not count for it, so a tensor that is of one parameter in some models and of
another in others has two rows.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import equinox as eqx
import jax
import numpy as np
from numpy.typing import NDArray

from shardwise.train.config import GptConfig
from shardwise.train.layout import axis_names
from shardwise.train.model import Gpt

Array = NDArray[Any]
Shape = tuple[int, ...]
_BLOCKS, _DENSE = "blocks.", "dense_blocks."
_ONE_OF = frozenset({"layers", "dense_layers", "experts", "qkv", "kv"})


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a family's table."""

    name: str
    path: str
    axes: str
    part: int = 0
    """Which of query, key and value, or of key and value, the tensor is, if it is one of them alone."""


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One tensor of one model: what it is called, and where in which of our parameters it belongs."""

    name: str
    path: str
    layer: int
    """Of those that are stacked with it."""
    expert: int
    part: int
    groups: tuple[tuple[str, ...], ...]
    sizes: Mapping[str, int]
    names: tuple[str, ...]
    """Our parameter's axes; those that the tensor lacks are `layers`, and perhaps `experts`, `qkv` or `kv`."""

    @property
    def shape(self) -> Shape:
        """Return the published shape."""
        return tuple(math.prod(self._sizes_of(group)) for group in self.groups)

    @property
    def offset(self) -> Shape:
        """Return where the tensor starts in our parameter."""
        places = {
            "layers": self.layer,
            "dense_layers": self.layer,
            "experts": self.expert,
            "qkv": self.part,
            "kv": self.part,
        }
        return tuple(0 if name in self._flat else places[name] for name in self.names)

    @property
    def extent(self) -> Shape:
        """Return its size along each axis of our parameter."""
        return tuple(self.sizes[name] if name in self._flat else 1 for name in self.names)

    def region(self, box: Sequence[tuple[int, int]]) -> tuple[slice, ...]:
        """Return what a box of our parameter is of the published tensor: all of an axis that joins several."""
        return tuple(
            slice(*box[self.names.index(group[0])]) if len(group) == 1 else slice(0, math.prod(self._sizes_of(group)))
            for group in self.groups
        )

    def ours(self, published: Array) -> Array:
        """Return the tensor with our parameter's axes, those it lacks of size 1; a view, nothing is copied."""
        flat = published.reshape([self.sizes[name] for name in self._flat])
        turned = flat.transpose([self._flat.index(name) for name in self.names if name in self._flat])
        return np.expand_dims(turned, tuple(i for i, name in enumerate(self.names) if name not in self._flat))

    def published(self, parameter: Array) -> Array:
        """Return the tensor out of our parameter, without the vocabulary's padding."""
        index = [
            slice(self.sizes[name]) if name in self._flat else start
            for name, start in zip(self.names, self.offset, strict=True)
        ]
        kept = [name for name in self.names if name in self._flat]
        return parameter[tuple(index)].transpose([kept.index(name) for name in self._flat]).reshape(self.shape)

    def _sizes_of(self, group: tuple[str, ...]) -> list[int]:
        return [self.sizes[name] for name in group]

    @property
    def _flat(self) -> tuple[str, ...]:
        return tuple(name for group in self.groups for name in group)


def tensors(rows: Sequence[Row], config: GptConfig) -> dict[str, Tensor]:
    """Return all tensors of a model by published name, without the prefix."""
    parameters = parameter_axes(config)
    rows = (*rows, *(replace(row, path=_DENSE + row.path.removeprefix(_BLOCKS)) for row in rows if _is_of_both(row)))
    held = [row for row in rows if row.path in parameters and _fits(row, parameters[row.path])]
    assert {row.path for row in held} == parameters.keys(), "every parameter has its rows"
    return {tensor.name: tensor for row in held for tensor in _expand(row, config, parameters[row.path])}


def parameter_axes(config: GptConfig) -> dict[str, tuple[str, ...]]:
    """Return the axis names of our parameters, by path."""
    return axis_names(eqx.filter_eval_shape(Gpt.init, config, key=jax.random.key(0)))


def axis_sizes(config: GptConfig) -> dict[str, int]:
    """Return the size of every axis by name; `vocab` is padded, as our parameters are."""
    axes = (
        config.Layers,
        config.Vocab,
        config.Position,
        config.Embed,
        config.Qkv,
        config.Kv,
        config.Heads,
        config.KvHeads,
        config.HeadSize,
        config.ValueSize,
        config.KvDown,
        config.KvLatent,
        config.KeyValue,
        config.QDown,
        config.QLatent,
        config.Mlp,
        config.Experts,
        config.Routes,
        config.Shared,
        config.Gates,
        config.DenseLayers,
        config.DenseMlp,
    )
    return {axis.name: axis.size for axis in axes}


def _is_of_both(row: Row) -> bool:
    """Return whether a row is of the first blocks of a mixture too, whose MLPs have rows of their own."""
    return row.path.startswith(_BLOCKS) and not row.path.startswith(f"{_BLOCKS}mlp.")


def _fits(row: Row, names: tuple[str, ...]) -> bool:
    """Return whether the row is of a parameter with these axes, but for those that a tensor is one of."""
    flat = {name for group in _groups(row) for name in group}
    return flat <= {*names} <= flat | _ONE_OF


def _groups(row: Row) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(group.strip("()").split()) for group in re.findall(r"\([^)]*\)|\S+", row.axes))


def _expand(row: Row, config: GptConfig, names: tuple[str, ...]) -> Iterator[Tensor]:
    sizes = axis_sizes(config) | {"vocab": config.vocab_size}
    first, is_dense = config.num_dense_blocks, row.path.startswith(_DENSE)
    layers = range(first) if is_dense else range(first, config.num_layers)
    numbers = (layers, range(config.num_experts))[: row.name.count("{}")]
    for place in product(*numbers):
        layer, expert = (*place, 0, 0)[:2]
        yield Tensor(
            name=row.name.format(*place),
            path=row.path,
            layer=layer if is_dense or not numbers else layer - first,
            expert=expert,
            part=row.part,
            groups=_groups(row),
            sizes=sizes,
            names=names,
        )
