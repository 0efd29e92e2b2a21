"""From the command to the first step: `shardwise run` as a person starts it, with an empty cache and with a warm one.

Called by `benchmarks.main`. The phases are what the run itself wrote into summary.json; the total is what a clock
outside saw, until the first step's line stood in metrics.jsonl. Levanter's worker does its imports, its state and its
first step.
"""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.machine import Pythons
from benchmarks.sizes import Case
from benchmarks.turns import ROOT, Spread, Worker, WorkerError

STEPS = 3
WITHIN_SECONDS = 300
TEXT = ROOT / "LICENSE"
COLD, WARM = "cold", "warm"
SHOWN = ("interpreter", "imports", "data", "restore", "init", "compile")
Report = Callable[[str], None]
Phases = dict[str, float]


def measure(case: Case, pythons: Pythons, *, rounds: int, deadline: float, report: Report) -> dict[str, Any]:
    """{"rounds", "Shardwise": {"cold" | "warm": {phase: spread}}, "Levanter": the same}."""
    runs: list[dict[str, dict[str, Phases]]] = []
    longest = 0.0
    while len(runs) < rounds and (not runs or time.monotonic() + longest < deadline):
        began = time.monotonic()
        report(f"start: round {len(runs) + 1}")
        with tempfile.TemporaryDirectory(prefix="shardwise-bench-") as folder:
            runs.append(_round(case, pythons, Path(folder)))
        longest = max(longest, time.monotonic() - began)
    return {"rounds": len(runs), "case": case.name} | {
        peer: {when: _spreads([run[peer][when] for run in runs]) for when in (COLD, WARM)} for peer in runs[0]
    }


def _round(case: Case, pythons: Pythons, folder: Path) -> dict[str, dict[str, Phases]]:
    own = {when: _run(case, pythons, folder, when) for when in (COLD, WARM)}
    return {"Shardwise": own, "Levanter": {when: _levanter(case, pythons, folder) for when in (COLD, WARM)}}


def _run(case: Case, pythons: Pythons, folder: Path, name: str) -> Phases:
    """One `shardwise run` in a new directory, sharing the cache with the others of its round."""
    job, directory = folder / "job.yaml", folder / name
    job.write_text(_job(case), encoding="utf-8")
    command = [pythons.own, "-m", "shardwise.cli.app", "run", str(job), "--dir", str(directory)]
    environment = {**os.environ, "SHARDWISE_CACHE": str(folder / "cache")}
    began = time.perf_counter()
    with (
        (folder / f"{name}.log").open("w+b") as log,
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log) as process,
    ):
        first = _first_step(directory / "metrics.jsonl", process, began + WITHIN_SECONDS)
        total = time.perf_counter() - began
        if first is None or process.wait(WITHIN_SECONDS):
            process.kill()
            said = (folder / f"{name}.log").read_text(errors="replace")[-4000:]
            raise WorkerError(f"{' '.join(command)} did not complete:\n{said}")
    phases: Phases = json.loads((directory / "summary.json").read_text(encoding="utf-8"))["phases"]
    shown: Phases = {phase: phases[phase] for phase in SHOWN if phase in phases} | {"step": first}
    return {**shown, "other": total - sum(shown.values()), "total": total}


def _first_step(metrics: Path, process: subprocess.Popen[bytes], until: float) -> float | None:
    """Seconds of the first step by its own account, as soon as its line is there; None if the process ends first."""
    while time.perf_counter() < until:
        ended = process.poll() is not None
        lines = metrics.read_text(encoding="utf-8").splitlines(keepends=True) if metrics.exists() else []
        for record in (json.loads(line) for line in lines if line.endswith("\n")):
            if "event" not in record:
                return float(record["stepSeconds"])
        if ended:
            return None
        time.sleep(0.005)
    return None


def _levanter(case: Case, pythons: Pythons, folder: Path) -> Phases:
    """Levanter's phases, with JAX's own compilation cache, which is what it has."""
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "jax"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    with Worker(pythons.peers, "levanter_step", case.dumps(), environment=cache) as worker:
        phases: Phases = worker.facts["seconds"]
    return {**phases, "total": sum(phases.values())}


def _spreads(runs: Sequence[Phases]) -> dict[str, Any]:
    return {phase: asdict(Spread.of([run[phase] for run in runs])) for phase in runs[0]}


def _job(case: Case) -> str:
    size = case.size
    return f"""apiVersion: shardwise.dev/v1alpha1
kind: TrainingJob
metadata: {{name: bench}}
spec:
  hardware: {{accelerator: cpu-sim, topology: 1x{case.num_devices}}}
  training:
    model:
      layers: {size.layers}
      heads: {size.heads}
      embed: {size.embed}
      seqLen: {size.seq_len}
      vocabSize: {size.vocab}
    data: {{train: [{{name: text, paths: ["{TEXT}"]}}], tokenizer: byte}}
    mesh: {{tensor: {case.tensor}}}
    batch: {{sequences: {size.sequences}}}
    optimizer: {{name: adamw, learningRate: 3e-4}}
    steps: {STEPS}
"""
