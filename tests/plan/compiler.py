"""Compiles programs of jobs for hardware that this machine has not, and says what came out of it.

Run by `compiling.py` with the Python of `.venv-plan`, since the compilers live there. Jobs come in as JSON; a line of
JSON goes out for each program. It judges nothing.

What came of a program is known by the program itself: from the record that `make compiled` writes, the first argument,
or from the folder that is the second. So a change of the sources that leaves a lowered program as it was costs its
lowering, and not the compiler's time.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh
from tests.plan import scores
from tests.plan.scores import of_pallas, of_program

from shardwise.job.load import loads
from shardwise.job.resolve import resolve
from shardwise.job.rounding import padded
from shardwise.plan import collectives, hlo, roofline
from shardwise.plan.compiled import LoweredStep, Step, lowered_step
from shardwise.train.decoder import num_parts
from shardwise.train.decoding import lower_tokens, lower_weights, lower_window
from shardwise.train.decoding_arrays import BLOCK
from shardwise.train.probe import lower_chain
from shardwise.train.scoring import lower_scores
from shardwise.train.state import Program
from shardwise.train.step import lower_evaluation, lower_token_losses, trace_step

Lower = Callable[[Program], jax.stages.Lowered]
_OTHERS: Mapping[str, Lower] = {
    "init": Program.lower_init,
    "evaluation": lower_evaluation,
    "answers": lower_token_losses,
    "weights": lambda program: lower_weights(program, program.layout.whole_over_data()),
    "window": lambda program: lower_window(
        program, program.layout.whole_over_data(), 2 * num_parts(program), program.config.seq_len
    ),
    "tokens": lambda program: lower_tokens(program, program.layout.whole_over_data(), 2 * num_parts(program)),
    "likelihoods": lambda program: lower_scores(
        program, program.layout.whole_over_data(), 2 * num_parts(program), padded(program.config.seq_len, BLOCK)
    ),
    "probe": lambda program: lower_chain(_first_host(program)),
}
_LOCK = Path(__file__).parents[2] / "requirements" / "plan.txt"
_COMPILERS = ("jax==", "jaxlib==", "jax-cuda", "libtpu", "nvidia-")
"""Distributions whose release decides what comes of a program: their names begin so."""


@dataclass(frozen=True)
class _Known:
    """What came of programs before: recorded in the tree, or kept in a folder outside of it."""

    recorded: Mapping[str, Mapping[str, Any]]
    folder: Path

    def said(self, key: str, compile_it: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return what is known by this key; else compile, and keep it."""
        if key in self.recorded:
            return self.recorded[key]
        kept = self.folder / f"{key}.json"
        if not kept.exists():
            part = kept.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(compile_it()), encoding="utf-8")
            part.replace(kept)
        said: Mapping[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        return said


def main() -> None:
    """Compile what standard input asks for."""
    jax.config.update("jax_traceback_in_locations_limit", 0)  # a kernel's program would name the files of this checkout
    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    known = _Known({line["key"]: line["said"] for line in map(json.loads, lines)}, Path(sys.argv[2]))
    for number, asked in enumerate(json.load(sys.stdin)):
        job = resolve(loads(asked["job"]))
        step: LoweredStep | None = None
        for name in asked["programs"]:
            began, key = time.process_time(), ""
            try:
                if name == "step":
                    step = lowered_step(job)
                    key = _key(step.program, step.lowered, step.stand_in)
                    said = known.said(key, lambda step=step: _said(step))  # type: ignore[misc]
                else:
                    assert step, "the step comes first"
                    lowered = _OTHERS[name](step.program)
                    key = _key(step.program, lowered)
                    said = known.said(key, lambda lowered=lowered: _compiles(lowered))  # type: ignore[misc]
            except Exception:  # noqa: BLE001 - whatever it is, a test shows it
                said = {"error": traceback.format_exc()}
            line = {"job": number, "program": name, "key": key, "seconds": time.process_time() - began, **said}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
            if name == "step" and step is None:
                break


def _key(program: Program, lowered: jax.stages.Lowered, *more: str | None) -> str:
    """Hash all that the answer depends on: program, devices, options, the compilers, and what reads their output."""
    devices = [(str(device), device.id) for device in program.layout.mesh.devices.flat]
    options = [program.compiler_options(), program.compiler_options(runs_once=True), program.config.attention, more]
    flags = os.environ.get("LIBTPU_INIT_ARGS")  # XLA_FLAGS has how many devices stand in, and the options have the rest
    sources = [Path(module.__file__ or "") for module in (collectives, hlo, roofline, scores)]
    texts = [path.read_text(encoding="utf-8") for path in sources]
    releases = [line.split()[0] for line in _LOCK.read_text("utf-8").splitlines() if line.startswith(_COMPILERS)]
    parts = [lowered.as_text(), repr(devices), repr(options), repr(flags), *texts, *releases]
    return sha256("\0".join(parts).encode()).hexdigest()[:32]


def _said(lowered: LoweredStep) -> dict[str, Any]:
    """What the tests look at."""
    step = lowered.compile()
    kernel = step.program.config.attention
    return {
        "stand_in": step.stand_in,
        "kernel": kernel,
        "mesh": step.mesh,
        "peak_bytes": step.peak_bytes,
        "on_host": [step.host_state_bytes, step.host_temporary_bytes],
        "collectives": [_moved(step, row) for row in collectives.collectives(step.module, step.mesh)],
        "scores": of_pallas(trace_step(step.program)) if kernel == "splash" else of_program(step.module),
    }


def _moved(step: Step, row: collectives.Collective) -> dict[str, Any]:
    """A row of what moves, with its link in the place of the devices that it is read off."""
    return {name: value for name, value in asdict(row).items() if name != "group"} | {
        "link": roofline.link_of(step, row)
    }


def _first_host(program: Program) -> Mesh:
    devices = sorted(program.layout.mesh.devices.flat, key=lambda device: (device.process_index, device.id))
    own = [device for device in devices if device.process_index == devices[0].process_index]
    return Mesh(np.array(own), ("device",), axis_types=(AxisType.Auto,))


def _compiles(lowered: jax.stages.Lowered) -> dict[str, Any]:
    """That it compiles is all that the tests ask."""
    lowered.compile()
    return {}


if __name__ == "__main__":
    main()
