# %% [markdown]
# # Randomness: the same bits on any mesh
#
# Keys folded over mesh axes for dropout, and what happens if one is folded too many or too few; masks that belong to
# the sequence and not to the mesh, as the trainer makes them; and weights made in shards, where today's generator
# needs neither memory nor messages, and yesterday's needed both.
#
# All of JAX's randomness is a function of a key and a place, with no hidden state. On many devices two questions
# remain: shall two devices draw the same numbers or different ones, and what does it cost to draw a part of a large
# array?

# %%
from collections.abc import Callable
from functools import partial
from typing import Any

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry_2x32
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from matplotlib.figure import Figure

from shardwise.train.dropout import Dropout
from show import by_device, bytes_moved, mib, picture, table, temporaries
from show.refusals import refusal

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
Array = jax.Array


def mesh_of(*sizes: int) -> jax.sharding.Mesh:
    names = ("i", "j")[: len(sizes)]
    devices = jax.devices()[: int(np.prod(sizes))]
    return jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes), devices=devices)


# %% [markdown]
# ## Folding a key over axes
#
# Dropout sets random entries of an activation to zero. Here 8 sequences of 32 features lie on a 4 x 2 mesh: the
# sequences are split over i, and over j either every device holds all features, or each holds half of them. The key
# comes to all devices the same. `fold_in(key, axis_index(name))` makes a new key from a key and a number: it gives
# devices that differ in their place along the axis different keys, and devices that share it the same one.
#
# | folded over | masks | right when |
# | --- | --- | --- |
# | nothing | all alike: four blocks of sequences lose the same entries | never for dropout; for weights that all hold |
# | i | differ along i, alike along j | the two devices along j hold copies of the features |
# | i and j | all differ | the features are split over j |
#
# If a key is folded over j although the features are copies, the two copies are cut differently and are no copies any
# more. `shard_map` tracks which values may differ along which axes (`check_vma`), and refuses. With the check switched
# off, as older code often does, the result claims to be one array of which two devices hold different versions.

# %%
mesh = mesh_of(4, 2)
key = jax.random.key(0)


def folded(key: Array, names: tuple[str, ...]) -> Array:
    for name in names:
        key = jax.random.fold_in(key, jax.lax.axis_index(name))
    return key


def masks(names: tuple[str, ...], split: P, *, check: bool = True) -> Array:
    def mask(key: Array) -> Array:
        return jax.random.bernoulli(folded(key, names), 0.5, (2, 16 if "j" in split else 32))

    drawn: Array = jax.jit(jax.shard_map(mask, mesh=mesh, in_specs=P(), out_specs=split, check_vma=check))(key)
    return drawn


def pieces(array: Array) -> list[Any]:
    return [np.asarray(shard.data) for shard in array.addressable_shards]


nothing, over_i, over_both = masks((), P("i")), masks(("i",), P("i")), masks(("i", "j"), P("i", "j"))
broken = masks(("i", "j"), P("i"), check=False)
on_each = [pieces(array) for array in (nothing, over_i, over_both, broken)]
rows = [(f"device {d}", *("".join("_#"[int(bit)] for bit in held[d][0, :12]) for held in on_each)) for d in range(8)]
columns = ("", "over nothing", "over i", "over i and j", "i and j, as copies")
table("The first twelve entries on each device; # is kept", columns, rows)
refused = refusal(masks, ("i", "j"), P("i"))
print(refused[refused.find("out_specs is") :][:108], "...")
different = [len({mask.tobytes() for mask in held}) for held in on_each[:3]]
assert all(np.array_equal(on_each[1][d], on_each[1][d + 1]) for d in (0, 2, 4, 6)), "over i, copies along j stay copies"
assert different == [1, 4, 8], "there are as many masks as the axes have places over which the key is folded"
assert "replicated across mesh axis 'j'" in refused, "shard_map refuses copies that would differ"
assert not np.array_equal(*on_each[3][:2]), "unchecked, two copies of one array are different"

figure = Figure(figsize=(9, 2.4), layout="constrained")
titles = ("folded over nothing", "over i", "over i and j")
for axes, title, mask in zip(figure.subplots(1, 3), titles, (nothing, over_i, over_both), strict=True):
    axes.imshow(mask, cmap="Blues", vmax=1.6, aspect="auto")
    axes.hlines((1.5, 3.5, 5.5), -0.5, 31.5, "tab:red")
    if mask is over_both:
        axes.vlines(15.5, -0.5, 7.5, "tab:red")
    axes.set(title=title, xlabel="feature", ylabel="sequence", yticks=range(8))
picture(
    figure, "masks", "One mask under three foldings, with the devices' borders in red: repeated, then four, then eight."
)

# %% [markdown]
# ## A mask that belongs to the sequence
#
# A key that is folded over an axis knows the device, so the same batch loses other entries on four devices than on
# eight, and a job that moves to another mesh is another experiment. The remedy is to fold what the mask *belongs to*:
# the step, the number of the sequence in the whole batch, and the layer. Each device then makes the masks of the
# sequences that it happens to have. The trainer does this in `shardwise/train/dropout.py`, in code that does not
# know the mesh; the same written by hand inside a `shard_map` gives its bits on 1, 2, 4 and 8 devices.

# %%
STEP, LAYER = 3, 5
batch = jnp.ones((16, 32))


def by_place(x: Array) -> Array:
    return jnp.where(jax.random.bernoulli(folded(jax.random.key(0), ("i",)), 0.5, x.shape), x / 0.5, 0)


def by_sequence(x: Array) -> Array:
    def drop(sequence: Array, x: Array) -> Array:
        key = jax.random.key(0)
        for number in (jnp.int32(STEP), sequence, 3 * LAYER + 2):  # each layer has three places for dropout
            key = jax.random.fold_in(key, number)
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x / 0.5, 0)

    mine = jax.lax.axis_index("i") * len(x) + jnp.arange(len(x))
    return jax.vmap(drop)(mine, x)


def on(devices: int, drop: Callable[[Array], Array]) -> Any:
    mapped = jax.shard_map(drop, mesh=mesh_of(devices), in_specs=P("i"), out_specs=P("i"))
    return jax.device_get(jax.jit(mapped)(batch))


counts = (1, 2, 4, 8)
same = [[np.mean(on(n, drop) == on(1, drop)) for drop in (by_place, by_sequence)] for n in counts]
shares = [(n, f"{place:.0%}", f"{sequence:.0%}") for n, (place, sequence) in zip(counts, same, strict=True)]
table("Entries that are as on one device", ("devices", "folded over i", "by sequence"), shares)
trainer = Dropout.of(seed=0, step=jnp.int32(STEP), rows=jnp.arange(16), embed=0.0, residual=0.5)
assert all(place < 1 for place, _ in same[1:]), "folded over i, the mask changes with the number of devices"
assert all(sequence == 1 for _, sequence in same), "folded by sequence, the mask is the same on any mesh"
assert jnp.array_equal(on(8, by_sequence), trainer.drop(batch, jnp.int32(LAYER), "mlp")), "the trainer drops the same"

# %% [markdown]
# ## Weights made in shards
#
# It is often written that JAX's generator is sequential, that nobody can "fast-forward" it, and that therefore every
# device makes the *whole* of a sharded random matrix and keeps its part. The generator, Threefry, never was sequential:
# it is a function of (key, counter), made so that any counter can be taken alone
# ([Salmon and others, 2011](https://dl.acm.org/doi/10.1145/2063384.2063405)). What cost so much was how JAX counted: it
# cut the list of counters in two and paired the halves, so that the bits of one element depended on the length of the
# array and were computed together with those of an element far away. `jax_threefry_partitionable=False` still brings
# this back. Since JAX 0.5 the default is True: element n has the 64-bit counter n, whoever asks for it.
#
# First by hand: each device computes the counters of its own block from its place in the mesh, and the bits are those
# of `jax.random.bits`, without a message.

# %%
R, C = 512, 1024
whole_bytes = 4 * R * C


def block_by_hand(key: Array) -> Array:
    r, c = R // 4, C // 2
    row = jax.lax.axis_index("i") * r + jnp.arange(r)[:, None]
    column = jax.lax.axis_index("j") * c + jnp.arange(c)
    counters = (row * C + column).ravel().astype(jnp.uint32)
    high, low = jnp.split(threefry_2x32(jax.random.key_data(key), jnp.concatenate([0 * counters, counters])), 2)
    return (high ^ low).reshape(r, c)


by_hand = jax.jit(jax.shard_map(block_by_hand, mesh=mesh, in_specs=P(), out_specs=P("i", "j")))
assert jnp.array_equal(by_hand(key), jax.random.bits(key, (R, C))), "any block of the bits can be made alone"
assert bytes_moved(by_hand, key) == 0, "blocks made from their counters need no message"

# %% [markdown]
# Now the cost of a whole matrix in eight shards, and that it has the same bits on any mesh. "Work" is the count of
# operations of the compiled program on one device, over that of the same matrix made by one device alone.
#
# With the old counters and a matrix split by **rows**, each device needs what others computed: the halves are gathered,
# and for a moment every device holds more than a whole matrix.


# %%
def normal(key: Array) -> Array:
    return jax.random.normal(key, (R, C))


def made(function: Callable[[Array], Array], devices: int, *spec: str | None) -> Any:
    return jax.jit(function, out_shardings=NamedSharding(mesh_of(devices), P(*spec)))


def work(jitted: Any) -> float:
    return float(jitted.lower(key).compile().cost_analysis()["flops"])


def cost(function: Callable[[Array], Array], *spec: str | None, partitionable: bool) -> tuple[int, int, float]:
    with jax.threefry_partitionable(partitionable):
        alone, shards = made(function, 1), made(function, 8, *spec)
        bits = [np.asarray(weights(key)) for weights in (alone, shards, made(function, 4, None, "i"))]
        assert all(np.array_equal(bits[0], other) for other in bits), "each way gives the same bits on any mesh"
        return temporaries(shards, key), bytes_moved(shards, key), work(shards) / work(alone)


costs = {"old, by rows": cost(normal, "i", None, partitionable=False)}
memory, sent, share = costs["old, by rows"]
print(f"{mib(memory)} MiB needed, {sent:,} bytes sent, {share:.3f} of the work")
assert memory > whole_bytes, "the old counters by rows need a whole matrix on each device"
assert sent > whole_bytes, "the old counters by rows send more than a whole matrix"

# %% [markdown]
# Split by **columns**, nothing is sent and every device computes the bits of all: the story as it is told, and twice
# the matrix.

# %%
costs["old, by columns"] = cost(normal, None, "i", partitionable=False)
memory, sent, share = costs["old, by columns"]
print(f"{mib(memory)} MiB needed, {sent:,} bytes sent, {share:.3f} of the work")
assert share > 3 / 8, "the old counters by columns have each device compute the bits of all"
assert memory > 2 * whole_bytes, "the old counters by columns need two matrices on each device"

# %% [markdown]
# A known way round it is a key for each row, under `vmap`. It is said that the numbers then depend on the
# partitioning; they do not, they depend only on the number of rows. (Haliax had a helper for this, `generate_sharded`,
# which is gone.)


# %%
def key_per_row(key: Array) -> Array:
    return jax.vmap(partial(jax.random.normal, shape=(C,)))(jax.random.split(key, R))


costs["old, a key per row"] = cost(key_per_row, "i", None, partitionable=False)
gone = refusal(getattr, hax.random, "generate_sharded")
print(f"{mib(costs['old, a key per row'][0])} MiB needed; {gone}")
assert costs["old, a key per row"][0] < whole_bytes / 4, "a key for each row needs no whole matrix"
assert "AttributeError" in gone, "Haliax's generate_sharded is gone"

# %% [markdown]
# Today's counters need none of it: memory is three times the shard, not the matrix, the work is an eighth, and nothing
# is sent.

# %%
for name, spec in {"today, by rows": ("i", None), "today, by columns": (None, "i")}.items():
    costs[name] = memory, sent, share = cost(normal, *spec, partitionable=True)
    assert abs(memory - 3 * whole_bytes / 8) < 4096, "today's counters need three shards"
    assert sent == 0, "today's counters need no message"
    assert abs(share - 1 / 8) < 1e-4, "today each device does an eighth of the work"
rows = [(name, mib(memory), f"{sent:,}", f"{share:.3f}") for name, (memory, sent, share) in costs.items()]
table(f"Making {mib(whole_bytes)} MiB on 8 devices, on each", ("way", "MiB needed", "bytes sent", "work"), rows)

figure = Figure(figsize=(9, 2.6), layout="constrained")
left, right = figure.subplots(1, 2, sharey=True)
for axes, title, place in ((left, "MiB needed on each device", 0), (right, "MiB sent by each device", 1)):
    mibs = [measured[place] / 2**20 for measured in costs.values()]
    axes.barh(list(costs), mibs, color=3 * ["tab:orange"] + 2 * ["tab:blue"])
    axes.axvline(whole_bytes / 2**20, color="0.3", ls="--", label="the whole matrix")
    axes.set(title=title)
left.invert_yaxis()
right.legend()
picture(figure, "init", "What it costs to make one matrix in eight shards, with the old counters and with today's.")

# %% [markdown]
# What stays is an eighth of the matrix on each device, as the memory profile says.

# %%
before = by_device()
weights = made(normal, 8, "i", None)(key)
held_bytes = [after - old for after, old in zip(by_device(), before, strict=True)]
table("Bytes of the weights on each", [f"device {d}" for d in range(8)], [[f"{held:,}" for held in held_bytes]])
assert held_bytes == 8 * [whole_bytes // 8], "each device keeps an eighth of the weights"

# %% [markdown]
# One thing is the same under both ways to count: `fold_in`, which encrypts one number with a key. What is drawn from a
# key differs, and so do the keys of `split`, which are drawn too: to repeat an old run takes the old flag.

# %%
drawn = {}
for partitionable in (False, True):
    with jax.threefry_partitionable(partitionable):
        drawn[partitionable] = [jax.random.key_data(k) for k in (jax.random.fold_in(key, 1), jax.random.split(key))]
assert jnp.array_equal(drawn[False][0], drawn[True][0]), "fold_in gives the same key under both ways to count"
assert not jnp.array_equal(drawn[False][1], drawn[True][1]), "split gives other keys"

# %% [markdown]
# Next: [data parallelism by hand](05_data_parallel.md).
