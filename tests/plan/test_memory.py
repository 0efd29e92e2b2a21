"""What a plan says of a host's own memory."""

from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import pytest
from tests.cli.conftest import QUICKSTART

from shardwise.job.load import load
from shardwise.job.resolve import resolve
from shardwise.plan.hlo import parse
from shardwise.plan.memory import host_memory, local_checkpoint_bytes, saved_activations
from shardwise.plan.result import HostMemory

STATE = {
    "params": {"w": jax.ShapeDtypeStruct((64, 8), jnp.float32)},
    "optimizer": {"mu": {"w": jax.ShapeDtypeStruct((64, 8), jnp.float32)}},
    "base": {"frozen": jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16)},
}
SAVED_BYTES = 2 * 64 * 8 * 4


@pytest.mark.parametrize(
    ("local", "topology", "needed"),
    [
        (None, "4x2", None),
        ("{everySteps: 5}", "1x8", 3 * SAVED_BYTES),  # no other host: two checkpoints, and the copy on its way
        ("{everySteps: 5}", "4x2", 5 * SAVED_BYTES // 4),
    ],
)
def test_local_checkpoints(local: str | None, topology: str, needed: int | None) -> None:
    """Each of two checkpoints has two parts on a host, of what is saved: weights that stay as they are are not."""
    sets = [f"hardware.topology={topology}", *([f"training.checkpoint.local={local}"] if local else [])]
    job = resolve(load(QUICKSTART, [f"spec.{one}" for one in sets]))
    step = SimpleNamespace(job=job, program=SimpleNamespace(abstract=lambda: STATE))
    assert local_checkpoint_bytes(cast("Any", step)) == needed


def test_the_memory_of_a_host_is_that_of_its_devices() -> None:
    """Its state goes to a device and back in each step, what layers keep in each microbatch; of nothing it is None."""
    job = resolve(load(QUICKSTART, ["spec.training.batch.microbatches=4"]))
    step = SimpleNamespace(
        job=job, host_state_bytes=1000, host_temporary_bytes=30, topology=SimpleNamespace(devices_per_host=8)
    )
    assert host_memory(cast("Any", step)) == HostMemory(state=8000, activations=240, moved=2 * (1000 + 4 * 30))
    step.host_state_bytes = step.host_temporary_bytes = 0
    assert host_memory(cast("Any", step)) is None


@pytest.mark.parametrize(("place", "kept"), [("", 4 * 2 * 16 * 8 * 2), (":T(8,128)S(5)", 0), (":S(5)", 0)])
def test_what_layers_keep_with_the_host_is_not_on_the_device(place: str, kept: int) -> None:
    """A stack with a part for each layer counts, unless its layout has the host's space."""
    stack = f"bf16[4,2,16,8]{{3,2,1,0{place}}}"
    loop = f"  %while.1 = (s32[], {stack}) while(%tuple.1), condition=%c, body=%b"
    text = f"ENTRY %main (p: f32[4]) -> f32[4] {{\n{loop}\n}}\n"
    job = resolve(load(QUICKSTART, []))
    config = SimpleNamespace(Layers=SimpleNamespace(size=4))
    program = SimpleNamespace(config=config, abstract=lambda: {"params": {}})
    assert saved_activations(cast("Any", SimpleNamespace(job=job, program=program, module=parse(text)))) == kept
