"""Low-rank adapters: what they compute, that nothing else moves, and that no mesh changes it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.train.test_meshes import LLAMA, batch_of

from shardwise.train.lora import is_adapter, merged
from shardwise.train.state import BASE, Program, State, parameters
from shardwise.train.step import lower_evaluation, lower_step

MakeProgram = Callable[..., Program]
LORA = ("lora.rank=4", "startFrom={path: base, step: 0}", "optimizer.learningRate=1e-2")
MESHES = {
    "fsdp 2 x tensor 4": (8, ("mesh.tensor=4",)),
    "data 2 x tensor 2, no fsdp, 4 microbatches": (4, ("mesh.tensor=2", "mesh.fsdp=false", "batch.microbatches=4")),
    "replica 2 x fsdp 2 x tensor 2, 2 microbatches": (8, ("mesh.tensor=2", "mesh.replica=2", "batch.microbatches=2")),
    "fsdp 2 x context 2 x tensor 2": (8, ("mesh.tensor=2", "mesh.context=2")),
    "fsdp 2 x pipeline 3": (6, ("mesh.pipeline=3", "batch.sequences=12", "batch.microbatches=3")),
}
SIXTEEN = ("precision.compute=bfloat16",)


@pytest.mark.parametrize("words", [(), LLAMA], ids=["gpt2", "llama"])
def test_losses_do_not_depend_on_the_mesh(make_program: MakeProgram, words: tuple[str, ...]) -> None:
    """Over 10 float32 steps every mesh gives the losses of one device, which fall; it starts from the same bits."""
    one = make_program(*LORA, *words, "batch.sequences=12", num_devices=1)
    expected = trained(one)[1]
    assert expected[-1] < expected[0] - 0.05

    for name, (devices, more) in MESHES.items():
        sequences = () if "pipeline" in name else ("batch.sequences=16",)
        reference = expected if not sequences else trained(make_program(*LORA, *words, num_devices=1))[1]
        program = make_program(*LORA, *words, *more, num_devices=devices)
        np.testing.assert_allclose(trained(program)[1], reference, rtol=1e-5, atol=0, err_msg=name)
