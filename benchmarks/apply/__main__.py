"""`make bench-apply`: from `kubectl apply` to the first step by phase, beside `shardwise run` of the same file.

Prints a table and keeps the figures in runs/bench-apply.json; with --write, it goes into docs/performance.md.
"""

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from benchmarks import document
from benchmarks.apply import page, paths
from benchmarks.apply.stage import stage
from benchmarks.command import serve
from benchmarks.machine import describe
from benchmarks.turns import ROOT, Spread
from rich.console import Console
from tests.cluster.commands import ClusterError, say

_RESULTS = ROOT / "runs" / "bench-apply.json"


def bench(
    *,
    rounds: Annotated[int, typer.Option(min=1, help="How often each way is measured.")] = 3,
    write: Annotated[bool, typer.Option("--write", help="Write the section of docs/performance.md.")] = False,
) -> None:
    """Measure both ways, each cold and then again, in turns: about 2 minutes a round. The cluster stays up."""
    machine = describe()
    with stage() as made:
        runs = []
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            runs.append(paths.in_pods(made) | paths.by_command())
    figures = {way: _spreads([run[way] for run in runs]) for way in runs[0]}
    results: dict[str, Any] = {"machine": machine, "rounds": rounds, "ways": figures}
    _RESULTS.parent.mkdir(exist_ok=True)
    _RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    table = page.table(results)
    Console().print(table.rich(), "")
    if write:
        document.write([table])


def _spreads(runs: list[paths.Phases]) -> dict[str, Any]:
    return {phase: asdict(Spread.of([run[phase] for run in runs])) for phase in runs[0]}


if __name__ == "__main__":
    serve(bench, example="make bench-apply ARGS='--rounds 1'", error=ClusterError)
