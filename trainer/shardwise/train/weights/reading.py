"""Published weights as our parameters, read slice by slice: no tensor is ever whole in memory unless a device wants it.

What each device holds is copied out of a map of the file straight into that device's slice. A map is there while its
tensor is copied, so that beside its own part of the model a host holds no more than one tensor of the file.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shardwise.protocol.errors import DataError
from shardwise.train.config import GptConfig
from shardwise.train.state import Program
from shardwise.train.weights.families import FAMILIES
from shardwise.train.weights.family import Family
from shardwise.train.weights.fit import check_fits
from shardwise.train.weights.joined import taken_apart
from shardwise.train.weights.locate import locate, read_json
from shardwise.train.weights.recognise import recognise, recognise_family
from shardwise.train.weights.safetensors_file import TensorEntry, entries
from shardwise.train.weights.stacked import Entry, unstacked
from shardwise.train.weights.tensors import Array, Shape, Tensor, axis_sizes, parameter_axes, tensors

CONFIG_FILE = "config.json"
# Causal masks and frequencies, not weights.
_BUFFER = re.compile(r"(h|layers)\.\d+\.(attn|attention|self_attn)\.(bias|masked_bias|rotary_emb\.inv_freq)")
_PREFIXES = tuple(dict.fromkeys(family.prefix for family in FAMILIES))
_MAX_PROBLEMS = 5
_ALIGNMENT_BYTES = 64


@dataclass(frozen=True)
class Stored:
    """One of our parameters as it lies in files: its tensors, and zeros in the padding of the vocabulary."""

    shape: Shape
    parts: tuple[tuple[Tensor, Entry], ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the narrowest dtype that holds every part exactly."""
        dtypes = {entry.numpy_dtype for _, entry in self.parts}
        # float32, float16 and bfloat16 are all that there are: of two of them only float32 can hold both.
        return dtypes.pop() if len(dtypes) == 1 else np.dtype(np.float32)

    def __getitem__(self, index: tuple[slice, ...]) -> Array:
        """Return the values in a box of the parameter, one slice an axis, as a new array."""
        box = [part.indices(size)[:2] for part, size in zip(index, self.shape, strict=True)]
        out = _aligned_zeros(tuple(high - low for low, high in box), self.dtype)
        for tensor, entry in self.parts:
            _copy(tensor, entry, out, box)
        return out


def read(
    path: Path, *, heads: int | None = None, tell: Callable[[str], None] = lambda _: None
) -> tuple[GptConfig, Iterator[tuple[str, Stored]]]:
    """Open a published model: its config, and its parameters by path, none of them read yet.

    Args:
        path: a safetensors file, a `model.safetensors.index.json`, or a folder that holds either; a config.json beside
            it is read too.
        heads: the number of heads, if neither config.json nor a published size gives it.
        tell: gets a line for a person on what of the files is left out, if anything is.

    Raises:
        DataError: what cannot be read, is of no known family, or has unknown, missing or misshapen tensors.
    """
    file = locate(path)
    found = _without_prefix(_index(file) if file.suffix == ".json" else entries(file), file)
    published = _published(file.parent / CONFIG_FILE) or {}
    family = recognise_family({name: entry.shape for name, entry in found.items()}, published)
    found = _without_further_layers(family, found, published, tell)
    config = recognise({name: entry.shape for name, entry in found.items()}, published, heads)
    expected = tensors(family.rows, config)
    if config.tied_head:
        _check_tied(family, found)
    held = unstacked(family, taken_apart(family, found, expected), expected)
    shapes = {name: entry.shape for name, entry in held.items()}
    ignored = {name for name in shapes if _BUFFER.fullmatch(name) or (config.tied_head and name == family.head)}
    _check(expected, {name: shape for name, shape in shapes.items() if name in expected or name not in ignored})
    return config, _parameters(config, expected, held)


def place(program: Program, config: GptConfig, parameters: Iterable[tuple[str, Stored]]) -> dict[str, jax.Array]:
    """Place the parameters on the program's mesh, in its parameter dtype; every device gets its own slices only.

    Raises:
        DataError: the program's model is not the weights' model; every field that differs is named.
    """
    check_fits(program.config, config)

    def put(path: str, stored: Stored) -> jax.Array:
        def part(index: Any) -> Array:
            return stored[index].astype(program.kept_dtype(path), copy=False)

        return jax.make_array_from_callback(stored.shape, program.layout.stored(program.trained[path]), part)

    placed = {path: put(path, stored) for path, stored in parameters}
    assert placed.keys() == program.trained.keys()
    return placed


def _copy(tensor: Tensor, entry: Entry, out: Array, box: Sequence[tuple[int, int]]) -> None:
    """Copy what a tensor, a piece of a parameter, has in a box of it."""
    offset = tensor.offset
    ends = zip(box, offset, tensor.extent, strict=True)
    common = [(max(low, start), min(high, start + size)) for (low, high), start, size in ends]
    if all(low < high for low, high in common):
        piece = tensor.ours(entry.around(tensor.region(common)))
        out[_seen_from([low for low, _ in box], common)] = piece[_seen_from(offset, common)]


def _aligned_zeros(shape: Shape, dtype: np.dtype[Any]) -> Array:
    """Return zeros that a CPU device takes over as they are; JAX copies what does not begin as its own arrays do."""
    num_bytes = math.prod(shape) * dtype.itemsize
    room = np.zeros(num_bytes + _ALIGNMENT_BYTES, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT_BYTES
    return room[start : start + num_bytes].view(dtype).reshape(shape)


def _seen_from(start: Sequence[int], box: Sequence[tuple[int, int]]) -> tuple[slice, ...]:
    """Return a box as the slices of an array that begins at `start`."""
    return tuple(slice(low - first, high - first) for first, (low, high) in zip(start, box, strict=True))


def _index(path: Path) -> dict[str, TensorEntry]:
    """Return the tensors of a model that is spread over several files."""
    places = read_json(path).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise DataError(f'{path}: expected a "weight_map" of tensor names to file names; get the index anew')
    if outside := [file for file in places.values() if Path(file).name != file]:
        raise DataError(f"{path}: names the file {outside[0]}, expected files of the same folder; get the index anew")
    files = {name: entries(path.parent / name) for name in sorted(set(places.values()))}
    if lost := [name for name, file in places.items() if name not in files[file]]:
        raise DataError(f"{path}: {lost[0]} is not in {places[lost[0]]} as the index says; get that file anew")
    return {name: files[file][name] for name, file in places.items()}


def _published(path: Path) -> dict[str, Any] | None:
    return read_json(path) if path.exists() else None


def _without_prefix(found: Mapping[str, TensorEntry], file: Path) -> dict[str, TensorEntry]:
    plain: dict[str, TensorEntry] = {}
    for name, entry in found.items():
        prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), "")
        short = name.removeprefix(prefix)
        if short in plain:
            full, bare = sorted((name, plain[short].name), key=len, reverse=True)
            raise DataError(f"{file}: has both {full} and {bare}; expected one: get the file anew")
        plain[short] = entry
    return plain


def _without_further_layers(
    family: Family, found: dict[str, TensorEntry], published: Mapping[str, Any], tell: Callable[[str], None]
) -> dict[str, TensorEntry]:
    """Return the tensors without those of the layers behind the last that predict further tokens."""
    known, further = published.get("num_hidden_layers"), published.get(family.further_layers)
    if not isinstance(known, int) or not isinstance(further, int):
        return found
    behind = tuple(f"layers.{layer}." for layer in range(known, known + further))
    kept = {name: entry for name, entry in found.items() if not name.startswith(behind)}
    if len(kept) < len(found):
        tell(
            f"what is behind layer {known - 1} is left out: it predicts further tokens "
            f"({family.further_layers} in {CONFIG_FILE})"
        )
    return kept


def _check(expected: Mapping[str, Tensor], given: Mapping[str, Shape]) -> None:
    """Compare all names and shapes."""
    problems = [
        f"{name}: missing; expected shape {tensor.shape}: get the whole model, with all its files"
        for name, tensor in expected.items()
        if name not in given
    ]
    problems += [
        f"{name}: given shape {given[name]}, expected {tensor.shape}: the file or its config.json is another model's"
        for name, tensor in expected.items()
        if name in given and given[name] != tensor.shape
    ]
    problems += [
        f"{name}: given shape {shape}, expected no such tensor: export the plain language model, without additions"
        for name, shape in given.items()
        if name not in expected
    ]
    if problems:
        rest = [f"... and {len(problems) - _MAX_PROBLEMS} more"] if len(problems) > _MAX_PROBLEMS else []
        raise DataError("\n  ".join(["the weights do not fit together:", *problems[:_MAX_PROBLEMS], *rest]))


def _check_tied(family: Family, found: Mapping[str, TensorEntry]) -> None:
    head, table = found.get(family.head), found[family.table]
    if head is None:
        return
    if head.shape != table.shape or head.dtype != table.dtype or not _same_bytes(head.array(), table.array()):
        raise DataError(
            f"{family.head}: given shape {head.shape}, expected the same values as {family.table} {table.shape}: "
            f"this {family.title}'s head is its token table; if it has one of its own, its config.json is wrong"
        )


def _same_bytes(one: Array, other: Array) -> bool:
    """Compare row by row, so that it needs no memory of the tensors' size."""
    return all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))


def _parameters(
    config: GptConfig, expected: Mapping[str, Tensor], found: Mapping[str, Entry]
) -> Iterator[tuple[str, Stored]]:
    sizes = axis_sizes(config)
    for path, names in parameter_axes(config).items():
        parts = tuple((tensor, found[tensor.name]) for tensor in expected.values() if tensor.path == path)
        yield path, Stored(tuple(sizes[name] for name in names), parts)
