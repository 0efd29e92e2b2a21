"""Saving and restoring 1.43 GiB over 8 devices: seconds, memory and files for every saver; and memory over 100 saves.

Called by `benchmarks.main`. Every saver takes its turn in each round, in shuffled order, in processes of its own; what
is quoted is the ratio to the raw file of the same round.
"""

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.machine import Pythons
from benchmarks.turns import ROOT, Spread, Worker

RAW, SHARDWISE, TENSORSTORE, ORBAX = "raw", "Shardwise", "TensorStore", "Orbax"
SAVERS = (RAW, SHARDWISE, TENSORSTORE, ORBAX)
SAVED_ON, OTHER = ("4", "2"), ("2", "4")
TIMES = ("blocked_seconds", "durable_seconds", "restore_seconds", "other_mesh_seconds")
Row = dict[str, float]
Report = Callable[[str], None]


def measure(
    pythons: Pythons, *, rounds: int, saves: int, deadline: float, report: Report, tree: str = "full"
) -> dict[str, Any]:
    """{"rounds", "savers": {saver: figures}, "soak"}.

    A round begins only if it would end before `deadline` (monotonic seconds), but one always runs.
    """
    ROOT.joinpath("runs").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "runs", prefix="bench-") as folder:
        report(f"checkpoint: {saves} saves in a row")
        soak = _soak(pythons, Path(folder), saves, "soak" if tree == "full" else tree)
        rows: list[dict[str, Row]] = []
        longest = 0.0
        while len(rows) < rounds and (not rows or time.monotonic() + longest < deadline):
            began = time.monotonic()
            report(f"checkpoint: round {len(rows) + 1}")
            rows.append(_round(pythons, Path(folder), len(rows), tree))
            longest = max(longest, time.monotonic() - began)
    return {"rounds": len(rows), "savers": {name: _figures(rows, name) for name in SAVERS}, "soak": soak}


def _round(pythons: Pythons, folder: Path, number: int, tree: str) -> dict[str, Row]:
    """Each saver once; the disk is empty when the next one begins."""
    order = list(SAVERS)
    random.Random(number).shuffle(order)  # noqa: S311  repeatable, not secret
    rows = {}
    for name in order:
        root = folder / name
        python = pythons.peers if name == ORBAX else pythons.own
        row = said(python, name, "save", tree, root, *SAVED_ON)
        for key, mesh in (("restore", SAVED_ON), ("other_mesh", OTHER)):
            restored = said(python, name, "restore", tree, root, *mesh)
            row |= {f"{key}_{what}": value for what, value in restored.items()}
        rows[name] = row
        shutil.rmtree(root)
    return rows


def said(
    python: str,
    name: str,
    verb: str,
    tree: str,
    root: str | Path,
    *rest: str,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What a saver's process measured, for as long as which it lives."""
    with Worker(python, "checkpoint", name, verb, tree, str(root), *rest, environment=environment) as worker:
        return worker.facts


def _figures(rows: Sequence[dict[str, Row]], name: str) -> dict[str, Any]:
    """Spreads of every figure, and the ratios of the times to the raw file's."""
    figures = {key: asdict(Spread.of([row[name][key] for row in rows])) for key in rows[0][name]}
    ratio = {key: asdict(Spread.of([row[name][key] / row[RAW][key] for row in rows])) for key in TIMES}
    return {**figures, "ratio": ratio}


def _soak(pythons: Pythons, folder: Path, saves: int, tree: str) -> dict[str, float]:
    """Resident memory after the fifth save and after the last."""
    figures = said(pythons.own, SHARDWISE, "soak", tree, folder / "soak", *SAVED_ON, str(saves))
    shutil.rmtree(folder / "soak")
    resident = figures["resident_bytes"]
    early = resident[min(4, saves - 1)]
    return {"saves": saves, "tree_bytes": figures["tree_bytes"], "early_bytes": early, "last_bytes": resident[-1]}
