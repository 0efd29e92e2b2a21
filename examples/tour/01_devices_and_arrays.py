# %% [markdown]
# # Devices and arrays: who holds which part
#
# One array over eight devices: meshes and shardings with a drawing of every shard; where the result of an operation
# lives and what it moved; and one function under `vmap`, `jit`, `pmap` and `shard_map`, read as programs.
#
# The devices are simulated: JAX makes eight of this machine's processor, each with buffers of its own. What each one
# holds and what moves between them is real; only the speed is not. Their number is set before the first array is made,
# in the configuration as here, or by `XLA_FLAGS=--xla_force_host_platform_device_count=8`. Later it is refused.

# %%
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, jaxprs_in_params
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from show import by_device, bytes_moved, collectives, draw, held, picture, table
from show.refusals import refusal

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
Array = jax.Array
print(*jax.devices())
late = refusal(jax.config.update, "jax_num_cpu_devices", 4)
print(late)
assert "before backends are initialized" in late, "the number of devices is set before the first array is made"

# %% [markdown]
# ## A mesh, and one array on it
#
# A *mesh* is a grid of devices whose axes have names. A `PartitionSpec`, written `P`, names for each dimension of an
# array the mesh axes that split it; a mesh and a `P` together are a `NamedSharding`. A dimension without a name is not
# split, and along a mesh axis that the `P` leaves out every device holds a copy. So an array of B bytes takes B divided
# by the sizes of the named axes on each device: predicted here, and read from the memory profile of each device.
#
# In the picture a block has the colour of the first device that holds it, and the numbers of all that do. `P("j", "i")`
# has the same two names as `P("i", "j")` in the other order: as many bytes, but other blocks on other devices.

# %%
mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto, AxisType.Auto))


def put(x: Any, *spec: str | tuple[str, ...] | None) -> Array:
    placed: Array = jax.device_put(x, NamedSharding(mesh, P(*spec)))
    return placed


whole = np.arange(8.0 * 1024, dtype=np.float32).reshape(8, 1024)
arrays, rows = {}, []
for spec, parts in ((P(), 1), (P("i"), 4), (P(None, "j"), 2), (P("i", "j"), 8), (P("j", "i"), 8)):
    before = by_device()
    arrays[str(spec)] = put(whole, *spec)
    measured = {after - old for after, old in zip(by_device(), before, strict=True)}
    rows.append((spec, parts, whole.nbytes // parts, *measured))
    assert measured == {whole.nbytes // parts}, "each device holds the bytes over the sizes of the named axes"
table(f"Bytes on each device of {whole.nbytes} bytes", ("sharding", "parts", "predicted", "measured"), rows)
picture(draw(**arrays), "shardings", "One array under five shardings: each block with the devices that hold it.")

# %% [markdown]
# A shard is not an array: `addressable_shards` lists (device, index, data), and the functions of `jax.numpy` refuse the
# shard itself. Its `data` is an ordinary array on one device, and what is made of it stays there.

# %%
shard = arrays[str(P("i"))].addressable_shards[5]
print(f"shard 5: {shard.device}, rows {shard.index[0]}, copy {shard.replica_id}, data {shard.data.shape}")
refused, sine = refusal(jnp.sin, shard), jnp.sin(shard.data)
print("jnp.sin of the shard:", refused.partition(" to <")[0], "...")
assert "TypeError" in refused, "jax.numpy takes arrays and no shards"
assert sine.device == shard.device, "what is made of a shard's data stays on the shard's device"

# %% [markdown]
# ## Where a result lives
#
# Computation follows the data: an operation on sharded arrays is compiled for all devices of their mesh, and each of
# them computes its own part. A *collective* is an operation in which devices exchange data. What is computed element by
# element needs none, and the result is split as its input was. A common version of this lesson divides a sharded result
# by two and finds it back on device 0; today it stays where it is, and there is nothing to avoid.
#
# Rows of x times columns of w need no exchange either: each device multiplies what it has, and the result is split
# over both axes. Only a sum over a split dimension moves anything: each device adds up its part, then an all-reduce
# adds the parts. In a ring of n devices each sends at least 2(n-1)/n of the B bytes of its result: 3/2 B for n = 4.
#
# Another explanation that is often given splits a 1024 x 512 matrix into four of 256 x 512, multiplies each with a
# vector, and adds the four results. That cannot be: four blocks of rows make four different parts of the result, and
# nothing is added. It is the four blocks of *columns*, each with its part of the vector, whose results are added.
#
# All numbers are whole and small enough for float32 to add them exactly in any order, so each result has the very bits
# that one device computes.

# %%
whole_numbers = partial(jax.random.randint, minval=-8, maxval=8)
x, w, b, m, v = (
    whole_numbers(jax.random.key(i), shape).astype(jnp.float32)
    for i, shape in enumerate(((192, 64), (64, 128), (128,), (1024, 512), (512,)))
)


def affine(x: Array, w: Array, b: Array) -> Array:
    return x @ w + b


operations: dict[str, tuple[Callable[..., Array], tuple[Array, ...]]] = {
    "x / 2, x by rows": (lambda x: x / 2, (put(x, "i"),)),
    "tanh(x), x by rows": (jnp.tanh, (put(x, "i"),)),
    "x.T, x by rows": (jnp.transpose, (put(x, "i"),)),
    "x by rows @ w by columns + b": (affine, (put(x, "i"), put(w, None, "j"), put(b, "j"))),
    "m by rows @ v": (jnp.matmul, (put(m, "i"), put(v))),
    "m by columns @ v by parts": (jnp.matmul, (put(m, None, "i"), put(v, "i"))),
    "sum of each row of x": (partial(jnp.sum, axis=1), (put(x, "i"),)),
    "sum of each column of x": (partial(jnp.sum, axis=0), (put(x, "i"),)),
}
results: dict[str, Any] = {}
rows = []
for name, (operation, args) in operations.items():
    results[name] = result = operation(*args)
    used = collectives(jax.jit(operation), *args)
    own_bytes = result.addressable_shards[0].data.nbytes
    predicted = 3 * own_bytes // 2 if name in ("m by columns @ v by parts", "sum of each column of x") else 0
    moved = bytes_moved(jax.jit(operation), *args)
    rows.append((name, results[name].sharding.spec, " ".join(c.kind for c in used) or "none", predicted, moved))
    assert moved == predicted, "only a sum over a split dimension moves bytes, 3/2 of its result"
    assert jnp.array_equal(result, operation(*map(jax.device_get, args))), "each result has the bits of one device"
table("Where results live", ("operation", "result split as", "collective", "bytes, predicted", "sent"), rows)
product = results["x by rows @ w by columns + b"]
caption = "Rows of x times columns of w: each device holds all that its own block of the result needs."
picture(draw(x=put(x, "i"), w=put(w, None, "j"), result=product), "product", caption)
assert results["x / 2, x by rows"].sharding.spec == P("i"), "half of a sharded array stays where the array is"
assert product.sharding.spec == P("i", "j"), "rows times columns is split over both axes"
assert results["m by rows @ v"].sharding.spec == P("i"), "blocks of rows are parts of the result, nothing is added"
assert results["m by columns @ v by parts"].sharding.spec == P(), "blocks of columns are added, on every device"

# %% [markdown]
# What if two arrays are in different places? An array that nobody placed, such as `jnp.ones(8)`, is *uncommitted*: it
# follows the others. One that was placed on purpose stays, and JAX refuses to guess which of two places is meant.
#
# All this was with `Auto` axes: the compiler chooses each result's sharding. The default of `jax.make_mesh` today is
# `Explicit` axes, where the sharding is part of the type (`float32[8,16@i]`: dimension 1 is split over i) and is worked
# out while tracing. There a product over a split dimension is refused until the program says where its result shall
# live. ([JAX on explicit sharding](https://docs.jax.dev/en/latest/notebooks/explicit-sharding.html))

# %%
placed, here = put(np.ones(8, np.float32), "i"), jax.device_put(jnp.ones(8), jax.devices()[0])
followed, mixed = placed + jnp.ones(8), refusal(jnp.add, placed, here)
print(mixed[:70], "...")
assert followed.sharding == placed.sharding, "what nobody placed follows"
assert "incompatible devices" in mixed, "arrays that were placed on different devices do not mix"

explicit = jax.make_mesh((4, 2), ("i", "j"))
left = jax.device_put(np.ones((8, 16), np.float32), NamedSharding(explicit, P(None, "i")))
right = jax.device_put(np.ones((16, 8), np.float32), NamedSharding(explicit, P("i", None)))
unsaid = refusal(jnp.dot, left, right)
copies, split = (jnp.dot(left, right, out_sharding=NamedSharding(explicit, spec)) for spec in (P(), P("i")))
print(f"{jax.typeof(left)} @ {jax.typeof(right)}: {unsaid[:60]} ...")
print("with out_sharding:", jax.typeof(copies), jax.typeof(split))
assert "ambiguous" in unsaid, "with explicit axes a sum over a split dimension must say where to"
assert jnp.array_equal(copies, split), "wherever the result lives, it is the same"

# %% [markdown]
# ## One function, four programs
#
# `f` multiplies two matrices, and there are eight pairs, one on each device. `vmap` writes the whole batch as one
# product, which the compiler splits as the data is split; `jit` makes one call of that. `shard_map` runs f on each
# device's own block, so f sees (1, 2, 3); `pmap` does too but takes the leading dimension away, so f sees (2, 3). Older
# pages show `pmap` as a primitive of its own, `xla_pmap`, and results with a `PmapSharding`. Both are gone: today's
# `pmap` *is* a `shard_map` in a `jit`, and its results have a `NamedSharding` like any other.

# %%
seen: list[tuple[int, ...]] = []


def f(x: Array, y: Array) -> Array:
    seen.append(x.shape)
    return jnp.tanh(x @ y)


def primitives(jaxpr: Jaxpr) -> Iterator[str]:
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in jaxprs_in_params(equation.params):
            yield from primitives(inner)


each = ("i", "j")
xs, ys = (put(jax.random.normal(jax.random.key(i), shape), each) for i, shape in enumerate(((8, 2, 3), (8, 3, 4))))
ways: dict[str, Callable[..., Array]] = {
    "vmap": jax.vmap(f),
    "jit": jax.jit(jax.vmap(f)),
    "shard_map": jax.shard_map(f, mesh=mesh, in_specs=P(each), out_specs=P(each)),
    "pmap": jax.pmap(f),
}
outs, rows, programs = {}, [], {}
for name, way in ways.items():
    seen.clear()
    outs[name] = way(xs, ys)
    programs[name] = " ".join(primitives(jax.make_jaxpr(way)(xs, ys).jaxpr))
    rows.append((name, seen[0], programs[name], len(collectives(jax.jit(way), xs, ys))))
    assert jnp.array_equal(outs[name], outs["vmap"]), "vmap, jit, shard_map and pmap compute the same bits"
    assert rows[-1][-1] == 0, "a function of each pair moves nothing"
table("One function, four ways", ("way", "f sees", "program", "collectives"), rows)
print(jax.make_jaxpr(ways["pmap"])(xs, ys))
print(outs["pmap"].sharding)
halved, gone = outs["pmap"] / 2, refusal(getattr, jax.sharding, "PmapSharding")
print(gone)
assert programs["pmap"].startswith("jit shard_map squeeze"), "today's pmap is a shard_map in a jit"
assert halved.sharding == outs["pmap"].sharding, "a result of pmap stays sharded when it is halved"
assert "AttributeError" in gone, "PmapSharding is gone"

# %% [markdown]
# ## A matrix made on each device
#
# Mapping over eight keys makes a matrix on each device, multiplies it there, and adds it up there. The matrices are
# never in one place and nothing is exchanged; the host reads one number of 4 bytes from each device. `pmap` takes as
# many devices as there are rows: seven rows use seven devices, nine are refused here.

# %%
keys = jax.random.split(jax.random.key(0), 8)
before = by_device()
matrices = jax.pmap(partial(jax.random.normal, shape=(128, 256)))(keys)
made = [after - old for after, old in zip(by_device(), before, strict=True)]
square_and_sum = jax.pmap(lambda matrix: jnp.sum(matrix @ matrix.T))
sums = square_and_sum(matrices)
held(matrices=matrices, sums=sums)
table("Bytes that making them added", [f"device {i}" for i in range(8)], [made])
assert made == 8 * [128 * 256 * 4], "each device makes its own matrix and no other"
assert collectives(jax.jit(square_and_sum), matrices) == [], "local products and sums move nothing"
assert {one.data.nbytes for one in sums.addressable_shards} == {4}, "the host reads four bytes from each device"
nine = refusal(jax.pmap(jnp.square), jnp.arange(9))
print("seven rows:", len(jax.pmap(jnp.square)(jnp.arange(7)).sharding.device_set), "devices; nine:", nine[:60], "...")
assert "none" not in nine[:4], "pmap needs a device for each row"

# %% [markdown]
# Next: [what the devices' memory holds](02_memory.md) at each moment, and then [what moves](03_moving_data.md).
