"""Collectives that may run at the same time never take each other's parts: each has a channel of its own."""

import re
from collections import Counter
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P
from jax.experimental import serialize_executable
from tests.train import test_context, test_meshes, test_pipeline

from shardwise.train.jax_private import with_own_channels
from shardwise.train.state import Program
from shardwise.train.step import lower_evaluation, lower_step

Array = jax.Array
MakeProgram = Callable[..., Program]
RING = "mesh.contextStrategy=ring"
MESHES = {
    "replica 2 x fsdp 2 x tensor 2, 2 microbatches": (*test_meshes.LLAMA, "mesh={tensor: 2, replica: 2}"),
    "fsdp 2 x 2 in two steps x tensor 2": (*test_meshes.GEMMA, "mesh={tensor: 2, dataInner: 2}"),
    **{name: (*test_context.GEMMA, *words, RING) for name, (_, words) in test_context.PRODUCTS.items()},
    **{name: (*test_pipeline.WINDOWS, *words) for name, (_, words) in test_pipeline.PRODUCTS.items()},
}


def test_a_kept_program_computes_what_it_did() -> None:
    """Two loops of transfers that do not wait for each other, as compiled and as loaded again, a hundred times."""
    mesh = jax.make_mesh((8,), ("device",))

    def passed(x: Array, by: int) -> Array:
        return jax.lax.ppermute(x, "device", [(device, (device + by) % 8) for device in range(8)])

    def both(x: Array, y: Array) -> tuple[Array, Array]:
        one, _ = jax.lax.scan(lambda x, _: (passed(jnp.sin(x), 1), None), x, length=6)
        other, _ = jax.lax.scan(lambda y, _: (passed(jnp.cos(y), 3), None), y, length=6)
        return one, other

    split = jax.NamedSharding(mesh, P("device"))
    given = [jax.device_put(jnp.arange(start, 4096, dtype=jnp.float32), split) for start in (0, -4096)]
    on_devices = jax.jit(jax.shard_map(both, mesh=mesh, in_specs=P("device"), out_specs=P("device")))
    compiled = with_own_channels(on_devices.lower(*given)).compile()
    kept = serialize_executable.deserialize_and_load(*serialize_executable.serialize(compiled))

    expected = jax.device_get(compiled(*given))
    for _ in range(100):
        for found, each in zip(jax.device_get(kept(*given)), expected, strict=True):
            np.testing.assert_array_equal(found, each)


@pytest.mark.parametrize("name", MESHES)
def test_each_collective_has_a_channel_of_its_own(make_program: MakeProgram, name: str) -> None:
    """Of a step and an evaluation, on every kind of mesh."""
    devices = {**test_context.PRODUCTS, **test_pipeline.PRODUCTS}.get(name, (8, ()))[0]
    program = make_program(*MESHES[name], num_devices=devices)
    for lowered in (lower_step(program), lower_evaluation(program)):
        channels = Counter(re.findall(r"channel_id=(\d+)", lowered.compile().as_text() or ""))
        assert channels
        assert [channel for channel, times in channels.items() if times > 1] == []
