"""What lies in the host's memory: the state of the optimizer, or what the backward pass keeps. No bit depends on it."""

from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import jax
import jax.extend
import numpy as np
import pytest
from tests.train.conftest import MakeProgram, run_here
from tests.train.test_meshes import LLAMA, batch_of
from tests.train.test_origin import folder, losses

from shardwise.protocol.contract import ExitCode
from shardwise.train.checkpoint import load_numpy, read_manifest
from shardwise.train.host_memory import HOST
from shardwise.train.memory import device_memory
from shardwise.train.state import Program, State, flat
from shardwise.train.step import lower_step, trace_step

ON_HOST = "optimizer.memory=host"
CASES = {
    "adamw": (),
    "float32 weights, two microbatches": ("precision.params=bfloat16", "batch.microbatches=2", *LLAMA),
    "muon on tensor 2, bad steps skipped": (
        "optimizer={name: muon, learningRate: 1e-3}",
        "mesh.tensor=2",
        "badSteps.nonFinite=skip",
    ),
}


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_steps_have_the_bits_that_they_have_without(make_program: MakeProgram, words: tuple[str, ...]) -> None:
    """What there is for each parameter lies there, no counter, and every bit is that of devices alone."""
    on_devices, away = make_program(*words), make_program(*words, with_host(words))
    expected, found = _state_after_three_steps(on_devices), _state_after_three_steps(away)

    for path, array in flat(found).items():
        moved = path.startswith("optimizer.") and any(path.endswith(f".{name}") for name in away.names)
        assert (array.sharding.memory_kind == HOST) == moved, path
        assert np.asarray(array).tobytes() == np.asarray(flat(expected)[path]).tobytes(), path


def with_host(words: tuple[str, ...]) -> str:
    """The same optimizer with its state there."""
    whole = [word for word in words if word.startswith("optimizer={")]
    return whole[0].replace("{", "{memory: host, ") if whole else ON_HOST


def _state_after_three_steps(program: Program) -> State:
    state: State = program.lower_init().compile()()
    compiled = lower_step(program).compile()
    more: list[Any] = [jax.device_put(np.float32(np.inf), program.layout.replicated)]
    for step in range(3):
        controls = jax.device_put(np.zeros(program.layout.mesh.size, np.int32), program.layout.control)
        state, _ = compiled(
            state, batch_of(program, step), controls, *more * (program.training.bad_steps.non_finite == "skip")
        )
    return state


def test_a_device_does_not_hold_it(make_program: MakeProgram) -> None:
    """The table of what devices hold has none of it but the counters, and all of the parameters."""
    held, away = (
        device_memory(program, lower_step(program).compile())[0] for program in (make_program(), make_program(ON_HOST))
    )
    assert away.params_bytes == held.params_bytes
    assert held.optimizer_bytes > 2 * held.params_bytes * 0.9
    assert away.optimizer_bytes < 100


def test_the_loop_over_layers_keeps_their_inputs_there_and_nothing_else(make_program: MakeProgram) -> None:
    """With `remat: offload` the forward pass hands on one stack, in the host's memory; with `full` in a device's."""
    for remat, place in (("offload", "Host"), ("full", "Device")):
        program = make_program(f"model.remat={remat}", num_devices=1)
        layers, width = program.config.num_layers, program.config.embed_size
        first = next(stacks for stacks in _stacks_of_loops(trace_step(program), layers))

        assert [(x.shape, str(x.memory_space)) for x in first] == [
            ((layers, 16, program.config.seq_len, width), f"MemorySpace.{place}")
        ]


def _stacks_of_loops(jaxpr: Any, layers: int) -> Iterator[list[Any]]:
    """The arrays with a part for each layer that the loops over layers return, loop by loop."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan" and equation.params["length"] == layers:
            yield [x.aval for x in equation.outvars[equation.params["num_carry"] :]]
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from _stacks_of_loops(inner, layers)


@pytest.mark.usefixtures("as_a_trainer")
def test_a_run_goes_on_with_its_state_there_or_on_the_devices(tmp_path: Path) -> None:
    """A run that stopped at half has the bits of one that did not, wherever its state lies in either half."""
    text = tmp_path / "text.txt"
    text.write_text("all work and no play " * 2000)
    words = ["training.model.layers=1", f"training.data.train.0.paths=[{text}]", "training.checkpoint.everySteps=2"]
    whole, half, other = (folder(tmp_path, name) for name in ("whole", "half", "other"))
    away, said = f"training.{ON_HOST}", StringIO()
    assert run_here(whole, *words, "training.steps=4") == ExitCode.OK
    assert run_here(half, *words, away, "training.steps=2") == ExitCode.OK
    assert run_here(half, *words, away, "training.steps=4", said=said) == ExitCode.OK
    assert run_here(other, *words, "training.steps=2") == ExitCode.OK
    assert run_here(other, *words, away, "training.steps=4") == ExitCode.OK

    digests = [
        {path: entry.digest for path, entry in read_manifest(str(run / "checkpoints"), 4).arrays.items()}
        for run in (whole, half, other)
    ]
    assert digests[0] == digests[1] == digests[2]
    assert losses(whole) == losses(half) == losses(other)
    assert "optimizer.memory: host: the memory of simulated devices is their host's" in said.getvalue()
    saved = [dict(load_numpy(str(run / "checkpoints"), 4, "optimizer.")) for run in (whole, half)]
    assert all(np.array_equal(saved[0][path], x) for path, x in saved[1].items())


@pytest.mark.usefixtures("as_a_trainer")
def test_float32_weights_begin_there_when_a_run_is_forked_to_bfloat16(tmp_path: Path) -> None:
    """Those of a checkpoint without any are its parameters: made on the devices, and kept by the host."""
    text = tmp_path / "text.txt"
    text.write_text("all work and no play " * 2000)
    words = ["training.model.layers=1", f"training.data.train.0.paths=[{text}]"]
    half = ["training.precision.params=bfloat16", "training.steps=3"]
    kept = []
    for name, more in (("devices", []), ("hosts", [f"training.{ON_HOST}"])):
        run = folder(tmp_path, name)
        assert run_here(run, *words, "training.steps=2") == ExitCode.OK
        assert run_here(run, *words, *half, *more, fork=True) == ExitCode.OK
        kept.append(dict(load_numpy(str(run / "checkpoints"), 3, "optimizer.weights.")))
    assert kept[0]
    assert all(np.array_equal(x, kept[1][path]) for path, x in kept[0].items())
