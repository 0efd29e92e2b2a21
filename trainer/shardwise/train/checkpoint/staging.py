"""The host copy of a state: the only part of a save that training waits for.

It takes from the layout which values go into which file, and writes nothing.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import jax
import numpy as np

from shardwise.train.checkpoint import layout


@dataclass(frozen=True, kw_only=True)
class Part:
    """One file of one array: its box, and its values as unsigned integers of the same size."""

    path: str
    box: layout.Region
    bits: np.ndarray


def stage(
    arrays: Mapping[str, jax.Array], layouts: Mapping[str, layout.Layout], copiers: ThreadPoolExecutor
) -> deque[Part]:
    """Return host copies of every file's values, taken by several threads: one does not fill the memory's bandwidth."""
    parts: deque[Part] = deque()
    copies = []
    for path, array in arrays.items():
        bits = np.dtype(f"u{array.dtype.itemsize}")
        mine = {
            cell: Part(path=path, box=box, bits=np.empty(box.size, bits))
            for cell, process in layouts[path].writers.items()
            if process == jax.process_index()
            for box in [layout.cell_region(cell, layouts[path].file_shape)]
        }
        parts.extend(mine.values())
        copies += [
            copiers.submit(_copy_shard, box, data, targets)
            for box, data in _unique_shards(array)
            if (targets := [mine[c] for c in layout.cells_over(box, layouts[path].file_shape) if c in mine])
        ]
    for copy in copies:
        copy.result()
    return parts


def _unique_shards(array: jax.Array) -> Iterator[tuple[layout.Region, jax.Array]]:
    """Yield each distinct box of the array that this process holds, once, and its values on one of the devices."""
    seen = set()
    for shard in array.addressable_shards:
        box = layout.region(array.shape, shard.index)
        if box not in seen:
            seen.add(box)
            if shard.device.platform != "cpu":
                shard.data.copy_to_host_async()
            yield box, shard.data


def _copy_shard(box: layout.Region, data: jax.Array, targets: list[Part]) -> None:
    for part in targets:
        overlap = box.overlap(part.box)
        assert overlap is not None
        np.copyto(part.bits[overlap.within(part.box)], np.asarray(data).view(part.bits.dtype)[overlap.within(box)])
