"""What a plan says of a host's own memory."""

from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import pytest
from tests.cli.conftest import QUICKSTART

from shardwise.job.load import load
from shardwise.job.resolve import resolve
from shardwise.plan.memory import local_checkpoint_bytes

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
