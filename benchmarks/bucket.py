"""Saving 1.43 GiB into a bucket and restoring it, beside the bytes alone through a client, and plain TensorStore.

Called by `benchmarks.main`. The bucket is a real S3 server of this machine, which checks signatures and keeps objects
as files; it shares the cores with whoever talks to it. Savers take turns as in `checkpoint`.
"""

import random
import shutil
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.checkpoint import OTHER, SAVED_ON, SHARDWISE, TENSORSTORE, Report, Row, said
from benchmarks.machine import Pythons
from benchmarks.turns import ROOT, Spread
from tests.kubernetes.bucket import Bucket, serving

CLIENT = "client"
SAVERS = (CLIENT, SHARDWISE, TENSORSTORE)
TIMES = ("durable_seconds", "restore_seconds", "other_mesh_seconds")


def measure(pythons: Pythons, *, rounds: int, deadline: float, report: Report, tree: str = "full") -> dict[str, Any]:
    """{"rounds", "savers": {saver: figures, "ratio" to the client's times}}.

    A round begins only if it would end before `deadline` (monotonic seconds), but one always runs.
    """
    ROOT.joinpath("runs").mkdir(exist_ok=True)
    rows: list[dict[str, Row]] = []
    longest = 0.0
    with (
        tempfile.TemporaryDirectory(dir=ROOT / "runs", prefix="bench-") as folder,
        serving("127.0.0.1", Path(folder)) as bucket,
    ):
        while len(rows) < rounds and (not rows or time.monotonic() + longest < deadline):
            began = time.monotonic()
            report(f"bucket: round {len(rows) + 1}")
            rows.append(_round(pythons, bucket, len(rows), tree))
            longest = max(longest, time.monotonic() - began)
    return {"rounds": len(rows), "savers": {name: _figures(rows, name) for name in SAVERS}}


def _round(pythons: Pythons, bucket: Bucket, number: int, tree: str) -> dict[str, Row]:
    """Each saver once; the bucket is empty when the next one begins."""
    order = list(SAVERS)
    random.Random(number).shuffle(order)  # noqa: S311  repeatable, not secret
    rows = {}
    for name in order:
        python = pythons.peers if name == CLIENT else pythons.own
        prefix = f"{name}-{number}"  # never one again: the server remembers objects whose files were deleted
        root = f"s3://{bucket.name}/{prefix}"
        row = said(python, name, "save", tree, root, *SAVED_ON, environment=bucket.environment)
        for key, mesh in (("restore", SAVED_ON), ("other_mesh", OTHER)):
            restored = said(python, name, "restore", tree, root, *mesh, environment=bucket.environment)
            row |= {f"{key}_{what}": value for what, value in restored.items()}
        rows[name] = row
        shutil.rmtree(bucket.folder / prefix)
    return rows


def _figures(rows: list[dict[str, Row]], name: str) -> dict[str, Any]:
    figures = {key: asdict(Spread.of([row[name][key] for row in rows])) for key in rows[0][name]}
    ratio = {key: asdict(Spread.of([row[name][key] / row[CLIENT][key] for row in rows])) for key in TIMES}
    return {**figures, "ratio": ratio}
