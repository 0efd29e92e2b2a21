"""docs/faults.md, from the results of `__main__.py` and the page as it was. It measures nothing."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from benchmarks import notes
from benchmarks.faults.outcome import Place, Row
from benchmarks.turns import ROOT

DOCUMENT = ROOT / "docs" / "faults.md"
COLUMNS = (
    "fault",
    "phase",
    "detected after s",
    "cause",
    "charged",
    "steps lost",
    "next step after s",
    "bits equal",
    "note",
)
_EARLIER = "rows are of earlier runs:"
_FAILED, _NOT_SHOWN = "**failed**:", "could not be shown:"
Results = Mapping[str, Mapping[str, Any]]
"""By `key`: "outcome", as a dict, or in words what has "failed", or why it is "notShown"; "machine" and "seconds"."""

_OPENING = """# Faults

What was put to runs and jobs, in which phase, and what became of them. `make chaos` (`benchmarks/faults/`) measures
it, `make chaos ARGS="--only 'trainer killed' --place local"` a part of it, and `make chaos ARGS=--write` writes this
page. [Many hosts](many-hosts.md#causes-and-budgets) says what causes and budgets are.
"""
_LEGEND = """
Detected: from the fault to the first record of it. Cause: as status and events name it. Charged: restarts, by budget.
Steps lost: taken twice. Next step: from the fault to the next completed step, which may be the one under way where
nothing was started again; then the same by phase. Bits equal: whether the state at the end is that of the run without
the fault. A dash: there was nothing to measure, and the note says why.
"""
_PLACES = {
    "local": "On one machine: `shardwise run` on simulated hosts",
    "cluster": "In a cluster: a job in pods",
    "control plane": "The operator, and what it speaks to",
}


def key(row: Row, phase: str) -> str:
    """What a result is kept under."""
    return f"{row.place}: {row.fault}, {phase}"


def text(rows: Iterable[Row], results: Results, not_shown: Iterable[str], before: str = "") -> str:
    """The page; what has no result keeps its line of the page `before`, and is left out where it had none."""
    rows, kept = list(rows), _kept(before)
    tables = [line for place in get_args(Place) for line in _table(place, rows, results, kept[place])]
    gaps = ["## What could not be shown\n", *(f"- {one}" for one in not_shown)]
    return "\n".join([_OPENING, f"{notes.paragraph(_LEGEND)}\n", *tables, *gaps, ""])


def measured(page: str, rows: Iterable[Row]) -> set[str]:
    """The keys of the rows of which a page has a good result."""
    kept = {place: table.lines for place, table in _kept(page).items()}
    lines = {key(row, phase): kept[row.place].get(_name(row, phase), _FAILED) for row in rows for phase in row.phases}
    return {one for one, line in lines.items() if _FAILED not in line and _NOT_SHOWN not in line}


def said(result: Mapping[str, Any]) -> str:
    """A result in one line, for the terminal."""
    cells = ", ".join(": ".join(pair) for pair in zip(COLUMNS[2:], _cells(result), strict=True))
    return f"{cells} ({result['seconds']:.0f} s)"


def _table(place: Place, rows: Sequence[Row], results: Results, kept: "_Kept") -> Iterator[str]:
    fresh, old, lines = [], 0, []
    here = [(row, phase) for row in rows if row.place == place for phase in row.phases]
    for row, phase in here:
        name = _name(row, phase)
        if (result := results.get(key(row, phase))) is not None:
            fresh.append(result)
            lines.append(f"{name} {' | '.join(_cells(result))} |")
        elif name in kept.lines:
            old += 1
            lines.append(kept.lines[name])
    if lines:
        yield f"## {_PLACES[place]}\n"
        yield from (f"| {' | '.join(line)} |" for line in (COLUMNS, ["---"] * len(COLUMNS)))
        yield from lines
        if fresh:
            yield f"\n{_machines(fresh)}"
        if old:
            # No more than were old before: what the page says of its own last runs is of rows that are measured anew.
            told = kept.earlier if old <= kept.num_earlier else [*kept.measured, *kept.earlier]
            yield f"\n{old} {_EARLIER} {' '.join(told)}"
        yield ""


def _name(row: Row, phase: str) -> str:
    return f"| {row.fault} | {phase} |"


@dataclass
class _Kept:
    """Of a table of the page as it was: its lines by fault and phase, and how they were measured."""

    lines: dict[str, str] = field(default_factory=dict)
    measured: list[str] = field(default_factory=list)
    earlier: list[str] = field(default_factory=list)
    num_earlier: int = 0


def _kept(page: str) -> dict[str, _Kept]:
    """The tables of a page, by place."""
    places: dict[str, _Kept] = {place: _Kept() for place in _PLACES}
    titles = {f"## {title}": places[place] for place, title in _PLACES.items()}
    here = _Kept()
    for line in page.splitlines():
        here = titles.get(line, here)
        if name := re.match(r"\| [^|]+ \| [^|]+ \|", line):
            here.lines[name[0]] = line
        elif earlier := re.match(rf"(\d+) {_EARLIER} (.*)", line):
            here.num_earlier, here.earlier = int(earlier[1]), [earlier[2]]
        elif re.match(r"\d+ runs, ", line):
            here.measured.append(line)
    return places


def _cells(result: Mapping[str, Any]) -> list[str]:
    if "outcome" in result:
        return _outcome(result["outcome"])
    words = f"{_FAILED} {result['failed']}" if "failed" in result else f"{_NOT_SHOWN} {result['notShown']}"
    return [*["-"] * 5, "**no**" if "failed" in result else "-", _plain(words)]


def _outcome(outcome: Mapping[str, Any]) -> list[str]:
    detected, phases = outcome["detected_seconds"], outcome["next_step_seconds"]
    parts = " + ".join(f"{name} {seconds:.1f}" for name, seconds in phases.items())
    cells = [
        "-" if detected is None else f"{detected:.2f}",
        outcome["cause"],
        outcome["charged"],
        str(outcome["steps_lost"]),
        f"{sum(phases.values()):.1f}{f' = {parts}' if len(phases) > 1 else ''}" if phases else "-",
        outcome["equal"],
        outcome["note"],
    ]
    return [_plain(cell) or "-" for cell in cells]


def _plain(cell: str) -> str:
    """Without what would end a cell of a table."""
    return " ".join(cell.replace("|", "/").split())


def _machines(results: Sequence[Mapping[str, Any]]) -> str:
    machines = [result["machine"] for result in results]
    days, loads = sorted({machine["date"] for machine in machines}), sorted(machine["load"] for machine in machines)
    one = machines[-1]
    return (
        f"{len(results)} runs, {sum(result['seconds'] for result in results) / 60:.0f} minutes, on "
        f"{' and '.join(dict.fromkeys((days[0], days[-1])))}: {one['cores']} cores ({one['processor']}), "
        f"{one['memory_gib']:.0f} GiB, load at the start of a run {loads[0]:.1f} to {loads[-1]:.1f}; "
        f"Python {one['python']}, JAX {one['jax']}."
    )
