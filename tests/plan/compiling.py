"""Jobs compiled for hardware that this machine has not: what the tests ask for, and what the compiler answers.

Used by the tests beside this. The compilers for TPUs and GPUs are in `.venv-plan`, so its Python does the work, in
`compiler.py`, with a process for each accelerator class. What it says of a job is kept outside of the checkout, by the
content of everything that it could depend on. What came of each program is also recorded in the tree, by the program
(`record.py`); what neither knows is compiled.
"""

import fcntl
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from shardwise.job.environment import plan_environment
from shardwise.job.load import dump, loads
from shardwise.job.resolve import resolve
from shardwise.job.spec import Hardware, TrainingJob
from shardwise.job.topology import num_devices

ROOT = Path(__file__).parents[2]
EVERY_PROGRAM = ("step", "init", "evaluation", "answers", "weights", "window", "tokens", "likelihoods", "probe")
"""The step, the first state, the loss of held-out text and of answers, generation's four, and one host's own work."""
RECORDED = Path(__file__).parent / "golden" / "compiled.jsonl"
"""What came of each program: {"key": of the program, "said": what the compiler's part of a test looks at}."""
DATA = {"data_outer", "data_inner"}

_PYTHON = ROOT / ".venv-plan" / "bin" / "python"
_HOME_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
CACHE = Path(os.environ.get("SHARDWISE_COMPILED_CACHE") or _HOME_CACHE / "shardwise" / "compiled")
_SMALL = """
apiVersion: shardwise.dev/v1alpha1
kind: TrainingJob
metadata: {name: small}
spec:
  hardware: {accelerator: ACCELERATOR, topology: TOPOLOGY, slices: SLICES}
  training:
    model: {layers: 2, heads: 8, embed: 512, seqLen: 128}
    data: {train: [{name: text, paths: ["README.md"]}], tokenizer: byte, heldOut: 0.1}
    batch: {sequences: SEQUENCES}
    optimizer: {name: adamw, learningRate: 3e-4}
    precision: {compute: bfloat16}
    steps: 10
"""


@dataclass(frozen=True)
class Request:
    """A job, and which of its programs are compiled."""

    job: TrainingJob
    programs: Sequence[str] = ("step",)

    @property
    def accelerator(self) -> str:
        """The class."""
        return self.job.spec.hardware.accelerator

    def document(self) -> dict[str, Any]:
        """What the worker reads."""
        return {"job": dump(self.job), "programs": list(self.programs)}

    @property
    def key(self) -> str:
        """Another one for anything that may change the answer."""
        own = [(Path(__file__).parent / name).read_text(encoding="utf-8") for name in ("compiler.py", "scores.py")]
        return sha256(f"{fingerprint()} {json.dumps([own, self.document()])}".encode()).hexdigest()[:32]


def small(accelerator: str, topology: str, slices: int = 1, *words: str) -> TrainingJob:
    """A job with a small model in bfloat16, two sequences a device; `words` are overrides of its `training`."""
    hardware = Hardware(accelerator=accelerator, topology=topology, slices=slices)
    named = {"ACCELERATOR": accelerator, "TOPOLOGY": topology, "SLICES": slices, "SEQUENCES": 2 * num_devices(hardware)}
    text = _SMALL
    for name, value in named.items():
        text = text.replace(name, str(value))
    return loads(text, [f"training.{word}" for word in words])


def answers(requests: Sequence[Request]) -> list[Mapping[str, Any]]:
    """What came of each request, by program: those of one class, compiled by one process where they are not kept.

    Raises:
        RuntimeError: the compilers are not installed, or the process died.

    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{requests[0].accelerator}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two tests of different files may want the same
        _compile([request for request in requests if not _place(request).exists()])
    return [json.loads(_place(request).read_text(encoding="utf-8")) for request in requests]


def beside_compilers(module: str, asked: str, job: TrainingJob, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module with this standard input where the compilers are, in the environment of a plan of the job.

    Raises:
        RuntimeError: they are not installed.

    """
    if not _PYTHON.exists():
        raise RuntimeError(f"{_PYTHON} does not exist: `make pytest` makes it, with the compilers for TPUs and GPUs")
    environment = {
        **os.environ,
        **plan_environment(job),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "trainer")]),
    }
    return subprocess.run(
        [_PYTHON, "-m", module, *arguments],
        input=asked, cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def _compile(requests: Sequence[Request]) -> None:
    if not requests:
        return
    largest = max((resolve(request.job) for request in requests), key=lambda job: num_devices(job.spec.hardware))
    asked = json.dumps([request.document() for request in requests])
    programs = CACHE / "programs"
    programs.mkdir(exist_ok=True)
    ended = beside_compilers("tests.plan.compiler", asked, largest, str(RECORDED), str(programs))
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    for number, request in enumerate(requests):
        said = {line["program"]: line for line in lines if line["job"] == number}
        if said and ("error" in said["step"] or len(said) == len(request.programs)):
            part = _place(request).with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(said), encoding="utf-8")
            part.replace(_place(request))
    if ended.returncode:
        raise RuntimeError(f"the compiler of {requests[0].accelerator} ended with {ended.returncode}:\n{ended.stderr}")


def _place(request: Request) -> Path:
    return CACHE / f"{request.key}.json"


@cache
def fingerprint() -> str:
    """Of all that a compiled program depends on, but for the job itself."""
    package = ROOT / "trainer" / "shardwise"
    parts = [path for name in ("job", "plan", "train") for path in (package / name).rglob("*") if path.is_file()]
    sources = [path for path in parts if path.suffix in (".py", ".yaml", ".txtpb")]
    known = sha256()
    for path in sorted([*sources, ROOT / "requirements" / "plan.txt"]):
        known.update(f"{path.relative_to(ROOT)}\0".encode())
        known.update(path.read_bytes())
    return known.hexdigest()
