# %% [markdown]
# # Moving data
#
# The six operations by which devices exchange what they hold, each drawn, and the bytes that each sends. Then what is
# built from them: a sum in two halves, a normalisation over devices, the matmul split in every way there is, and a sum
# over a named axis of a 2-D mesh.
#
# A *mesh* is the devices in a grid whose axes have names, and a *shard* is the part of an array that one device holds.
# JAX's `shard_map` runs a function once on every device, on that device's own shard alone
# ([its notebook](https://docs.jax.dev/en/latest/notebooks/shard_map.html)). The function reaches the other devices by
# *collectives*. Each collective names an axis of the mesh: the devices that differ only along that axis do it together.
# The bytes below are read from the compiled program, and counted as what a device sends when each passes what it has to
# its neighbour, in a *ring*, until all have it: that is the least that is possible.

# %%
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from matplotlib.figure import Figure

from show import bytes_moved, collectives, draw, draw_values, held, picture, table, temporaries

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
Array = jax.Array


def mesh_of(shape: tuple[int, ...], names: tuple[str, ...]) -> jax.sharding.Mesh:
    devices = jax.devices()[: int(np.prod(shape))]
    return jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(names), devices=devices)


# %% [markdown]
# ## Six operations
#
# Four of the eight devices, so that all of it fits into a picture, on one axis, `i`. Device *d* holds the row *10 d +
# column*. With *n* devices and *B* bytes on each before the operation, every device sends:
#
# - `psum`, an *all-reduce*: every device gets the sum of all. *2 (n-1)/n B*. `pmean` divides that sum by *n*, and
#   costs the same.
# - `all_gather`, an *all-gather*: every device gets all shards. *(n-1) B*, as each shard goes round the ring once.
# - `psum_scatter`, a *reduce-scatter*: every device gets its own *n*-th of the sum. *(n-1)/n B*.
# - `ppermute`: every device sends its shard to one other, here to the next. *B*.
# - `axis_index` tells a device its place. It moves nothing.

# %%
ring, n = mesh_of((4,), ("i",)), 4
rows, columns = P("i"), P(None, "i")
x = jax.device_put(jnp.arange(4) + 10 * jnp.arange(4)[:, None], NamedSharding(ring, rows))
B = x.nbytes // n
operations: dict[str, tuple[Callable[[Array], Any], P, float]] = {
    "psum": (lambda x: lax.psum(x, "i"), P(), 2 * (n - 1) / n * B),
    "pmean": (lambda x: lax.pmean(x, "i"), P(), 2 * (n - 1) / n * B),
    "all_gather": (lambda x: lax.all_gather(x, "i", tiled=True, to="invarying"), P(), (n - 1) * B),
    "psum_scatter": (lambda x: lax.psum_scatter(x, "i", scatter_dimension=1, tiled=True), columns, (n - 1) / n * B),
    "ppermute": (lambda x: lax.ppermute(x, "i", [(d, (d + 1) % n) for d in range(n)]), rows, B),
    "axis_index": (lambda x: lax.axis_index("i") + 0 * x[:, :1], rows, 0),
}
h = np.asarray(x)
by_hand = [h.sum(0), h.mean(0), h, h.sum(0), np.roll(h, 1, axis=0), np.arange(4)[:, None]]
after, sent = {"before": x}, []
for (name, (operation, out, predicted)), right in zip(operations.items(), by_hand, strict=True):
    program = jax.jit(jax.shard_map(operation, mesh=ring, in_specs=rows, out_specs=out))
    after[name] = program(x)
    moved = collectives(program, x)
    measured = sum(collective.sent_bytes for collective in moved)
    sent.append((name, moved[0].kind if moved else "nothing", f"{predicted:g}", f"{measured}"))
    assert np.array_equal(np.broadcast_to(right, after[name].shape), after[name]), f"{name} is what NumPy makes of it"
    assert measured == predicted, f"{name} sends what the formula of a ring says"
table(f"Bytes that each device sends; each holds {B}", ("operation", "compiled to", "predicted", "measured"), sent)


# %%
def colour(name: str, value: float) -> str:
    source = value if name == "axis_index" else value // 10
    return "0.45" if name in {"psum", "pmean", "psum_scatter"} else f"C{source:.0f}"


caption = "What each of four devices holds after each operation. A colour is the device it came from, grey all of them."
picture(draw_values(after, colour), "operations", caption)

# %% [markdown]
# Read the picture by colour. After `all_gather` every device has all four colours, after `ppermute` its neighbour's.
# Grey blocks are sums, in which no device can be told apart; `psum_scatter` leaves each device one column of them.
#
# Two traps. `psum_scatter` without `tiled=True` drops the dimension that it scatters, so a matrix comes back as a
# vector. And `shard_map` checks that what leaves as `P()` is really the same everywhere: a plain `all_gather` is not
# known to be, and older code switches the whole check off for it. Today `to="invarying"` says it.

# %%
shapes = {}
for tiled in (False, True):
    scatter = partial(lax.psum_scatter, axis_name="i", scatter_dimension=1, tiled=tiled)
    shapes[tiled] = jax.jit(jax.shard_map(scatter, mesh=ring, in_specs=rows, out_specs=rows))(x).shape
print("untiled:", shapes[False], "tiled:", shapes[True])
assert shapes[False] == (4,), "an untiled scatter drops a dimension"
assert shapes[True] == (4, 1), "a tiled one keeps it"

# %% [markdown]
# ## A sum is two halves
#
# On eight devices, `psum_scatter` leaves each an eighth of the sum; `all_gather` then brings the eighths together.
# That is `psum`: the same values and the same bytes, as this gather starts from an eighth on each device, not from *B*.
# It matters because the halves can be taken apart: [FSDP](06_fsdp.md) does the first half to gradients and the second
# to weights, and sends no more than data parallelism. The numbers below are whole, so every order of adding gives the
# same bits. In the table `P('i',)` is an array whose first dimension is split over `i`, `P(None, 'i')` one whose second
# is, and `P()` one that every device has whole.

# %%
line = mesh_of((8,), ("i",))
big = jax.device_put(jnp.arange(8.0 * 64 * 4096).reshape(512, 4096) % 1000, NamedSharding(line, rows))


def scattered(x: Array) -> Any:
    return lax.psum_scatter(x, "i", scatter_dimension=1, tiled=True)


def in_halves(x: Array) -> Any:
    return lax.all_gather(scattered(x), "i", axis=1, tiled=True, to="invarying")


ways = {"psum": (lambda x: lax.psum(x, "i"), P()), "scatter": (scattered, columns), "then gather": (in_halves, P())}
programs = {name: jax.jit(jax.shard_map(f, mesh=line, in_specs=rows, out_specs=out)) for name, (f, out) in ways.items()}
whole, half, both = (program(big) for program in programs.values())
sums = {name: bytes_moved(program, big) for name, program in programs.items()}
held(big=big, half=half, whole=whole)
table("Bytes that each device sends", tuple(sums), [[f"{number:,}" for number in sums.values()]])
assert np.array_equal(whole, both), "psum is psum_scatter and all_gather, to the bit"
assert sums["psum"] == sums["then gather"] == 2 * sums["scatter"], "and as many bytes, half of them in each half"

# %% [markdown]
# ## A normalisation over devices
#
# Rows of 64 numbers are split over two devices, on a mesh of 4 x 2, and each row is to get mean 0 and deviation 1. An
# often-copied version takes `pmean` of the *numbers*: column 0 is averaged with column 32, and so on. Of two numbers
# *a* and *b* the mean is halfway and the deviation half their distance, so *a* becomes +1 and *b* -1, or the other way
# round, whatever they were. The result is a matrix of signs. It still has mean 0 and deviation 1, which is all that
# version prints, so nothing looks wrong.
#
# Mended: first the mean over the device's own columns, then `pmean` of that. It also sends a 32nd of the bytes.

# %%
grid = mesh_of((4, 2), ("batch", "hidden"))
split = NamedSharding(grid, P("batch", "hidden"))
data = jax.device_put(5 + 3 * jax.random.normal(jax.random.key(0), (192, 64)), split)


def copied(x: Array) -> Any:
    mean = lax.pmean(x, "hidden")
    return (x - mean) / lax.pmean((x - mean) ** 2, "hidden") ** 0.5


def mended(x: Array) -> Any:
    mean = lax.pmean(x.mean(axis=1, keepdims=True), "hidden")
    variance = lax.pmean(((x - mean) ** 2).mean(axis=1, keepdims=True), "hidden")
    return (x - mean) / variance**0.5


plain = (data - data.mean(axis=1, keepdims=True)) / data.std(axis=1, keepdims=True)
normalised, found, cost = {}, [], {}
for name, function in {"as often copied": copied, "mended": mended}.items():
    program = jax.jit(jax.shard_map(function, mesh=grid, in_specs=split.spec, out_specs=split.spec))
    result, cost[name] = np.asarray(program(data)), bytes_moved(program, data)
    normalised[name] = result
    off = np.abs(result - plain).max()
    found.append((name, f"{abs(result.mean()):.2f}", f"{result.std():.2f}", f"{off:.1g}", f"{cost[name]:,}"))
table("Normalised over two devices", ("", "mean", "deviation", "off by at most", "bytes sent"), found)
signs, right = normalised.values()
assert np.allclose(np.abs(signs), 1, atol=1e-2), "the copied version turns every number into +1 or -1"
assert np.allclose(right, plain, atol=1e-5), "the mended one is the plain normalisation"
assert cost["as often copied"] == 32 * cost["mended"], "and sends one number a row instead of 32"

# %%
figure = Figure(figsize=(8.4, 2.4), layout="constrained")
for axes, (name, result) in zip(figure.subplots(1, 2), normalised.items(), strict=True):
    axes.hist(result.ravel(), bins=60, range=(-4, 4), color="tab:blue" if name == "mended" else "tab:red")
    axes.set(title=name, xlabel="normalised value", yticks=[])
picture(figure, "normalised", "Both have mean 0 and deviation 1. Left, nothing of the data is left but a sign.")

# %% [markdown]
# ## A matmul, split in every way
#
# `y = x @ w` has three dimensions: the rows of `x`, the columns of `w`, and K, over which it sums. Split the rows or
# the columns, and every device makes its part of `y` by itself. Split K, and every device has a whole `y` that lacks
# the others' terms: that must be summed, and a sum may stay scattered at half the price. The last way stores `w` split
# and gathers it when it is needed, which is FSDP in one line.
#
# The results agree to float32 rounding and not to the bit: sums of 512 terms are added in another order.

# %%
left, right = jax.random.normal(jax.random.key(1), (256, 512)), jax.random.normal(jax.random.key(2), (512, 1024))
answer = left @ right
Y, W, share = answer.nbytes, right.nbytes, 7 / 8
matmuls: dict[str, tuple[Callable[[Array, Array], Any], P, P, P, float]] = {
    "rows": (jnp.matmul, rows, P(), rows, 0),
    "columns": (jnp.matmul, P(), columns, columns, 0),
    "K, summed": (lambda x, w: lax.psum(x @ w, "i"), columns, rows, P(), 2 * share * Y),
    "K, scattered": (lambda x, w: scattered(x @ w), columns, rows, columns, share * Y),
    "rows, w gathered": (lambda x, w: x @ lax.all_gather(w, "i", tiled=True), rows, rows, rows, share * W),
}
costs = []
for name, (multiply, of_x, of_w, of_y, predicted) in matmuls.items():
    x, w = (jax.device_put(a, NamedSharding(line, spec)) for a, spec in ((left, of_x), (right, of_w)))
    program = jax.jit(jax.shard_map(multiply, mesh=line, in_specs=(of_x, of_w), out_specs=of_y))
    y, measured = program(x, w), bytes_moved(program, x, w)
    here = [a.addressable_shards[0].data.nbytes for a in (x, w, y)]
    numbers = (*here, temporaries(program, x, w), predicted, measured)
    costs.append((name, *(f"{number / 1024:,.0f}" for number in numbers)))
    assert jnp.allclose(y, answer, atol=1e-3), f"split by {name}, it is the same matmul"
    assert measured == predicted, f"split by {name}, it sends what the formula says"
    if name in {"rows", "columns", "K, summed"}:
        picture(draw(x=x, w=w, y=y), f"matmul-{name[0]}".lower(), f"Split by {name}: the devices that hold each block.")
table("KiB on each device", ("split by", "x", "w", "y", "temporaries", "sent: predicted", "measured"), costs)

# %% [markdown]
# No such function is needed where the compiler may choose: of arrays split by K, `jit` makes the same all-reduce by
# itself. (A text on `pjit` expects an all-gather and a reduce-scatter there.) The same text splits a 1024 x 512 matrix
# into four of 256 x 512, multiplies each by the vector of 512, and sums "the resulting 1024 vectors". But those are
# blocks of *rows*: each gives 256 numbers, to be laid end to end. What gives vectors of 1024 to be summed is four
# blocks of 1024 x 128, by K.

# %%
x, w = (jax.device_put(a, NamedSharding(line, spec)) for a, spec in ((left, columns), (right, rows)))
assert [one.kind for one in collectives(jax.jit(jnp.matmul), x, w)] == ["all-reduce"], "jit sums over K by itself"
M, v = np.arange(1024.0 * 512).reshape(1024, 512) % 7, np.arange(512.0) % 5
by_rows = [block @ v for block in np.split(M, 4, axis=0)]
by_K = [block @ piece for block, piece in zip(np.split(M, 4, axis=1), np.split(v, 4), strict=True)]  # noqa: N816 # K: a name
assert sum(by_rows).shape == (256,), "products of row blocks, added up, are a vector of the wrong length"
assert np.array_equal(np.concatenate(by_rows), M @ v), "products of row blocks are laid end to end"
assert np.array_equal(sum(by_K), M @ v), "products of K blocks are summed"

# %% [markdown]
# ## Two axes, and a sum over one of them by name
#
# On a mesh of 4 x 2, the batch is split over `batch` and the weights' columns over `hidden`. Each device multiplies its
# rows by its columns; then the mean over the batch sums over `batch` alone: the four devices of a column of the mesh,
# 64 numbers each. What `hidden` has split stays split.
#
# Names do not need devices. `vmap` with an `axis_name` lets the same `psum` run over an axis of the *array*, which is
# what the retired `xmap` was for; `jit` then puts it on the mesh and compiles to the same all-reduce. An old example of
# it asks for the sum *with* the batch axis (`out_axes`), and so gets the one row as often as the batch is long, here
# `repeated`. It also divides by 8096 where its batch is 16,384, so its mean is twice the mean.

# %%
batch, w = jax.random.normal(jax.random.key(3), (1024, 64)), jax.random.normal(jax.random.key(4), (64, 128))
specs = (P("batch"), P(None, "hidden"))
x, w = (jax.device_put(a, NamedSharding(grid, spec)) for a, spec in zip((batch, w), specs, strict=True))


def mean_over_batch(x: Array, w: Array) -> Any:
    return lax.psum(jnp.sum(x @ w, axis=0), "batch") / 1024


def row_mean(row: Array, w: Array) -> Any:
    return lax.psum(row @ w, "batch") / 1024


by_device = jax.jit(jax.shard_map(mean_over_batch, mesh=grid, in_specs=specs, out_specs=P("hidden")))
by_name = jax.jit(jax.vmap(row_mean, in_axes=(0, None), out_axes=None, axis_name="batch"))
repeated = jax.vmap(row_mean, in_axes=(0, None), axis_name="batch")(x, w)
mean = by_device(x, w)
held(x=x, w=w, mean=mean, repeated=repeated)
assert jnp.allclose(mean, (batch @ w).mean(0), atol=1e-5), "the sum over the named axis is the mean over the batch"
assert jnp.allclose(by_name(x, w), mean, atol=1e-5), "a name that is no axis of the mesh gives the same"
assert bytes_moved(by_device, x, w) == bytes_moved(by_name, x, w) == 2 * 3 / 4 * 64 * 4, "it sends 64 numbers a device"
assert bool((repeated == repeated[0]).all()), "kept with the batch axis, the mean is one row, again and again"
picture(draw(x=x, w=w, mean=mean), "two-axes", "Split over two axes: each block names the devices that hold it.")

# %% [markdown]
# So every collective is one of these few, over one axis, and what it sends follows from the shapes alone. The tours of
# data parallelism, FSDP and tensor parallelism put nothing else together.
