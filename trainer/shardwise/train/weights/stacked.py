"""Published tensors that hold those of all experts of a layer, and perhaps two kinds of them in turn, column by column.

Such a tensor is (expert, rows, columns); the tables of families have one row for each expert and kind. It may be packed
in 4 bits (`mxfp4`). Either is read expert by expert, and only what is asked for.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.protocol.errors import DataError
from shardwise.train.weights.family import Family
from shardwise.train.weights.mxfp4 import BLOCK, BLOCK_BYTES, decode
from shardwise.train.weights.safetensors_file import DTYPES, Region, TensorEntry
from shardwise.train.weights.tensors import Array, Shape, Tensor

_OF_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(.+)")
_BLOCKS, _SCALES, _BYTES = "_blocks", "_scales", "U8"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a tensor of one expert lies in the published one."""

    name: str
    """Of the published tensor."""
    expert: int
    part: int
    parts: int
    """Its columns are every so many-th, from `part` on."""


@dataclass(frozen=True, kw_only=True)
class Slice:
    """One expert's tensor in a file of all."""

    place: Place
    shape: Shape
    entry: TensorEntry

    @property
    def name(self) -> str:
        """Return the name of the published tensor."""
        return self.entry.name

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """Return its dtype. DataError unless it is float32, float16 or bfloat16."""
        return self.entry.numpy_dtype

    def around(self, region: Region) -> Array:
        """Return the tensor as a read-only map of the file."""
        return self.entry.around(region)[self.place.expert, ..., self.place.part :: self.place.parts]


@dataclass(frozen=True, kw_only=True)
class Packed:
    """One expert's matrix in a file of all, packed in 4 bits: rows and columns are the other way round there."""

    place: Place
    shape: Shape
    blocks: TensorEntry
    scales: TensorEntry

    @property
    def name(self) -> str:
        """Return the name of the published tensor."""
        return self.blocks.name

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """Return the dtype of what is decoded, which holds every value exactly."""
        return DTYPES["BF16"]

    def around(self, region: Region) -> Array:
        """Return an array of the matrix, of which this region, in whole blocks, is decoded and nothing else is set."""
        rows, columns = region
        first, last = rows.start // BLOCK, -(-rows.stop // BLOCK)
        at, of = self.place, slice(first, last)
        blocks, scales = (
            one.bytes_of()[at.expert, at.part :: at.parts][columns, of] for one in (self.blocks, self.scales)
        )
        whole = np.empty(self.shape[::-1], self.numpy_dtype)  # what is never touched takes no memory
        whole[columns, first * BLOCK : last * BLOCK] = decode(blocks, scales).astype(self.numpy_dtype)
        return whole.T


Entry = TensorEntry | Slice | Packed


def place_of(family: Family, name: str) -> Place | None:
    """Return where one of the family's tensors lies, or None for one that is a tensor of its own."""
    match = _OF_EXPERT.fullmatch(name) if family.stacked else None
    if match is None:
        return None
    prefix, expert, kind = match.groups()
    stacked, parts = next((stacked, parts) for stacked, parts in family.stacked.items() if kind in parts)
    return Place(name=f"{prefix}.{stacked}", expert=int(expert), part=parts.index(kind), parts=len(parts))


def published_shapes(family: Family, expected: Mapping[str, Tensor]) -> dict[str, Shape]:
    """Return the names and shapes of a family's tensors as they are in a file."""
    shapes: dict[str, Shape] = {}
    for name, tensor in expected.items():
        place = place_of(family, name)
        shapes |= {name: tensor.shape} if place is None else {place.name: _shape(place, tensor)}
    return shapes


def unstacked(family: Family, found: Mapping[str, TensorEntry], expected: Mapping[str, Tensor]) -> dict[str, Entry]:
    """Return the entries with those of every expert in the place of the stacked ones.

    Raises:
        DataError: one is missing, or has not the shape of its parts.
    """
    apart: dict[str, Entry] = {}
    used: set[str] = set()
    for name, tensor in expected.items():
        if (place := place_of(family, name)) is not None:
            apart[name] = _entry(place, tensor, found)
            used |= {place.name} if place.name in found else {place.name + _BLOCKS, place.name + _SCALES}
    return {name: entry for name, entry in found.items() if name not in used} | apart


def _entry(place: Place, tensor: Tensor, found: Mapping[str, TensorEntry]) -> Slice | Packed:
    blocks, scales = found.get(place.name + _BLOCKS), found.get(place.name + _SCALES)
    entry = found.get(place.name)
    whole = _shape(place, tensor)
    if entry is not None:
        _check(entry, whole)
        return Slice(place=place, shape=tensor.shape, entry=entry)
    if blocks is None or scales is None:
        missing = place.name if blocks is scales else place.name + (_BLOCKS if blocks is None else _SCALES)
        raise DataError(f"{missing}: missing; expected shape {whole}: get the whole model, with all its files")
    experts, rows, columns = whole
    _check(scales, (experts, columns, rows // BLOCK), _BYTES)
    _check(blocks, (experts, columns, rows // BLOCK, BLOCK_BYTES), _BYTES)
    return Packed(place=place, shape=tensor.shape, blocks=blocks, scales=scales)


def _shape(place: Place, tensor: Tensor) -> Shape:
    return (tensor.sizes["experts"], *tensor.shape[:-1], tensor.shape[-1] * place.parts)


def _check(entry: TensorEntry, shape: Shape, dtype: str | None = None) -> None:
    if entry.shape != shape or dtype not in (None, entry.dtype):
        given = f"shape {entry.shape}" if dtype is None else f"shape {entry.shape} of {entry.dtype}"
        expected = f"{shape}" if dtype is None else f"{shape} of {dtype}"
        raise DataError(
            f"{entry.name}: given {given}, expected {expected}: the file or its config.json is another model's"
        )
