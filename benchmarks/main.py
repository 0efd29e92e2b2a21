"""`make bench`: Shardwise against a hand-written limit, Levanter, Orbax and the disk, in one run on this machine.

Prints tables and keeps the figures in runs/bench.json; with --write, they go into docs/performance.md.
"""

import json
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer
from benchmarks import bucket, checkpoint, document, generate, local_saves, recovery, start, step, tokenising
from benchmarks.command import serve
from benchmarks.machine import Pythons, describe
from benchmarks.pages import tables
from benchmarks.sizes import CASES, TINY, Case
from benchmarks.turns import ROOT, WorkerError
from rich.console import Console

RESULTS = ROOT / "runs" / "bench.json"
SOAK_SAVES = 100


class Part(StrEnum):
    """What can be measured alone."""

    STEP = "step"
    START = "start"
    CHECKPOINT = "checkpoint"
    BUCKET = "bucket"
    LOCAL = "local"
    RECOVERY = "recovery"
    TOKENIZE = "tokenize"
    GENERATE = "generate"


# Rounds, and the minutes after which no further round begins.
ROUNDS = {
    Part.STEP: 7,
    Part.START: 3,
    Part.CHECKPOINT: 3,
    Part.BUCKET: 3,
    Part.LOCAL: 3,
    Part.RECOVERY: 3,
    Part.TOKENIZE: 3,
    Part.GENERATE: 5,
}
MINUTES = {
    Part.STEP: 11.0,
    Part.START: 4.0,
    Part.CHECKPOINT: 8.0,
    Part.BUCKET: 9.0,
    Part.LOCAL: 6.0,
    Part.RECOVERY: 6.0,
    Part.TOKENIZE: 4.0,
    Part.GENERATE: 3.0,
}


def bench(
    *,
    only: Annotated[
        Part | None, typer.Option(help="Measure this part alone; the page keeps the figures of the others.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=2, help="Turns of every peer. [default: 7, 3, 3, 3, 3, 3, 3, 5]")
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Put the tables into docs/performance.md.")] = False,
) -> None:
    """Measure Shardwise against a hand-written limit, Levanter, Orbax and the disk; 50 minutes on two idle cores."""
    console, pythons = Console(), Pythons.found()
    results: dict[str, Any] = {}
    for part in [only] if only else Part:
        began, machine = time.monotonic(), describe()
        figures = _measure(part, pythons, rounds or ROUNDS[part], began + 60 * MINUTES[part], console)
        results[part] = {"machine": machine, "seconds": time.monotonic() - began, **figures}
        console.print(f"{part} took {timedelta(seconds=round(time.monotonic() - began))}\n")
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for table in tables(results):
        console.print(table.rich(), "")
    console.print(f"figures: {RESULTS.relative_to(ROOT)}")
    if write:
        document.write(tables(results))
        console.print(f"written: {document.DOCUMENT.relative_to(ROOT)}")


def _measure(part: Part, pythons: Pythons, rounds: int, deadline: float, console: Console) -> dict[str, Any]:
    def report(text: str) -> None:
        console.print(f"{time.strftime('%H:%M:%S')}  {text}", highlight=False)

    if part == Part.STEP:
        return {"cases": step.measure(CASES, pythons, rounds=rounds, deadline=deadline, report=report)}
    measures: Mapping[Part, Callable[..., dict[str, Any]]] = {
        Part.START: partial(start.measure, Case(size=TINY, data=4, tensor=2)),
        Part.CHECKPOINT: partial(checkpoint.measure, saves=SOAK_SAVES),
        Part.BUCKET: bucket.measure,
        Part.LOCAL: local_saves.measure,
        Part.RECOVERY: recovery.measure,
        Part.TOKENIZE: tokenising.measure,
        Part.GENERATE: generate.measure,
    }
    return measures[part](pythons, rounds=rounds, deadline=deadline, report=report)


if __name__ == "__main__":
    serve(bench, example="make bench ARGS='--only step --rounds 9 --write'", error=WorkerError)
