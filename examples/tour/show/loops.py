"""What one call of a compiled program costs with its loops counted: a collective in a loop is sent in every round."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from show.collectives import Collective, on_line
from show.memory import compiled, temporaries
from show.tables import mib, table

_BEGINS = re.compile(r"^(?P<entry>ENTRY )?%(?P<name>\S+) \(.*\{$")
_CALLED = re.compile(r"(?:body|to_apply|calls|true_computation|false_computation)=%([\w.\-]+)")
_ROUNDS = re.compile(r'known_trip_count":\{"n":"(\d+)"')

Computation = str
"""The name of one in HLO: the program itself, the body of a loop, a called function."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What one call takes on each device."""

    collectives: tuple[tuple[int, Collective], ...]
    """(how often, which)."""
    temporary_bytes: int

    @property
    def sent_bytes(self) -> int:
        """The bytes that each device sends."""
        return sum(times * collective.sent_bytes for times, collective in self.collectives)

    @property
    def kinds(self) -> Counter[str]:
        """How many collectives of each kind run."""
        counted: Counter[str] = Counter()
        for times, collective in self.collectives:
            counted[collective.kind] += times
        return counted

    @property
    def largest_gather_bytes(self) -> int:
        """The largest result of an all-gather."""
        return max((one.result_bytes for _, one in self.collectives if one.kind == "all-gather"), default=0)


def cost(program: Any, *args: Any) -> Cost:
    """What a jitted or compiled function costs, for the shapes and shardings of `args`.

    A loop whose number of rounds XLA does not know counts once; a `scan` says its own.
    """
    inside: defaultdict[Computation, list[Collective]] = defaultdict(list)
    calls: defaultdict[Computation, list[tuple[Computation, int]]] = defaultdict(list)
    executable, here, main = compiled(program, *args), "", ""
    for line in executable.as_text().splitlines():
        if begins := _BEGINS.match(line):
            here = begins["name"]
            main = here if begins["entry"] else main
        if collective := on_line(line):
            inside[here].append(collective)
        rounds = _ROUNDS.search(line) if " while(" in line else None
        calls[here] += [(called, int(rounds[1]) if rounds else 1) for called in _CALLED.findall(line)]

    def walk(computation: Computation, times: int) -> list[tuple[int, Collective]]:
        found = [(times, collective) for collective in inside[computation]]
        return found + [one for called, rounds in calls[computation] for one in walk(called, times * rounds)]

    return Cost(collectives=tuple(walk(main, 1)), temporary_bytes=temporaries(executable))


def cost_table(title: str, costs: Mapping[str, Cost], **more: Mapping[str, object]) -> None:
    """Print what each program sends and needs, and how many all-reduces and all-gathers it runs.

    Args:
        title: Over the table.
        costs: By program, one row each.
        more: Columns to put first: by name, a value for each program.
    """
    columns = ("", *more, "sent MiB", "temporary MiB", "reduces", "gathers")
    rows = [
        (
            name,
            *(f"{column[name]:,}" if isinstance(column[name], int) else column[name] for column in more.values()),
            mib(made.sent_bytes),
            mib(made.temporary_bytes),
            made.kinds["all-reduce"],
            made.kinds["all-gather"],
        )
        for name, made in costs.items()
    ]
    table(title, columns, rows)


def cost_bars(costs: Mapping[str, Cost]) -> Figure:
    """What each program sends and needs, as bars side by side."""
    figure = Figure(figsize=(10, 0.8 + 0.33 * len(costs)), layout="constrained")
    sizes = {
        "MiB sent": [made.sent_bytes for made in costs.values()],
        "MiB of temporaries": [made.temporary_bytes for made in costs.values()],
    }
    for place, (words, values) in enumerate(sizes.items()):
        axes = figure.add_subplot(1, 2, place + 1, xlabel=words)
        bars = axes.barh(list(costs), [value / 2**20 for value in values], color=f"C{place}")
        axes.bar_label(bars, fmt="%.1f", padding=3, fontsize=9)
        axes.margins(x=0.14)
        axes.invert_yaxis()
        if place:
            axes.set_yticks([])
    return figure
