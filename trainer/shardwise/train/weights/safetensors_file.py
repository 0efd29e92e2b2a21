"""The safetensors format: a table of names, dtypes, shapes and byte ranges in JSON, then the bytes.

It knows nothing of models. Written here because the format's own library takes all tensors of a file at once to write
it, and has no bfloat16 in numpy.
Source: https://github.com/huggingface/safetensors#format
"""

import fcntl
import json
import math
import os
import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any, BinaryIO

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from shardwise.protocol.errors import DataError

Array = NDArray[Any]
Region = tuple[slice, ...]
"""A part of a tensor: of each axis a range, with its ends."""
DTYPES: Mapping[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": jnp.dtype("bfloat16"),
}
_ALIGNMENT_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the format's own bound
_METADATA = "__metadata__"
_PART = ".part"


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """One tensor of a file; its bytes are read when they are looked at."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    """Its first byte in the file."""
    num_bytes: int

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """Return its dtype. DataError unless it is float32, float16 or bfloat16."""
        if self.dtype not in DTYPES:
            known = ", ".join(DTYPES)
            raise DataError(f"{self.file}: {self.name} has dtype {self.dtype}, expected one of {known}; convert it")
        return DTYPES[self.dtype]

    def array(self) -> Array:
        """Return the tensor as a read-only map of the file, which ends with the array."""
        return np.memmap(self.file, self.numpy_dtype, "r", self.start, self.shape)

    def around(self, region: Region) -> Array:  # noqa: ARG002  others read no more than the region
        """Return the tensor: a map reads what is looked at."""
        return self.array()

    def bytes_of(self) -> Array:
        """Return a tensor of bytes, which are no numbers yet, as such a map."""
        return np.memmap(self.file, np.uint8, "r", self.start, self.shape)


def entries(path: Path) -> dict[str, TensorEntry]:
    """Return the table of a file, by name. DataError if it is not a whole safetensors file."""
    try:
        with path.open("rb") as file:
            return _entries(path, file)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}; expected a safetensors file") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path}: is not a whole safetensors file ({error}); expected one from a finished download or export"
        ) from error


class Writer:
    """A file being written: every tensor has its place from the start, so they may come in any order."""

    def __init__(
        self,
        file: BinaryIO,
        shapes: Mapping[str, tuple[int, ...]],
        dtype: np.dtype[Any],
        in_float32: Collection[str] = (),
    ) -> None:
        self._file = file
        self._dtypes = {name: np.dtype(np.float32) if name in in_float32 else dtype for name in shapes}
        self._shapes = shapes
        codes = {known: code for code, known in DTYPES.items()}
        sizes = (math.prod(shape) * self._dtypes[name].itemsize for name, shape in shapes.items())
        ends = np.cumsum([0, *sizes]).tolist()
        ranges = zip(shapes.items(), ends[:-1], ends[1:], strict=True)
        table: dict[str, Any] = {_METADATA: {"format": "pt"}}  # transformers refuses a file that does not say so
        table |= {
            name: {"dtype": codes[self._dtypes[name]], "shape": list(shape), "data_offsets": [start, end]}
            for (name, shape), start, end in ranges
        }
        header = json.dumps(table, separators=(",", ":")).encode()
        header += b" " * (-len(header) % _ALIGNMENT_BYTES)
        file.write(len(header).to_bytes(8, "little") + header)
        self._starts = {name: 8 + len(header) + start for name, start in zip(shapes, ends[:-1], strict=True)}
        file.truncate(8 + len(header) + ends[-1])

    def put(self, name: str, array: Array) -> None:
        """Write one tensor; an array that does not lie in order is copied to do so."""
        assert array.shape == self._shapes[name], (name, array.shape, self._shapes[name])
        assert array.dtype == self._dtypes[name], (name, array.dtype, self._dtypes[name])
        self._file.seek(self._starts[name])
        self._file.write(np.ascontiguousarray(array).view(np.uint8).data)

    def put_rows(self, name: str, first: int, array: Array) -> None:
        """Write some rows of a tensor, the first of which has this number."""
        assert array.shape[1:] == self._shapes[name][1:], (name, array.shape, self._shapes[name])
        assert array.dtype == self._dtypes[name], (name, array.dtype, self._dtypes[name])
        row_bytes = math.prod(array.shape[1:]) * array.itemsize
        self._file.seek(self._starts[name] + first * row_bytes)
        self._file.write(np.ascontiguousarray(array).view(np.uint8).data)

    def put_columns(self, name: str, row: int, array: Array, *, part: int, parts: int) -> None:
        """Write what a tensor has at one place of its first axis: of the last axis every so many-th column."""
        shape = self._shapes[name][1:]
        num_bytes = math.prod(shape) * self._dtypes[name].itemsize
        start = self._starts[name] + row * num_bytes
        self._file.seek(start)
        whole = np.frombuffer(bytearray(self._file.read(num_bytes)), self._dtypes[name]).reshape(shape)
        whole[..., part::parts] = array
        self._file.seek(start)
        self._file.write(whole.view(np.uint8).data)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file that takes `path`'s place, whole and on disk, when the block ends; remove it if that fails.

    Others may write to the same path at once: each has a file of its own, and the last one that ends is there. What
    killed ones have left is removed.
    """
    _remove_left(path)
    with _own_part(path) as file:
        part = Path(file.name)
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            part.replace(path)  # while it is locked, or it could be removed as left by a killed process
        finally:
            part.unlink(missing_ok=True)


def _own_part(path: Path) -> BinaryIO:
    """Open a new file beside `path`, locked for as long as it is open."""
    while True:
        file = path.with_name(f".{path.name}.{secrets.token_hex(8)}{_PART}").open("x+b")
        with suppress(OSError):  # a volume without locks, where nothing is removed
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # removed by another process before it was locked


def _remove_left(path: Path) -> None:
    """Remove the parts that nobody writes any more."""
    for part in path.parent.glob(f".{escape(path.name)}.*{_PART}"):
        with suppress(OSError), part.open("r+b") as file:  # held, gone meanwhile, or another user's
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()


def _entries(path: Path, file: BinaryIO) -> dict[str, TensorEntry]:
    size = os.fstat(file.fileno()).st_size
    header_bytes = int.from_bytes(file.read(8), "little")
    if not 2 <= header_bytes <= min(size - 8, _MAX_HEADER_BYTES):
        raise ValueError(f"a table of {header_bytes} bytes in a file of {size}")
    table = json.loads(file.read(header_bytes))
    data = 8 + header_bytes
    return {name: _entry(path, name, row, data, size) for name, row in table.items() if name != _METADATA}


def _entry(path: Path, name: str, row: Mapping[str, Any], data: int, size: int) -> TensorEntry:
    start, end = row["data_offsets"]
    shape, dtype = tuple(row["shape"]), row["dtype"]
    if not all(isinstance(n, int) and n >= 0 for n in (start, end, *shape)) or not start <= end <= size - data:
        raise ValueError(f"{name} at bytes {start} to {end} of {size - data}")
    if dtype in DTYPES and end - start != math.prod(shape) * DTYPES[dtype].itemsize:
        raise ValueError(f"{name} of shape {shape} in {end - start} bytes")
    return TensorEntry(file=path, name=name, dtype=dtype, shape=shape, start=data + start, num_bytes=end - start)
