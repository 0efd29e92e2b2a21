"""Collectives that may run at the same time never take each other's parts, in a program that was kept too."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from jax import P
from tests.long import all_but
from tests.train import test_context, test_meshes, test_pipeline
from tests.train.conftest import IN_FULL
from tests.train.rendezvous import strangers

from shardwise.train.jax_private import with_own_channels
from shardwise.train.state import Program
from shardwise.train.step import lower_step

Array = jax.Array
MakeProgram = Callable[..., Program]
RING = "mesh.contextStrategy=ring"
MESHES = {
    **{name: (devices, (*test_meshes.LLAMA, *words)) for name, (devices, words) in test_meshes.MESHES.items()},
    **{
        f"{name}, ring": (devices, (*test_context.GEMMA, *words, RING))
        for name, (devices, words) in test_context.PRODUCTS.items()
    },
    **{name: (devices, (*test_pipeline.WINDOWS, *words)) for name, (devices, words) in test_pipeline.PRODUCTS.items()},
}
SHORT = ["fsdp 2 x 2 in two steps x tensor 2", *(f"{name}, ring" for name in test_context.SHORT), *test_pipeline.SHORT]
"""Those that `make test` takes."""


def _lowered() -> jax.stages.Lowered:
    """Two loops of transfers that do not wait for each other."""
    mesh = jax.make_mesh((8,), ("device",))

    def passed(x: Array, by: int) -> Array:
        came: Array = jax.lax.ppermute(x, "device", [(device, (device + by) % 8) for device in range(8)])
        return came

    def both(x: Array, y: Array) -> tuple[Array, Array]:
        one, _ = jax.lax.scan(lambda x, _: (passed(jnp.sin(x), 1), None), x, length=6)
        other, _ = jax.lax.scan(lambda y, _: (passed(jnp.cos(y), 3), None), y, length=6)
        return one, other

    on_devices = jax.jit(jax.shard_map(both, mesh=mesh, in_specs=P("device"), out_specs=P("device")))
    given = jax.ShapeDtypeStruct((4096,), jnp.float32, sharding=jax.NamedSharding(mesh, P("device")))
    return on_devices.lower(given, given)


def test_two_loops_of_transfers_have_channels_of_their_own() -> None:
    """As JAX lowers them their partners could be mistaken; then not."""
    assert len(strangers(_lowered().compile(IN_FULL).as_text() or "")) == 1
    assert strangers(with_own_channels(_lowered()).compile(IN_FULL).as_text() or "") == []


@pytest.mark.parametrize("name", all_but(SHORT, MESHES))
def test_no_collectives_of_a_step_are_mistaken_for_each_other(make_program: MakeProgram, name: str) -> None:
    """On every kind of mesh: what two loops, or a loop and what is beside it, send at the same time is told apart."""
    devices, words = MESHES[name]
    program = test_meshes.in_full(make_program(*words, num_devices=devices))

    assert strangers(lower_step(program).compile().as_text() or "") == []
