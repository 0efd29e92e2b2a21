"""`make bench-gang`: what a leader has to do with 64, 256 and 1,024 hosts, and what Ray takes on a few real ones.

Prints tables and keeps the figures in runs/bench-leader.json; with --write, they go into docs/performance.md.
"""

import json
from typing import Annotated, Any

import typer
from benchmarks import document
from benchmarks.command import serve
from benchmarks.gang import page, stage
from benchmarks.machine import describe
from benchmarks.turns import ROOT, WorkerError
from rich.console import Console

HOSTS, RAY = (64, 256, 1024), (2, 4, 8)
_RESULTS = ROOT / "runs" / "bench-leader.json"


def bench(
    *,
    hosts: Annotated[
        list[int] | None, typer.Option(min=2, help="Hosts of a gang of stand-ins. [default: 64, 256, 1024]")
    ] = None,
    ray: Annotated[
        list[int] | None, typer.Option(min=2, help="Hosts of real Ray, all on this machine. [default: 2, 4, 8]")
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Write the sections of docs/performance.md.")] = False,
) -> None:
    """Measure gangs of many hosts, of which the leader alone is real; 4 minutes."""
    console, results = Console(), dict[str, Any]({"machine": describe(), "gangs": [], "ray": []})
    for kind, sizes, measure in (("gangs", hosts or HOSTS, stage.measure), ("ray", ray or RAY, stage.ray)):
        for size in sizes:
            console.print(f"{kind}: {size} hosts", highlight=False)
            results[kind].append(measure(size))
    _RESULTS.parent.mkdir(exist_ok=True)
    _RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for table in page.tables(results):
        console.print(table.rich(), "")
    if write:
        document.write(page.tables(results))


if __name__ == "__main__":
    serve(bench, example="make bench-gang ARGS='--hosts 1024 --ray 8 --write'", error=WorkerError)
