"""Published tensors that hold several of ours one after the other, as entries of their own, and as one again.

Rows lie together in a file, so that each part is a range of its bytes.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from shardwise.protocol.errors import DataError
from shardwise.train.weights.family import Family
from shardwise.train.weights.safetensors_file import TensorEntry
from shardwise.train.weights.tensors import Shape, Tensor


@dataclass(frozen=True, kw_only=True)
class Joined:
    """A published tensor, and those of ours whose rows it has, in their order."""

    name: str
    parts: tuple[Tensor, ...]

    @property
    def shape(self) -> Shape:
        """Return its shape."""
        return (sum(part.shape[0] for part in self.parts), *self.parts[0].shape[1:])

    def first_row(self, name: str) -> int:
        """Return where the part of this name begins."""
        names = [part.name for part in self.parts]
        return sum(part.shape[0] for part in self.parts[: names.index(name)])


def joined_of(family: Family, tensors: Iterable[Tensor]) -> list[Joined]:
    """Return what a family's files join of these tensors."""
    by_name = {tensor.name: tensor for tensor in tensors}
    return [
        Joined(
            name=tensor.name.replace(parts[0], joined),
            parts=tuple(by_name[tensor.name.replace(parts[0], part)] for part in parts),
        )
        for joined, parts in family.joined.items()
        for tensor in by_name.values()
        if f".{parts[0]}." in tensor.name
    ]


def taken_apart(
    family: Family, found: Mapping[str, TensorEntry], expected: Mapping[str, Tensor]
) -> dict[str, TensorEntry]:
    """Return the entries with the parts of each joined one in its place, by the names of the expected tensors.

    Raises:
        DataError: one has not the rows and columns of its parts.
    """
    wanted = {joined.name: joined for joined in joined_of(family, expected.values())}
    apart: dict[str, TensorEntry] = {}
    for name, entry in found.items():
        apart |= dict(_parts(entry, wanted[name])) if name in wanted else {name: entry}
    return apart


def _parts(entry: TensorEntry, joined: Joined) -> Iterator[tuple[str, TensorEntry]]:
    """Yield the parts of an entry, which has their rows in this order."""
    if entry.shape != joined.shape:
        raise DataError(
            f"{entry.name}: given shape {entry.shape}, expected {joined.shape}: the file or its config.json is "
            "another model's"
        )
    start, row_bytes = entry.start, entry.num_bytes // joined.shape[0]
    for part in joined.parts:
        num_bytes = part.shape[0] * row_bytes
        yield part.name, replace(entry, shape=part.shape, start=start, num_bytes=num_bytes)
        start += num_bytes
