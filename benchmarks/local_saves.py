"""What a local checkpoint costs beside one on the disk: saves of the same run, of the same state, on two hosts.

Called by `benchmarks.main`. The seconds are the run's own, in metrics.jsonl: how long training waited, and until the
save counted. A restore is that of a run that is killed and goes on from either, by the trainer's own account.
"""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.machine import Pythons
from benchmarks.turns import ROOT, Spread, WorkerError

LOCAL, DISK = "on the hosts, two copies", "on the disk"
BLOCKED, WHOLE, RESTORE = "blocked", "whole", "restore"
WITHIN_SECONDS = 600
_EVERY_STEPS = 4
Report = Callable[[str], None]


def measure(pythons: Pythons, *, rounds: int, deadline: float, report: Report) -> dict[str, Any]:
    """Return {"rounds", "tree_bytes", "seconds": {LOCAL | DISK: {BLOCKED | WHOLE | RESTORE: spread}}}."""
    runs: list[dict[str, dict[str, float]]] = []
    tree_bytes = longest = 0.0
    with tempfile.TemporaryDirectory(prefix="shardwise-bench-") as folder:
        bench = _Bench(pythons, Path(folder))
        while len(runs) < rounds and (not runs or time.monotonic() + longest < deadline):
            began = time.monotonic()
            report(f"local saves: round {len(runs) + 1}")
            runs.append({what: bench.run(f"{len(runs)}-{number}", what) for number, what in enumerate((LOCAL, DISK))})
            tree_bytes = bench.tree_bytes
            longest = max(longest, time.monotonic() - began)
    return {
        "rounds": len(runs),
        "tree_bytes": tree_bytes,
        "seconds": {
            what: {key: asdict(Spread.of([one[what][key] for one in runs])) for key in (BLOCKED, WHOLE, RESTORE)}
            for what in (LOCAL, DISK)
        },
    }


class _Bench:
    """Runs of one job that share a cache; `tree_bytes` is the size of its state."""

    def __init__(self, pythons: Pythons, folder: Path) -> None:
        self._python, self._folder, self.tree_bytes = pythons.own, folder, 0.0
        self._environment = {**os.environ, "SHARDWISE_CACHE": str(folder / "cache")}
        (folder / "job.yaml").write_text(_JOB, encoding="utf-8")

    def run(self, name: str, what: str) -> dict[str, float]:
        """Save twice, kill a trainer, and go on from the second save; seconds of that save and of the restore."""
        often = f"{{everySteps: {_EVERY_STEPS}}}"
        checkpoint = f"{{everySteps: 1000, local: {often}}}" if what == LOCAL else often
        words = ("run", "job.yaml", "--dir", name, f"--set=training.checkpoint={checkpoint}")
        directory = self._folder / name
        with (
            (self._folder / f"{name}.log").open("ab") as log,
            subprocess.Popen(
                [self._python, "-m", "shardwise.cli.app", *words],
                cwd=self._folder,
                env=self._environment,
                stdout=log,
                stderr=log,
            ) as process,
        ):
            try:
                event, key = ("savedLocally", "seconds") if what == LOCAL else ("saved", "durableSeconds")
                saved = self._until(process, directory, event, _EVERY_STEPS * 2)
                status = self._status(name)
                os.kill(status["hosts"][1]["trainerPid"], signal.SIGKILL)
                self._until(process, directory, "restored", saved["step"])
                phases = self._status(name)["hosts"][1]["phases"]
                self.tree_bytes = sum(row["params_bytes"] + row["optimizer_bytes"] for row in _memory(directory))
            finally:
                process.kill()
                process.wait()
        return {BLOCKED: saved["blockedSeconds"], WHOLE: saved[key], RESTORE: phases["restore"]}

    def _until(self, process: "subprocess.Popen[bytes]", directory: Path, event: str, step: int) -> dict[str, Any]:
        began = time.monotonic()
        while True:
            for record in _records(directory):
                if record.get("event") == event and record["step"] >= step:
                    return record
            if process.poll() is not None or time.monotonic() > began + WITHIN_SECONDS:
                said = (self._folder / f"{directory.name}.log").read_text(errors="replace")[-4000:]
                raise WorkerError(f"the run of the benchmark of local saves did not go on:\n{said}")
            time.sleep(0.05)

    def _status(self, name: str) -> dict[str, Any]:
        command = [self._python, "-m", "shardwise.cli.app", "status", name, "--json"]
        output = subprocess.run(command, cwd=self._folder, env=self._environment, capture_output=True, check=True)
        status: dict[str, Any] = json.loads(output.stdout)
        return status


def _records(directory: Path) -> list[dict[str, Any]]:
    metrics = directory / "metrics.jsonl"
    lines = metrics.read_text(encoding="utf-8").splitlines(keepends=True) if metrics.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _memory(directory: Path) -> list[dict[str, float]]:
    memory: list[dict[str, float]] = next(record["memory"] for record in _records(directory) if "memory" in record)
    return memory


_JOB = f"""apiVersion: shardwise.dev/v1alpha1
kind: TrainingJob
metadata: {{name: bench}}
spec:
  hardware: {{accelerator: cpu-sim, topology: 2x2}}
  training:
    model: {{layers: 8, heads: 8, embed: 768, seqLen: 32, vocabSize: 8192}}
    data: {{train: [{{name: text, paths: ["{ROOT / "LICENSE"}"]}}], tokenizer: byte}}
    mesh: {{fsdp: true}}
    batch: {{sequences: 4}}
    optimizer: {{name: adamw, learningRate: 3e-4}}
    steps: 100000
"""
