"""Latent attention in generation: what its caches hold, and that each token is as in the whole forward pass."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis
from jax.sharding import Mesh
from tests.train.grids import layout_over
from tests.train.small_gpt import gpt2_config, program_of, random_params
from tests.train.test_attention import assert_close
from tests.train.test_latent_attention import FIELDS, LAYOUTS

from shardwise.train.caches import Cache, Ring
from shardwise.train.config import GptConfig
from shardwise.train.decoder import Decoder, layout_of
from shardwise.train.decoding import lower_tokens
from shardwise.train.decoding_arrays import BLOCK, num_slots
from shardwise.train.latent_attention import LatentAttention
from shardwise.train.layout import Layout, assemble, flatten
from shardwise.train.linear import Adapter, Linear

Array = jax.Array
NARROW = FIELDS["kv_rank"] + FIELDS["rotary_dim"]
BEFORE, POSITIONS = 6, 16


@pytest.mark.parametrize("adapters", [False, True], ids=["", "adapters"])
@pytest.mark.parametrize("q_rank", [0, 12])
@pytest.mark.parametrize("name", LAYOUTS)
def test_token_after_token_is_all_at_once(name: str, q_rank: int, adapters: bool) -> None:  # noqa: FBT001
    """Six positions at once and ten one by one add what all sixteen do, in float32 within 1e-5.

    With weights split over data too, and with adapters of every product, of keys and values as well.
    """
    config, layout = gpt2_config(**FIELDS, q_rank=q_rank), layout_over(**LAYOUTS[name])
    module = LatentAttention.init(config, key=jax.random.key(0))
    module = with_adapters(module) if adapters else module
    rng = np.random.default_rng(0)
    drawn = {path: jnp.asarray(rng.normal(0.5, 0.4, x.shape), jnp.float32) for path, x in flatten(module).items()}
    module = assemble(module, drawn)
    x = jnp.asarray(rng.normal(size=(4, POSITIONS, config.embed_size)), jnp.float32)
    with jax.set_mesh(layout.mesh):
        expected = jax.device_get(jax.jit(lambda x: added(module(entering(x, layout), None, LAYER, layout)))(x))
        found = jax.device_get(jax.jit(lambda x: one_by_one(config, module, x, layout))(x))
    assert np.abs(expected).max() > 1
    assert_close((found,), (expected,), 1e-5)


def test_a_token_leaves_one_narrow_vector_in_a_layer() -> None:
    """In bfloat16 two bytes a number, whole on both devices of tensor; no array of the loop has keys of all slots."""
    config = gpt2_config(**FIELDS, seq_len=48)
    program = program_of(config, devices=4, mesh={"tensor": 2}, precision={"compute": "bfloat16"})
    decoder = Decoder.of(program, random_params(program), 6)
    batch, _ = decoder.join(decoder.empty(), {row: [1, 2, 3] for row in range(6)}, None)
    assert len(batch.caches) == config.num_layers
    for array in jax.tree.leaves(batch.caches):
        assert {shard.data.nbytes for shard in array.addressable_shards} == {3 * 48 * NARROW * 2}
    assert len(jax.tree.leaves(batch.caches)) == config.num_layers

    lowered = lower_tokens(program, decoder.layout, 6).as_text()
    assert f"6x1x{num_slots(program)}x{NARROW}x" in lowered
    for width in (config.head_size, config.head_size - config.rotary_dim, config.value_size):
        assert f"6x{config.num_heads}x{num_slots(program)}x{width}x" not in lowered


def test_nothing_is_rounded_in_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model that trains with products in 8 bits: neither where weights are whole on a device nor where not."""
    program = program_of(gpt2_config(**FIELDS), devices=2, precision={"compute": "bfloat16", "products": "int8"})
    assert program.layout.form == "int8"
    stats = {"bytes_limit": 0}
    device = SimpleNamespace(memory_stats=lambda: stats)
    monkeypatch.setattr(Mesh, "local_devices", property(lambda _: [device]))
    for stats["bytes_limit"], is_split in ((1 << 40, False), (1, True)):
        layout = layout_of(program, 2)
        assert layout.form is None
        assert layout.fsdp is is_split


LAYER = jnp.int32(0)


def with_adapters(module: LatentAttention) -> LatentAttention:
    """The same with an adapter of each product, of rank 3 and scale 0.7."""
    Rank = Axis("rank", 3)

    def adapted(linear: Any) -> Any:
        if not isinstance(linear, Linear):
            return linear
        ins, outs = hax.axis.ensure_tuple(linear.In), hax.axis.ensure_tuple(linear.Out)
        a, b = hax.zeros((*ins, Rank)), hax.zeros(sorted((Rank, *outs), key=lambda axis: axis.name != "embed"))
        return replace(
            linear, adapter=Adapter(0.7, Linear(linear.In, Rank, a, None), Linear(Rank, linear.Out, b, None))
        )

    made: LatentAttention = jax.tree.map(adapted, module, is_leaf=lambda x: isinstance(x, Linear))
    return made


def one_by_one(config: GptConfig, module: LatentAttention, x: Array, layout: Layout) -> Array:
    """What the module adds at each position where only the first ones come together."""
    module, rows = module.for_generation(), x.shape[0]
    segments = jnp.ones((rows, BEFORE), jnp.int32)
    first, cache = module.first(entering(x[:, :BEFORE], layout), jnp.zeros(rows, jnp.int32), segments, LAYER, layout)
    out, recent = [added(first)], Cache(jnp.zeros((rows, 1, BLOCK, NARROW)))
    cache = jax.tree.map(lambda part: jnp.pad(part, ((0, 0), (0, 0), (0, POSITIONS - BEFORE), (0, 0))), cache)
    for number in range(POSITIONS - BEFORE):
        at = Ring(jnp.int32(BEFORE - 1), jnp.int32(number), jnp.full(rows, BEFORE + number))
        token = entering(x[:, BEFORE + number][:, None], layout)
        more, recent = module.following(token, at, cache, recent, LAYER, layout)
        out.append(added(more))
    assert recent.keys.shape == (rows, 1, BLOCK, config.kv_rank + config.rotary_dim)
    return jnp.concatenate(out, axis=1)


def entering(x: Array, layout: Layout) -> hax.NamedArray:
    """Of [batch, position, embed] what attention gets."""
    return layout.enter(hax.named(x, ("batch", "position", "embed")))


def added(out: hax.NamedArray) -> Array:
    """As [batch, position, embed]."""
    array: Array = out.rearrange(("batch", "position", "embed")).array
    return array
