"""shardwise.train.kept_order: programs that were kept run their collectives in one order on all devices."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P
from jax.experimental import serialize_executable
from tests.long import all_but
from tests.train.test_channels import MESHES, SHORT

from shardwise.train.kept_order import has_collectives, in_order, inside, parsed
from shardwise.train.state import Program
from shardwise.train.step import lower_step

Array = jax.Array
MakeProgram = Callable[..., Program]


def _serialized(compiled: jax.stages.Compiled) -> bytes:
    executable: Any = compiled.runtime_executable()
    serialized: bytes = executable.client.serialize_executable(executable)
    return serialized


def _unordered(sequence: Any) -> Iterator[tuple[str, str]]:
    """The kinds of operations with collectives of which no two are in order by what they write, one at least a loop."""
    having = [thunk for thunk in sequence.thunks if thunk.HasField("collective") or _holds(thunk)]
    for index, first in enumerate(having):
        for second in having[index + 1 :]:
            if (_holds(first) or _holds(second)) and not _written(first) & _written(second):
                yield first.kind, second.kind
    for thunk in sequence.thunks:
        for inner in inside(thunk):
            yield from _unordered(inner)


def _holds(thunk: Any) -> bool:
    return any(map(has_collectives, inside(thunk)))


def _written(thunk: Any) -> set[bytes]:
    here = [buffer.slice for buffer in thunk.collective.buffers.destinations]
    here += [thunk.copy.destination.slice] if thunk.HasField("copy") else []
    within = (_written(each) for inner in inside(thunk) for each in inner.thunks)
    return {part.SerializeToString() for part in here}.union(*within)


@pytest.mark.parametrize("name", all_but(SHORT, [name for name in MESHES if name != "one device"]))
def test_a_kept_step_has_all_its_collectives_in_order(make_program: MakeProgram, name: str) -> None:
    """On every kind of mesh: of a loop with collectives and one beside it, or of two loops, both write one buffer."""
    devices, words = MESHES[name]
    kept = _serialized(lower_step(make_program(*words, num_devices=devices)).compile())
    sequence = parsed(in_order(kept))[1].result.sequence

    assert has_collectives(sequence)
    assert not list(_unordered(sequence))


def _beside_a_loop() -> jax.stages.Compiled:
    """A loop with sums, nothing of which the sums beside it need."""
    mesh = jax.make_mesh((8,), ("device",))

    def both(x: Array, y: Array) -> tuple[Array, Array]:
        looped, _ = jax.lax.scan(lambda x, _: (jax.lax.psum(jnp.sin(x), "device"), None), x, length=6)
        return looped, jax.lax.ppermute(y, "device", [(device, (device + 1) % 8) for device in range(8)])

    on_devices = jax.shard_map(both, mesh=mesh, in_specs=P("device"), out_specs=(P(), P("device")), check_vma=False)
    given = jax.ShapeDtypeStruct((4096,), jnp.float32, sharding=jax.NamedSharding(mesh, P("device")))
    return jax.jit(on_devices).lower(given, given).compile()


@pytest.mark.usefixtures("as_a_trainer")  # nothing comes from JAX's own cache
def test_what_a_loaded_program_computes_is_unchanged() -> None:
    """It is the same program, to the last bit, and in this process every program is loaded in order."""
    compiled = _beside_a_loop()
    x = jax.device_put(np.linspace(0, 1, 4096, dtype=np.float32), compiled.input_shardings[0][0])
    kept, arguments, results = serialize_executable.serialize(compiled)
    loaded = serialize_executable.deserialize_and_load(kept, arguments, results, execution_devices=jax.devices())

    for one, other in zip(compiled(x, x), loaded(x, x), strict=True):
        np.testing.assert_array_equal(one, other)
    assert list(_unordered(parsed(_serialized(compiled))[1].result.sequence)) == [("collective", "while")]
    assert not list(_unordered(parsed(_serialized(loaded))[1].result.sequence)), (
        f"with JAX {jax.__version__} programs are no longer loaded by `Client.deserialize_executable`, or not in the "
        "form that shardwise.train.kept_order knows: mend trainer/shardwise/train/jax_private.py and kept_order.py"
    )
