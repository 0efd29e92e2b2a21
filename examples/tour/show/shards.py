"""Who holds which part of an array: as a table, and as a drawing."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import jax
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from show.tables import table

Block = tuple[tuple[int, int], ...]
"""(first, one after the last) of each dimension."""


def held(**arrays: jax.Array) -> None:
    """Print, for each named array, its shape, the shape of one shard, how it is split, and the bytes on each device."""
    rows = []
    for name, array in arrays.items():
        shard = array.addressable_shards[0].data
        spec = getattr(array.sharding, "spec", "one device")
        rows.append((name, tuple(array.shape), tuple(shard.shape), spec, f"{shard.nbytes:,}"))
    table("What each device holds", ("array", "shape", "of it here", "split as", "bytes here"), rows)


def draw(**arrays: jax.Array) -> Figure:
    """A drawing of matrices, side by side: each block in the colour of the first device that holds it, dark if all do.

    Args:
        arrays: By name, of one or two dimensions; a vector is drawn as a column.
    """
    figure = Figure(figsize=(3.0 * len(arrays), 3.2), layout="constrained")
    for place, (name, array) in enumerate(arrays.items()):
        axes = figure.add_subplot(1, len(arrays), place + 1)
        _draw(axes, array)
        axes.set_title(f"{name} {tuple(array.shape)}", fontsize=10)
    return figure


def _draw(axes: Axes, array: jax.Array) -> None:
    rows, columns = (*array.shape, 1)[:2]
    for block, devices in _blocks(array).items():
        (top, bottom), (left, right) = (*block, (0, columns))[:2]
        everywhere = len(devices) == len(array.sharding.device_set) > 1
        colour = "0.25" if everywhere else colormaps["tab10"](min(devices) % 10)
        axes.add_patch(Rectangle((left, top), right - left, bottom - top, facecolor=colour, edgecolor="white", lw=1.5))
        axes.text((left + right) / 2, (top + bottom) / 2, _words(devices), ha="center", va="center", color="white")
    axes.set(xlim=(0, columns), ylim=(rows, 0), xticks=[], yticks=[], aspect="auto")


def _blocks(array: jax.Array) -> dict[Block, list[int]]:
    blocks: defaultdict[Block, list[int]] = defaultdict(list)
    device: Any
    for device, index in array.sharding.devices_indices_map(array.shape).items():
        block = tuple(part.indices(size)[:2] for part, size in zip(index or (), array.shape, strict=True))
        blocks[block].append(device.id)
    return dict(blocks)


def _words(devices: Sequence[int]) -> str:
    """The devices' numbers, "0-7" where they are in a row."""
    if len(devices) > 2 and list(devices) == list(range(devices[0], devices[-1] + 1)):
        return f"{devices[0]}-{devices[-1]}"
    return ", ".join(map(str, devices))
