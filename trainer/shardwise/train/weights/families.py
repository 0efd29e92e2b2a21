"""Which published tensor is which of our parameters, and how its axes lie: one table a family.

A row is (name, parameter, axes): the axes are ours, in the published order, brackets around those that the published
tensor has joined into one. `h.{}` stands for every layer. GPT-2 keeps matrices as (in, out), GPT-J as (out, in).
Sources: the published files themselves; Radford et al. (2019), Wang and Komatsuzaki (2021) for what they compute.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax
import numpy as np
from numpy.typing import NDArray

from shardwise.train.config import GptConfig
from shardwise.train.layout import axis_names
from shardwise.train.model import Gpt

Array = NDArray[Any]
Shape = tuple[int, ...]
FamilyName = Literal["gpt2", "gptj"]
PREFIX = "transformer."
HEAD = "lm_head."


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a family's table."""

    name: str
    path: str
    axes: str
    qkv: int | None = None
    """Which of query, key and value the tensor is, if it is one of them alone."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Models that share names, layouts and choices."""

    name: FamilyName
    title: str
    mark: str
    """The tensor that only this family has."""
    choices: Mapping[str, str | bool]
    """The fields of `GptConfig` that every model of the family shares."""
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One tensor of one model: what it is called, and where in which of our parameters it belongs."""

    name: str
    path: str
    layer: int
    qkv: int
    groups: tuple[tuple[str, ...], ...]
    sizes: Mapping[str, int]
    names: tuple[str, ...]
    """Our parameter's axes; those that the tensor lacks are `layers` and perhaps `qkv`."""

    @property
    def shape(self) -> Shape:
        """Return the published shape."""
        return tuple(math.prod(self.sizes[name] for name in group) for group in self.groups)

    @property
    def offset(self) -> Shape:
        """Return where the tensor starts in our parameter."""
        places = {"layers": self.layer, "qkv": self.qkv}
        return tuple(0 if name in self._flat else places[name] for name in self.names)

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

    @property
    def _flat(self) -> tuple[str, ...]:
        return tuple(name for group in self.groups for name in group)


def _row(name: str, path: str, axes: str, qkv: int | None = None) -> Row:
    return Row(name=name, path=path, axes=axes, qkv=qkv)


def _norm(name: str, path: str) -> tuple[Row, Row]:
    return _row(f"{name}.weight", f"{path}.weight", "embed"), _row(f"{name}.bias", f"{path}.bias", "embed")


_GPT2 = Family(
    name="gpt2",
    title="GPT-2",
    mark="h.0.attn.c_attn.weight",
    choices={
        "block": "sequential",
        "position": "learned",
        "tied_head": True,
        "head_bias": False,
        "attention_bias": True,
    },
    rows=(
        _row("wte.weight", "token_embedding", "vocab embed"),
        _row("wpe.weight", "position_embedding", "position embed"),
        *_norm("h.{}.ln_1", "blocks.norm"),
        _row("h.{}.attn.c_attn.weight", "blocks.attention.qkv.weight", "embed (qkv heads head_size)"),
        _row("h.{}.attn.c_attn.bias", "blocks.attention.qkv.bias", "(qkv heads head_size)"),
        _row("h.{}.attn.c_proj.weight", "blocks.attention.out.weight", "(heads head_size) embed"),
        _row("h.{}.attn.c_proj.bias", "blocks.attention.out.bias", "embed"),
        *_norm("h.{}.ln_2", "blocks.mlp_norm"),
        _row("h.{}.mlp.c_fc.weight", "blocks.mlp.up.weight", "embed mlp"),
        _row("h.{}.mlp.c_fc.bias", "blocks.mlp.up.bias", "mlp"),
        _row("h.{}.mlp.c_proj.weight", "blocks.mlp.down.weight", "mlp embed"),
        _row("h.{}.mlp.c_proj.bias", "blocks.mlp.down.bias", "embed"),
        *_norm("ln_f", "norm"),
    ),
)

_GPTJ = Family(
    name="gptj",
    title="GPT-J",
    mark="h.0.attn.q_proj.weight",
    choices={
        "block": "parallel",
        "position": "rotary",
        "tied_head": False,
        "head_bias": True,
        "attention_bias": False,
        "scale_by_inverse_layer": False,
    },
    rows=(
        _row("wte.weight", "token_embedding", "vocab embed"),
        *_norm("h.{}.ln_1", "blocks.norm"),
        _row("h.{}.attn.q_proj.weight", "blocks.attention.qkv.weight", "(heads head_size) embed", 0),
        _row("h.{}.attn.k_proj.weight", "blocks.attention.qkv.weight", "(heads head_size) embed", 1),
        _row("h.{}.attn.v_proj.weight", "blocks.attention.qkv.weight", "(heads head_size) embed", 2),
        _row("h.{}.attn.out_proj.weight", "blocks.attention.out.weight", "embed (heads head_size)"),
        _row("h.{}.mlp.fc_in.weight", "blocks.mlp.up.weight", "mlp embed"),
        _row("h.{}.mlp.fc_in.bias", "blocks.mlp.up.bias", "mlp"),
        _row("h.{}.mlp.fc_out.weight", "blocks.mlp.down.weight", "embed mlp"),
        _row("h.{}.mlp.fc_out.bias", "blocks.mlp.down.bias", "embed"),
        *_norm("ln_f", "norm"),
        _row("lm_head.weight", "head", "vocab embed"),
        _row("lm_head.bias", "head_bias", "vocab"),
    ),
)

FAMILIES: tuple[Family, ...] = (_GPT2, _GPTJ)


def family_of(config: GptConfig) -> Family | None:
    """Return the family whose choices the model makes."""
    return next((family for family in FAMILIES if not differences(family, config)), None)


def differences(family: Family, config: GptConfig) -> dict[str, str | bool]:
    """Return the fields in which a model is not of this family, with the family's values."""
    return {field: value for field, value in family.choices.items() if getattr(config, field) != value}


def tensors(family: Family, config: GptConfig) -> dict[str, Tensor]:
    """Return all tensors of a model of this family, by published name without prefix."""
    parameters = parameter_axes(config)
    return {tensor.name: tensor for row in family.rows for tensor in _expand(row, config, parameters[row.path])}


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
        config.Heads,
        config.HeadSize,
        config.Mlp,
    )
    return {axis.name: axis.size for axis in axes}


def _expand(row: Row, config: GptConfig, names: tuple[str, ...]) -> Iterator[Tensor]:
    groups = tuple(tuple(group.strip("()").split()) for group in re.findall(r"\([^)]*\)|\S+", row.axes))
    sizes = axis_sizes(config) | {"vocab": config.vocab_size}
    for layer in range(config.num_layers) if "{}" in row.name else (0,):
        yield Tensor(
            name=row.name.format(layer),
            path=row.path,
            layer=layer,
            qkv=row.qkv or 0,
            groups=groups,
            sizes=sizes,
            names=names,
        )
