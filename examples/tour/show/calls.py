"""Which function made the bytes that are alive: the device memory profile as a drawn graph of calls."""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from show.profile import Allocation, allocations

_MODULE = "<module>"


@dataclass(kw_only=True, slots=True)
class CallGraph:
    """The functions of a script that made living buffers, and who called whom, over all devices."""

    own_bytes: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """By function: what its own lines made."""
    below_bytes: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """By function: what it and all that it called made."""
    edge_bytes: defaultdict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    """By (caller, called)."""
    depth: dict[str, int] = field(default_factory=dict)
    """By function: the most calls between it and the script."""


def call_graph() -> CallGraph:
    """The graph of all living buffers of this process."""
    graph = CallGraph()
    for allocation in allocations():
        path = _own_calls(allocation)
        graph.own_bytes[path[-1]] += allocation.num_bytes
        for depth, name in enumerate(path):
            graph.depth[name] = max(depth, graph.depth.get(name, 0))
        for name in set(path):
            graph.below_bytes[name] += allocation.num_bytes
        for edge in set(pairwise(path)):
            graph.edge_bytes[edge] += allocation.num_bytes
    return graph


def draw_calls(graph: CallGraph) -> Figure:
    """The graph, the script at the top; a box is as dark as its own part, an arrow as wide as what came through it."""
    rows = max(graph.depth.values()) + 1
    figure = Figure(figsize=(6.0, 1.15 * rows + 0.2), layout="constrained")
    axes = figure.add_subplot()
    total = sum(graph.own_bytes.values())
    places = _places(graph)
    for (caller, called), num_bytes in graph.edge_bytes.items():
        _arrow(axes, places[caller], places[called], num_bytes / total, f"{num_bytes / 2**20:.1f} MiB")
    for name, place in places.items():
        own, below = graph.own_bytes[name], graph.below_bytes[name]
        words = f"{name}\nmade itself {own / 2**20:.1f} MiB\nwith calls {below / 2**20:.1f} MiB"
        colour = to_rgba("tab:red", 0.08 + 0.8 * own / total)
        box = {"boxstyle": "round,pad=0.5", "facecolor": "white", "edgecolor": "0.3"}
        axes.text(*place, words, ha="center", va="center", fontsize=8.5, bbox=box, zorder=3)
        axes.text(*place, words, ha="center", va="center", fontsize=8.5, bbox={**box, "facecolor": colour}, zorder=4)
    axes.set(xlim=(0, 1), ylim=(rows - 0.45, -0.55))
    axes.axis("off")
    return figure


def _own_calls(allocation: Allocation) -> tuple[str, ...]:
    """The script's own functions, the outermost first: from its module on, without those of installed packages."""
    names = []
    for name, file in allocation.stack:
        if "site-packages" not in file:
            names.append(name)
        if name == _MODULE:
            break
    return tuple(reversed(names)) or (_MODULE,)


def _places(graph: CallGraph) -> dict[str, tuple[float, float]]:
    """Where each function's box is: rows by depth, one that is alone in its row under those that call it."""
    rows: defaultdict[int, list[str]] = defaultdict(list)
    for name, depth in sorted(graph.depth.items()):
        rows[depth].append(name)
    places: dict[str, tuple[float, float]] = {}
    for depth, names in sorted(rows.items()):
        above = [places[caller][0] for caller, called in graph.edge_bytes if [called] == names and caller in places]
        for i, name in enumerate(names):
            places[name] = (sum(above) / len(above) if above else (i + 0.5) / len(names), depth)
    return places


def _arrow(axes: Axes, begin: tuple[float, float], end: tuple[float, float], share: float, words: str) -> None:
    (x0, y0), (x1, y1) = begin, end
    style = {"arrowstyle": "-|>", "linewidth": 0.8 + 5 * share, "color": "0.6", "mutation_scale": 14}
    axes.annotate("", xy=(x1, y1 - 0.3), xytext=(x0, y0 + 0.3), arrowprops=style, zorder=1)
    label = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
    axes.text((x0 + x1) / 2, (y0 + y1) / 2, words, fontsize=8, ha="center", va="center", bbox=label, zorder=2)
