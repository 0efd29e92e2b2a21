"""The state is made in its shards: no device, and no moment, ever holds a whole parameter that is split."""

import math
from collections.abc import Callable

import jax
import numpy as np
import pytest
from tests.train.buffers import largest_buffer_bytes
from tests.train.conftest import IN_FULL

from shardwise.train.state import Program, flat, unflat

MakeProgram = Callable[..., Program]
# Large enough that a whole parameter stands out from the program's small change.
SIZES = ("model.embed=128", "model.heads=4", "model.layers=4", "model.seqLen=64")


@pytest.mark.parametrize("mesh", [("mesh.tensor=2",), ("mesh.tensor=4",), (), ("mesh.tensor=2", "mesh.replica=2")])
def test_init_makes_shards_only(make_program: MakeProgram, mesh: tuple[str, ...]) -> None:
    """In the compiled init no buffer exceeds the largest shard, and temporaries stay below 2.5 times the shards."""
    program = make_program(*SIZES, *mesh)
    compiled = program.lower_init().compile()
    shards = [math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in flat(program.abstract()).values()]

    assert largest_buffer_bytes(compiled) <= max(shards)
    analysis = compiled.memory_analysis()
    assert analysis is not None
    assert analysis.temp_size_in_bytes <= 2.5 * sum(shards)


def test_the_measure_of_buffers_sees_a_whole_parameter(make_program: MakeProgram) -> None:
    """The proof above can fail: an init that is told to make whole arrays is caught by the same measure."""
    program = make_program(*SIZES, "mesh.tensor=2")
    shards = [math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in flat(program.abstract()).values()]
    with jax.set_mesh(program.layout.mesh):
        whole = jax.jit(program.init, out_shardings=program.layout.replicated).lower().compile()

    assert largest_buffer_bytes(whole) > max(shards)


def test_a_start_makes_no_key_and_traces_init_once(make_program: MakeProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes alone are asked for: a key that is real would be compiled, and init is traced for all that asks."""
    make = jax.random.key
    keys: list[jax.Array] = []

    def noted(seed: int) -> jax.Array:
        keys.append(make(seed))
        return keys[-1]

    monkeypatch.setattr(jax.random, "key", noted)
    program = make_program(*SIZES)
    program.abstract()
    program.shardings()
    program.abstract()

    assert [isinstance(key, jax.core.Tracer) for key in keys] == [True, True]  # the template's, and that of init


@pytest.mark.parametrize("mesh", [(), ("mesh.tensor=2",)])
def test_init_that_is_compiled_quickly_makes_the_same_bits(make_program: MakeProgram, mesh: tuple[str, ...]) -> None:
    """The state is what XLA makes when it may take its time."""
    program = make_program(*SIZES, *mesh)
    with jax.set_mesh(program.layout.mesh):
        at_leisure = (
            jax.jit(program.init, out_shardings=program.shardings(), compiler_options=IN_FULL).lower().compile()
        )

    assert jax.tree.all(jax.tree.map(np.array_equal, program.lower_init().compile()(), at_leisure()))


def test_moments_lie_where_their_parameters_lie(make_program: MakeProgram) -> None:
    """Every optimizer array of a parameter's shape has the parameter's sharding; counters are everywhere."""
    program = make_program("mesh.tensor=2")
    state = flat(program.abstract())
    moments = {path: leaf for path, leaf in state.items() if ".mu." in path or ".nu." in path}

    assert len(moments) == 2 * len(program.names)
    for path, leaf in moments.items():
        owner = "params." + path.split(".mu." if ".mu." in path else ".nu.")[1]
        assert leaf.sharding == state[owner].sharding, path
        assert leaf.shape == state[owner].shape, path
    assert state["step"].sharding.is_fully_replicated


def test_fsdp_divides_the_state_over_every_device(make_program: MakeProgram) -> None:
    """With FSDP and tensor, matrices are split over all 8 devices; without FSDP over tensor alone."""
    split = flat(make_program("mesh.tensor=2").abstract())["params.blocks.mlp.up.weight"]
    copied = flat(make_program("mesh.tensor=2", "mesh.fsdp=false").abstract())["params.blocks.mlp.up.weight"]

    assert math.prod(split.shape) == 8 * math.prod(split.sharding.shard_shape(split.shape))
    assert math.prod(copied.shape) == 2 * math.prod(copied.sharding.shard_shape(copied.shape))


def test_flat_and_back(make_program: MakeProgram) -> None:
    """A state survives being seen as a flat dict, and the paths are those that checkpoints hold."""
    program = make_program(num_devices=1)
    state = program.lower_init().compile()()
    leaves = flat(state)

    assert {"step", "params.token_embedding", "params.blocks.attention.qkv.weight"} <= leaves.keys()
    assert jax.tree.all(jax.tree.map(np.array_equal, unflat(program.abstract(), leaves), state))


def test_the_seed_decides_the_weights(make_program: MakeProgram) -> None:
    """Another seed gives other weights; what writes to the residual stream starts smaller by 1/sqrt(2 layers)."""
    first, second = (make_program(f"seed={seed}", *SIZES, num_devices=1).lower_init().compile()() for seed in (0, 1))
    params = {path: np.asarray(leaf) for path, leaf in first["params"].items()}

    assert not np.array_equal(params["token_embedding"], np.asarray(second["params"]["token_embedding"]))
    assert params["blocks.mlp.up.weight"].std() == pytest.approx(0.02, rel=0.02)
    assert params["blocks.mlp.down.weight"].std() == pytest.approx(0.02 / math.sqrt(8), rel=0.02)
    assert not params["blocks.attention.qkv.bias"].any()
