"""Compiles programs of jobs for hardware that this machine has not, and says what came out of it.

Run by `compiling.py` with the Python of `.venv-plan`, since the compilers live there. Jobs come in as JSON; a line of
JSON goes out for each program. It judges nothing.
"""

import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import jax
from tests.plan.scores import of_pallas, of_program

from shardwise.job.load import loads
from shardwise.job.resolve import resolve
from shardwise.plan.collectives import collectives
from shardwise.plan.compiled import Step, compile_step
from shardwise.train.generate import lower_token, lower_window
from shardwise.train.state import Program
from shardwise.train.step import lower_evaluation, trace_step

Lower = Callable[[Program], jax.stages.Lowered]
_OTHERS: Mapping[str, Lower] = {
    "init": Program.lower_init,
    "evaluation": lower_evaluation,
    "window": lower_window,
    "token": lower_token,
}


def main() -> None:
    """Compile what standard input asks for."""
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
                    _OTHERS[name](step.program).compile()
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
