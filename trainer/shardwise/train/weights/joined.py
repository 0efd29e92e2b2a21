"""Published tensors that hold several of ours one after the other, as entries of their own.

Rows lie together in a file, so that each part is a range of its bytes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from shardwise.protocol.errors import DataError
from shardwise.train.weights.family import Family
from shardwise.train.weights.safetensors_file import TensorEntry
from shardwise.train.weights.tensors import Tensor


def taken_apart(
    family: Family, found: Mapping[str, TensorEntry], expected: Mapping[str, Tensor]
) -> dict[str, TensorEntry]:
    """Return the entries with the parts of each joined one in its place, by the names of the expected tensors.

    Raises:
        DataError: one has not the rows and columns of its parts.
    """
    wanted = {
        tensor.name.replace(parts[0], joined): [tensor.name.replace(parts[0], part) for part in parts]
        for joined, parts in family.joined.items()
        for tensor in expected.values()
        if f".{parts[0]}." in tensor.name
    }
    apart: dict[str, TensorEntry] = {}
    for name, entry in found.items():
        apart |= dict(_parts(entry, [expected[part] for part in wanted[name]])) if name in wanted else {name: entry}
    return apart


def _parts(entry: TensorEntry, tensors: list[Tensor]) -> Iterator[tuple[str, TensorEntry]]:
    """Yield the parts of an entry, which has their rows in this order."""
    num_rows, others = sum(tensor.shape[0] for tensor in tensors), tensors[0].shape[1:]
    if entry.shape != (num_rows, *others):
        raise DataError(
            f"{entry.name}: given shape {entry.shape}, expected {(num_rows, *others)}: the file or its config.json is "
            "another model's"
        )
    start, row_bytes = entry.start, entry.num_bytes // num_rows
    for tensor in tensors:
        num_bytes = tensor.shape[0] * row_bytes
        yield tensor.name, replace(entry, shape=tensor.shape, start=start, num_bytes=num_bytes)
        start += num_bytes
