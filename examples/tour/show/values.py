"""What numbers each device holds, written into its blocks."""

from collections.abc import Callable, Mapping

import jax
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle


def draw_values(arrays: Mapping[str, jax.Array], colour: Callable[[str, float], str]) -> Figure:
    """A drawing of small matrices, one below the other: a column of it is a device, a cell a number that it holds.

    Args:
        arrays: By name, each of two dimensions and on the same devices.
        colour: Of a cell, from the array's name and the number.
    """
    devices = next(iter(arrays.values())).addressable_shards
    widest = max(array.addressable_shards[0].data.shape[1] for array in arrays.values())
    heights = [array.addressable_shards[0].data.shape[0] + 0.6 for array in arrays.values()]
    figure = Figure(figsize=(8.4, 0.46 * sum(heights)), layout="constrained")
    lines = figure.subplots(len(arrays), len(devices), height_ratios=heights, squeeze=False)
    for line, (name, array) in zip(lines, arrays.items(), strict=True):
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=10)
        for axes, shard in zip(line, array.addressable_shards, strict=True):
            block = np.asarray(shard.data)
            for (row, column), value in np.ndenumerate(block):
                axes.add_patch(Rectangle((column, row), 1, 1, facecolor=colour(name, value), edgecolor="white"))
                axes.text(column + 0.5, row + 0.5, f"{value:g}", ha="center", va="center", color="white", fontsize=9)
            axes.set(xlim=(0, widest), ylim=(block.shape[0], 0), xticks=[], yticks=[], frame_on=False)
    for axes, shard in zip(lines[0], devices, strict=True):
        axes.set_title(f"device {shard.device.id}", fontsize=10)
    return figure
