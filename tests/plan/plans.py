"""Golden plans: what forty jobs need and move, compiled for the hardware they name, as one line each.

Run by `make plans`, which compiles all of them (half an hour on two cores) and compares; `UPDATE_GOLDEN=1 make plans`
writes `golden/plans.jsonl` and the table of docs/plans.md anew. A sample is compared by the tests. A change that adds a
gather, or holds more, is a changed line in review.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from rich.console import Console
from tests.plan.compiling import CACHE, fingerprint

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden" / "plans.jsonl"
PAGE = ROOT / "docs" / "plans.md"
_PROGRAM = ROOT / ".venv-plan" / "bin" / "shardwise"
_AT_ONCE = 2
_MIB = 1 << 20
_MODELS: Mapping[str, Mapping[str, int]] = {
    "1.3B": {"layers": 24, "heads": 16, "embed": 2048, "seqLen": 2048},
    "7B": {"layers": 32, "heads": 32, "embed": 4096, "seqLen": 2048},
    "70B": {"layers": 80, "heads": 64, "embed": 8192, "seqLen": 4096},
}


@dataclass(frozen=True)
class Job:
    """A job of the table."""

    model: str
    accelerator: str
    topology: str
    slices: int = 1
    tensor: int = 1
    sequences: int = 512
    remat: str = "full"
    microbatches: int = 1

    @property
    def name(self) -> str:
        """What it is called in the golden file; no other job's."""
        slices = f"{self.slices}x" if self.slices > 1 else ""
        more = f"-{self.remat}" if self.remat != "full" else ""
        more += f"-micro{self.microbatches}" if self.microbatches > 1 else ""
        return f"{self.model}-{self.accelerator}-{slices}{self.topology}-tensor{self.tensor}{more}"

    def document(self) -> dict[str, Any]:
        """The job file."""
        return {
            "apiVersion": "shardwise.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "golden"},
            "spec": {
                "hardware": {"accelerator": self.accelerator, "topology": self.topology, "slices": self.slices},
                "training": {
                    "model": {**_MODELS[self.model], "remat": self.remat, "vocabSize": 50257},
                    "data": {"train": [{"name": "web", "paths": ["web/*.jsonl"]}], "tokenizer": "tokenizer.json"},
                    "mesh": {"tensor": self.tensor},
                    "batch": {"sequences": self.sequences, "microbatches": self.microbatches},
                    "optimizer": {"name": "adamw", "learningRate": 2e-4},
                    "precision": {"compute": "bfloat16"},
                    "steps": 1000,
                },
            },
        }


JOBS = (
    Job("1.3B", "tpu-v5p", "4x4x4"),
    Job("1.3B", "tpu-v5p", "4x4x4", tensor=2),
    Job("1.3B", "tpu-v5p", "4x4x4", remat="dots"),
    Job("1.3B", "tpu-v5p", "2x2x4", sequences=128),
    Job("1.3B", "tpu-v5p", "2x4x4", tensor=2, sequences=256, microbatches=2),
    Job("1.3B", "tpu-v5p", "4x4x4", slices=4, sequences=2048),
    Job("7B", "tpu-v5p", "4x4x8"),
    Job("7B", "tpu-v5p", "4x4x8", tensor=4),
    Job("7B", "tpu-v5p", "4x4x8", slices=2, tensor=2, sequences=1024),
    Job("7B", "tpu-v5p", "8x8x8", tensor=2, sequences=1024),
    Job("70B", "tpu-v5p", "4x8x8", slices=2, tensor=4, sequences=512),
    Job("70B", "tpu-v5p", "8x8x16", tensor=4, sequences=1024),
    Job("1.3B", "tpu-v6e", "4x4", tensor=2, sequences=128),
    Job("1.3B", "tpu-v6e", "8x8"),
    Job("7B", "tpu-v6e", "16x16", sequences=1024),
    Job("7B", "tpu-v6e", "16x16", tensor=4),
    Job("7B", "tpu-v6e", "8x16", slices=2, tensor=2),
    Job("70B", "tpu-v6e", "16x16", slices=4, tensor=8, sequences=1024),
    Job("1.3B", "tpu-v5e", "4x8", tensor=2, sequences=256),
    Job("1.3B", "tpu-v5e", "8x8"),
    Job("1.3B", "tpu-v5e", "8x8", slices=3, sequences=768),
    Job("7B", "tpu-v5e", "16x16", tensor=4),
    Job("7B", "tpu-v5e", "16x16", slices=2, sequences=1024),
    Job("7B", "tpu-v5e", "16x16", slices=2, tensor=4, sequences=1024, microbatches=2),
    Job("1.3B", "tpu-v4", "2x2x4", tensor=2, sequences=128),
    Job("1.3B", "tpu-v4", "4x4x4"),
    Job("7B", "tpu-v4", "4x4x8", tensor=2),
    Job("7B", "tpu-v4", "4x4x8", slices=2, sequences=1024),
    Job("70B", "tpu-v4", "8x8x8", tensor=8),
    Job("1.3B", "tpu-v7x", "2x2x4", tensor=2, sequences=256),
    Job("1.3B", "tpu-v7x", "4x4x4", sequences=1024),
    Job("7B", "tpu-v7x", "4x4x8", sequences=1024),
    Job("7B", "tpu-v7x", "4x4x4", slices=2, tensor=2, sequences=1024),
    Job("70B", "tpu-v7x", "8x8x8", tensor=4, sequences=1024),
    Job("1.3B", "gpu-h100", "1x8", sequences=64),
    Job("1.3B", "gpu-h100", "2x8", tensor=2, sequences=64),
    Job("7B", "gpu-h100", "4x8", tensor=2, sequences=128),
    Job("70B", "gpu-h100", "16x8", tensor=8, sequences=128),
    Job("7B", "gke-gpu-h200", "8x8", tensor=8, sequences=256),
    Job("1.3B", "gke-gpu-a100", "2x8", sequences=64),
)


def compiled(job: Job) -> dict[str, Any]:
    """The plan of a job, made in a process of its own, or kept from another time that nothing has changed since.

    Raises:
        RuntimeError: there is none; it says why.

    """
    text = json.dumps(job.document())
    kept = CACHE / f"plan-{sha256(f'{fingerprint()} {text}'.encode()).hexdigest()[:32]}.json"
    if not kept.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}.{job.name}")
        part.write_text(_planned(job.name, text), encoding="utf-8")
        part.replace(kept)
    plan: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
    return plan


def _planned(name: str, text: str) -> str:
    """What `shardwise plan --json` says of this job file."""
    if not _PROGRAM.exists():
        raise RuntimeError(f"{_PROGRAM} does not exist: `make setup-plan` makes it, with the compilers")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.yaml"
        path.write_text(text, encoding="utf-8")
        ended = subprocess.run([_PROGRAM, "plan", path, "--json"], capture_output=True, text=True, check=False)
    if not ended.stdout:
        raise RuntimeError(f"{name}: no plan (exit {ended.returncode}): {ended.stderr}")
    return ended.stdout


def summary(job: Job, plan: Mapping[str, Any]) -> dict[str, Any]:
    """The line of a plan: MiB on a device at the peak, MiB on its wire by axis and link, the asynchronous share."""
    by_link: dict[str, float] = {}
    beside = 0.0
    for row in plan["collectives"]:
        by_link[row["link"]] = by_link.get(row["link"], 0.0) + row["wireBytes"]
        beside += row["asynchronousWireBytes"]
    moved = sum(by_link.values())
    memory = plan["memory"]
    return {
        "name": job.name,
        "devices": plan["devices"],
        "fits": plan["fits"],
        "peakMiB": _mib(memory["total"] - memory["program"]) if memory else None,
        "wireMiB": {axis: _mib(one["bytes"]) for axis, one in plan["wire"].items() if one["least"]},
        "leastMiB": {axis: _mib(one["least"]) for axis, one in plan["wire"].items() if one["least"]},
        "linkMiB": {link: _mib(size) for link, size in by_link.items()},
        "asynchronous": round(beside / moved, 3) if moved else None,
        "synchronousGathers": plan["synchronousGathers"],
    }


def golden() -> dict[str, dict[str, Any]]:
    """The lines of the golden file by name."""
    lines = GOLDEN.read_text(encoding="utf-8").splitlines() if GOLDEN.exists() else []
    return {line["name"]: line for line in map(json.loads, lines)}


def page(lines: Mapping[str, Mapping[str, Any]]) -> str:
    """The text of docs/plans.md with the table of these lines."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- table -->\n")
    _, _, foot = rest.partition("<!-- end of the table -->\n")
    rows = "".join(_row(job, lines[job.name]) for job in JOBS if job.name in lines)
    return f"{head}<!-- table -->\n{_HEAD}{rows}<!-- end of the table -->\n{foot}"


_HEAD = (
    "| model | hardware | layout | peak | data | tensor | replica | asynchronous |\n|---|---|---|---|---|---|---|---|\n"
)


def _row(job: Job, line: Mapping[str, Any]) -> str:
    slices = f"{job.slices} x " if job.slices > 1 else ""
    layout = [f"tensor {job.tensor}", f"{job.sequences} sequences"]
    layout += [f"remat {job.remat}"] if job.remat != "full" else []
    layout += [f"{job.microbatches} microbatches"] if job.microbatches > 1 else []
    peak = f"{line['peakMiB'] / 1024:,.2f}" + ("" if line["fits"] else " (does not fit)")
    axes = [_axis(line, axis) for axis in ("data", "tensor", "replica")]
    cells = [
        job.model,
        f"{slices}{job.accelerator} {job.topology} ({line['devices']})",
        ", ".join(layout),
        peak,
        *axes,
        f"{line['asynchronous']:.0%}",
    ]
    return f"| {' | '.join(cells)} |\n"


def _axis(line: Mapping[str, Any], axis: str) -> str:
    if axis not in line["wireMiB"]:
        return ""
    moved, least = line["wireMiB"][axis], line["leastMiB"][axis]
    return f"{moved / 1024:,.2f} ({moved / least:.3f})"


def _mib(size: float) -> float:
    return round(size / _MIB, 2)


def _found(console: Console) -> Iterator[dict[str, Any]]:
    wanted: Callable[[Job], bool] = lambda job: not sys.argv[1:] or any(word in job.name for word in sys.argv[1:])  # noqa: E731
    jobs = [job for job in JOBS if wanted(job)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for number, (job, plan) in enumerate(zip(jobs, pool.map(compiled, jobs), strict=True), 1):
            console.print(
                f"{number}/{len(jobs)} {job.name}: compiled in {plan['compileSeconds']:.0f} s", highlight=False
            )
            yield summary(job, plan)


def main() -> int:
    """Compile the jobs whose names have one of the arguments in them, all without; 1 where a line differs."""
    console, before = Console(), golden()
    after = {line["name"]: line for line in _found(console)}
    differing = [name for name, line in after.items() if before.get(name) != line]
    for name in differing:
        console.print(f"{name}\n  was {before.get(name)}\n  is  {after[name]}", highlight=False)
    if os.environ.get("UPDATE_GOLDEN") == "1":
        both = before | after
        kept = {job.name: both[job.name] for job in JOBS if job.name in both}
        GOLDEN.write_text("".join(json.dumps(line) + "\n" for line in kept.values()), encoding="utf-8")
        PAGE.write_text(page(kept), encoding="utf-8")
        return 0
    console.print(f"{len(after)} plans, {len(differing)} of them differ", highlight=False)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
