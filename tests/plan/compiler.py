"""Compiles programs of jobs for hardware that this machine has not, and says what came out of it.

Run by `compiling.py` with the Python of `.venv-plan`, since the compilers live there. Jobs come in as JSON; a line of
JSON goes out for each program. It judges nothing.

What a compiler made of a program is kept in the folder that is the only argument, by the program itself. A change of
the sources that leaves the lowered program as it was costs its lowering, not the compiler's time.
"""

import gzip
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
from tests.plan.scores import of_pallas, of_program

from shardwise.job.load import loads
from shardwise.job.resolve import resolve
from shardwise.plan import compiled
from shardwise.plan.collectives import collectives
from shardwise.plan.compiled import Step, compile_step
from shardwise.train.generate import lower_token, lower_window
from shardwise.train.state import Program
from shardwise.train.step import lower_evaluation, lower_step, trace_step

Lower = Callable[[Program], jax.stages.Lowered]
_OTHERS: Mapping[str, Lower] = {
    "init": Program.lower_init,
    "evaluation": lower_evaluation,
    "window": lower_window,
    "token": lower_token,
}
_SIZES = tuple(f"{use}_size_in_bytes" for use in ("argument", "output", "alias", "temp", "generated_code"))
_SIZES += ("peak_memory_in_bytes",)


@dataclass(frozen=True)
class _Read:
    """What was read off a compiled program, in its place."""

    text: str
    sizes: Mapping[str, int]

    def as_text(self) -> str:
        """The compiled program."""
        return self.text

    def memory_analysis(self) -> SimpleNamespace:
        """Its memory."""
        return SimpleNamespace(**self.sizes)


@dataclass(frozen=True)
class _Lowered:
    """A lowered program that is compiled once for all processes that have the folder."""

    lowered: jax.stages.Lowered
    program: Program
    folder: Path

    def compile(self) -> _Read:
        """Compile it, or read what came of it before."""
        path = self.folder / f"{self._key()}.json.gz"
        if path.exists():
            return _Read(**json.loads(gzip.decompress(path.read_bytes())))
        made = self.lowered.compile()
        sizes = {name: getattr(made.memory_analysis(), name) for name in _SIZES}
        read = _Read(made.as_text() or "", sizes)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(gzip.compress(json.dumps(asdict(read)).encode()))
        part.replace(path)
        return read

    def _key(self) -> str:
        """Hash all that the compiler gets: the program, its devices and options, the compilers themselves."""
        devices = [(str(device), device.id) for device in self.program.layout.mesh.devices.flat]
        options = [self.program.compiler_options(), self.program.compiler_options(runs_once=True)]
        flags = [os.environ.get(name) for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")]
        compilers = (Path(__file__).parents[2] / "requirements" / "plan.txt").read_text(encoding="utf-8")
        parts = [self.lowered.as_text(), repr(devices), repr(options), repr(flags), compilers]
        return sha256("\0".join(parts).encode()).hexdigest()[:32]


def main() -> None:
    """Compile what standard input asks for."""
    folder = Path(sys.argv[1])
    vars(compiled)["lower_step"] = lambda program: _Lowered(lower_step(program), program, folder)
    for number, asked in enumerate(json.load(sys.stdin)):
        job = resolve(loads(asked["job"]))
        step: Step | None = None
        for name in asked["programs"]:
            began = time.process_time()
            try:
                if name == "step":
                    step = compile_step(job)
                    said = _said(step)
                else:
                    assert step, "the step comes first"
                    _Lowered(_OTHERS[name](step.program), step.program, folder).compile()
                    said = {}
            except Exception:  # noqa: BLE001 - whatever it is, a test shows it
                said = {"error": traceback.format_exc()}
            line = {"job": number, "program": name, "seconds": time.process_time() - began, **said}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
            if name == "step" and step is None:
                break


def _said(step: Step) -> dict[str, Any]:
    """What the tests look at."""
    kernel = step.program.config.attention
    return {
        "stand_in": step.stand_in,
        "kernel": kernel,
        "mesh": step.mesh,
        "peak_bytes": step.peak_bytes,
        "collectives": [asdict(row) for row in collectives(step.module, step.mesh)],
        "scores": of_pallas(trace_step(step.program)) if kernel == "splash" else of_program(step.module),
    }


if __name__ == "__main__":
    main()
