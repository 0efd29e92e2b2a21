"""`make chaos`: faults that are put to runs and jobs, and what became of each.

One fault in one phase is one run. Its result is kept in runs/chaos.json, beside those that were measured before, so
that a part can be measured again. With --write they take their rows' places in docs/faults.md.
"""

import json
import signal
import sys
import time
import traceback
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any

import typer
from benchmarks.command import serve
from benchmarks.faults import page
from benchmarks.faults.outcome import NotShownError, Outcome, Row
from benchmarks.faults.rows import NOT_SHOWN, ROWS
from benchmarks.machine import describe
from benchmarks.turns import ROOT

_RESULTS = ROOT / "runs" / "chaos.json"


class ChosenError(Exception):
    """The words of the command line choose nothing."""


def chaos(
    *,
    only: Annotated[list[str] | None, typer.Option(help="A fault, as the table names it; may be given again.")] = None,
    place: Annotated[list[str] | None, typer.Option(help="local, cluster or control plane.")] = None,
    phase: Annotated[list[str] | None, typer.Option(help="A phase of the faults that have it.")] = None,
    missing: Annotated[bool, typer.Option("--missing", help="Only what neither runs/ nor the page has yet.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Write docs/faults.md.")] = False,
) -> None:
    """Put each fault to a run in each of its phases; a promise that is broken is told, and ends it badly at the end."""
    results, there = _kept(), page.measured(page.DOCUMENT.read_text(encoding="utf-8"), ROWS) if missing else set()
    runs = [
        (row, one)
        for row in ROWS
        for one in row.phases
        if _fits(row.fault, only) and _fits(row.place, place) and _fits(one, phase)
        if not (missing and (page.key(row, one) in there or "outcome" in results.get(page.key(row, one), {})))
    ]
    if not runs and not write:
        raise ChosenError("no row of the table has this fault, place and phase, or all have been measured")
    failed = 0
    for number, (row, one) in enumerate(runs, 1):
        result = _measured(row, one)
        results = _kept() | {page.key(row, one): result}
        _RESULTS.parent.mkdir(exist_ok=True)
        _RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        failed += "failed" in result
        print(f"[{number}/{len(runs)}] {page.key(row, one)}: {page.said(result)}", flush=True)
    if write:
        before = page.DOCUMENT.read_text(encoding="utf-8")
        page.DOCUMENT.write_text(page.text(ROWS, results, NOT_SHOWN, before), encoding="utf-8")
    if failed:
        raise SystemExit(f"{failed} of {len(runs)} faults did not end as they must")


def _kept() -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(_RESULTS.read_text(encoding="utf-8")) if _RESULTS.exists() else {}
    return kept


def _fits(name: str, wanted: Iterable[str] | None) -> bool:
    return not wanted or name in wanted


def _measured(row: Row, phase: str) -> dict[str, Any]:
    machine, began = describe(), time.monotonic()
    try:
        outcome: Outcome = row.measure(phase)
    except NotShownError as error:
        return {"notShown": str(error), "machine": machine, "seconds": time.monotonic() - began}
    except Exception as error:  # noqa: BLE001  whatever it is, the other rows are measured, and this one is shown so
        traceback.print_exc()
        words = str(error).strip().partition("\n")[0] or type(error).__name__
        return {"failed": words, "machine": machine, "seconds": time.monotonic() - began}
    return {"outcome": asdict(outcome), "machine": machine, "seconds": time.monotonic() - began}


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started and mounted is tidied up
    serve(chaos, example="make chaos ARGS=\"--only 'trainer killed' --place local --write\"", error=ChosenError)
