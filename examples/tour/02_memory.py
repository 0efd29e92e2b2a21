# %% [markdown]
# # Memory you can see
#
# What each device holds, read from the runtime's own profile of living buffers, beside what a program needs only while
# it runs. Then three questions that the tables answer: where weights should be born, how much memory a gradient adds,
# and which line allocated what is still alive.
#
# There are two accounts of memory, and they count different things:
#
# - **Living buffers** are arrays that some Python name still reaches. JAX can write them down as a *device memory
#   profile*: for each device and each stack of calls, the bytes that were made there and are still alive
#   ([JAX on profiling device memory](https://docs.jax.dev/en/latest/device_memory_profiling.html)). `by_device()` sums
#   it by device. It counts buffers and not what an allocator has reserved, so no setting of the allocator is needed.
# - **Temporaries** are what a compiled program needs between its arguments and its results. They are gone when it
#   returns, so no profile shows them; the compiler's own `memory_analysis` does.
#
# A step that does not fit dies of the sum of both.

# %%
import resource
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import psutil
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from matplotlib.figure import Figure

from show import by_device, bytes_moved, call_graph, collectives, draw_calls, held, mib, picture, table, temporaries

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
Array = jax.Array

B, E, H = 2048, 512, 1024
mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
everywhere, by_rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))

# %% [markdown]
# ## Where weights are born
#
# Data parallelism wants the same weights on all eight devices. There are two ways to get there.
#
# **Born in place.** `jit` with `out_shardings` runs the initializer on every device, and each keeps its own result.
# Nothing is copied, and no device ever holds more than its part.
#
# **Copied from device 0.** Without a sharding an array is made on device 0. The way of many older notebooks is to stack
# eight copies there and to let the parallel call spread them: the one weight, the stack of eight, and device 0's own
# copy make ten weights on a device that needs one.


# %%
def make_weights() -> Array:
    return jax.random.normal(jax.random.key(0), (E, H))


w = jax.jit(make_weights, out_shardings=everywhere)()
born = by_device()

first = make_weights()
stack = jnp.stack([first] * 8)
copies = jax.device_put(stack, by_rows)
copied = [now - before for now, before in zip(by_device(), born, strict=True)]
assert all(np.array_equal(shard.data[0], w) for shard in copies.addressable_shards), "both ways give the same bits"
del first, stack
left = [now - before for now, before in zip(by_device(), born, strict=True)]

ways = {"born in place": born, "copied from device 0": copied, "after `del`": left}
table(
    "MiB of weights on each device",
    ("device", *ways),
    [(device, *(mib(way[device]) for way in ways.values())) for device in range(8)],
)
assert born == [w.nbytes] * 8, "weights born in place take one weight on every device and nothing more"
assert copied == [10 * w.nbytes] + [w.nbytes] * 7, "copying from device 0 takes ten weights there"
assert left == [w.nbytes] * 8, "the stack stays on device 0 until the last name for it is gone"
del copies

# %%
figure = Figure(figsize=(8.4, 2.7), layout="constrained")
for place, (way, held_bytes) in enumerate(ways.items()):
    axes = figure.add_subplot(1, 3, place + 1)
    axes.bar(range(8), [n / 2**20 for n in held_bytes], color=["tab:red", *["tab:blue"] * 7])
    axes.axhline(w.nbytes / 2**20, color="0.4", lw=1, ls="--")
    axes.set(title=way.replace("`", ""), xlabel="device", xticks=range(8), ylim=(0, 22))
    axes.set_ylabel("MiB" if place == 0 else "")
picture(figure, "born-or-copied", "Weights on each device. Dashed: one weight, all that a device needs.")

# %% [markdown]
# A common remark on the second way is that the total is the same, only badly spread. Its table was taken after the
# call, when the spread copies had already been freed. Taken while they live, the totals above are 16 MiB and 34 MiB.
#
# And a caution about the first way. Older notebooks make weights in place by mapping the initializer over a *key per
# device*. That gives eight different weights: eight models, not one model eight times.

# %%
keys = jax.random.split(jax.random.key(0), 8)
eight = jax.jit(jax.vmap(lambda key: jax.random.normal(key, (E, H))), out_shardings=by_rows)(keys)
assert len({np.asarray(one).tobytes() for one in eight}) == 8, "a key per device makes eight different models"
del keys, eight
assert len({np.asarray(shard.data).tobytes() for shard in w.addressable_shards}) == 1, "one key makes one model"

# %% [markdown]
# ## A matmul, and nothing moves
#
# Now a batch, split by rows. Each device multiplies its 256 rows by its own copy of the weights; the compiled program
# has no collective in it, and the profile has exactly the three arrays' shards.

# %%
x = jax.jit(lambda: jax.random.normal(jax.random.key(1), (B, E)), out_shardings=by_rows)()
matmul = jax.jit(jnp.matmul)
y = matmul(x, w)
held(x=x, w=w, y=y)

predicted = x.nbytes // 8 + w.nbytes + y.nbytes // 8
table("MiB on each device", ("predicted", "profile"), [(mib(predicted), ", ".join(map(mib, by_device())))])
assert by_device() == [predicted] * 8, "the profile is exactly the shards of x, w and y"
assert collectives(matmul, x, w) == [], "a matmul split by rows moves nothing"
del y

# %% [markdown]
# ## What a gradient adds
#
# A common claim is that taking gradients doubles the memory. It does so only if there is one for every argument:
# `value_and_grad` differentiates its *first* argument unless it is told more, here the input and not the weights. Here
# are both. A gradient has the shape, the type and the sharding of what it belongs to, which predicts the results to the
# byte. The gradients do not lie on one device either: the tables are the same on all eight.


# %%
def loss(x: Array, w: Array) -> Array:
    return jnp.mean(jnp.tanh(x @ w))


arguments = x.nbytes // 8 + w.nbytes
programs = {
    "the loss": (jax.jit(loss), 4),
    "and the gradient of x": (jax.jit(jax.value_and_grad(loss)), 4 + x.nbytes // 8),
    "and those of x and w": (jax.jit(jax.value_and_grad(loss, argnums=(0, 1))), 4 + x.nbytes // 8 + w.nbytes),
}
added, scratch, costs = [], [], []
for name, (program, predicted) in programs.items():
    before = by_device()
    results = program(x, w)
    added.append([now - then for now, then in zip(by_device(), before, strict=True)])
    del results
    scratch.append(temporaries(program, x, w))
    numbers = (arguments, predicted, added[-1][0], scratch[-1], bytes_moved(program, x, w))
    costs.append((name, *map(mib, numbers)))
    assert added[-1] == [predicted] * 8, f"{name}: the results take what their shapes say, on every device"
table("MiB on each device", ("", "arguments", "results: predicted", "profile", "temporaries", "sent"), costs)
assert added[1][0] - 4 == arguments // 5, "the gradient of the first argument alone adds a fifth, not a second copy"
assert added[2][0] - 4 == arguments, "gradients of both arguments double what lives"
assert scratch[1] >= B * H * 4 // 8, "the backward pass keeps the tanh of every element"

# %%
figure = Figure(figsize=(8.4, 2.2), layout="constrained")
axes = figure.add_subplot()
begin = np.zeros(3)
for part, sizes in {"arguments": [arguments] * 3, "results": [one[0] for one in added], "temporaries": scratch}.items():
    axes.barh(list(programs), np.array(sizes) / 2**20, left=begin, label=part, edgecolor="white")
    begin += np.array(sizes) / 2**20
axes.set(xlabel="MiB on each device", xlim=(0, 9.5))
axes.invert_yaxis()
axes.legend(fontsize=8, loc="upper right")
picture(figure, "gradient", "What is alive while each program runs. Only the blue and orange parts are in a profile.")

# %% [markdown]
# Two things that the profile alone would not say. The backward pass needs the tanh of every element, so the
# temporaries grow by the very array that the loss by itself never had to write down whole. And the gradient of `w`
# has to be summed over the devices, since each has seen other rows: that is the only thing here that moves.
#
# ## Resident memory, before and after
#
# The operating system has an account as well: the *resident set*, the memory that the process has touched and still
# has. Simulated devices have no memory of their own, so their arrays lie in it. It knows neither devices nor arrays,
# which makes it the roughest of the three.
#
# An often-copied cell prints `ru_maxrss` before and after a gradient. That number is the *peak* since the process
# began. It never falls, and here it is set before the first call, by the float64 array of NumPy from which JAX makes
# its float32 one. So the cell prints the same number twice, whatever the gradient costs. Below are the living buffers,
# the resident set and its peak, after each thing that happens. The gradient by the vector is 400 bytes; the one by both
# arguments adds a second matrix. (Threads of the runtime give memory back in their own time, so each reading of the
# resident set waits a little for what is predicted: one more reason to read the profile instead.)


# %%
def grown() -> int:
    return process.memory_info().rss - start[1]


def note(event: str, predicted: int) -> None:
    until, unit = time.monotonic() + 3, 1 if sys.platform == "darwin" else 1024
    while time.monotonic() < until and abs(grown() - predicted) > 0.05 * size:
        time.sleep(0.02)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - start[1]
    notes.append((event, (sum(by_device()) - start[0], predicted, grown(), peak)))


def total(v: Array, A: Array) -> Array:
    return jnp.sum(jnp.tanh(A @ v))


v, shape = jnp.ones(100), jax.ShapeDtypeStruct((400_000, 100), jnp.float32)
by_vector = jax.jit(jax.grad(total)).lower(v, shape).compile()
by_both = jax.jit(jax.grad(total, argnums=(0, 1))).lower(v, shape).compile()
process, size = psutil.Process(), 4 * shape.size
start = (sum(by_device()), process.memory_info().rss)
notes: list[tuple[str, tuple[int, int, int, int]]] = []

A = jax.block_until_ready(jnp.asarray(np.ones(shape.shape)))
float(A[0, 0])  # a call gives JAX the occasion to let go of NumPy's array
note("A, made from float64", size)
one = jax.block_until_ready(by_vector(v, A))
note("gradient by v", size)
both = jax.block_until_ready(by_both(v, A))
note("gradients by v and A", 2 * size)
del one, both, A
note("all gone", 0)
table(
    "MiB of the process, since before A",
    ("after", "living buffers", "resident: predicted", "measured", "peak"),
    [(event, *(f"{number / 2**20:.0f}" for number in numbers)) for event, numbers in notes],
)
living, _, resident, peaks = zip(*(numbers for _, numbers in notes), strict=True)
assert abs(resident[1] - resident[0]) < 0.1 * size, "a gradient by the vector alone adds next to nothing"
assert abs(resident[2] - resident[1] - size) < 0.1 * size, "the gradient by both adds a second matrix"
assert 2.5 * size < peaks[0] == peaks[-1], "the peak is the float64 array's, whatever the gradients cost"
assert living[3] == 0, "nothing reaches the arrays any more"
del x, w, v

# %% [markdown]
# ## Whose bytes are these?
#
# The profile also knows *where* each living buffer was made, as a stack of calls. The usual picture of it needs Go's
# `pprof` and Graphviz; both are only readers of a small file that thirty lines of Python read as well
# (`show/profile.py`). Below, `pair` makes two results, and a loop that seems to keep the newest keeps one of them every
# time, in a list that nobody looks at. A box says what its own lines made and what came from its calls.


# %%
def halved(seed: Array) -> Array:
    return jnp.tile(seed, 10) * 0.5


def pair(seed: Array) -> tuple[Array, Array]:
    return halved(seed), jnp.tile(seed, 10) + 1


def moments(weights: Array) -> tuple[Array, Array]:
    return jnp.zeros_like(weights), jnp.zeros_like(weights)


def train() -> tuple[Array, tuple[Array, Array]]:
    seed = jax.random.normal(jax.random.key(42), (1024, 256))
    newest = seed
    for _ in range(3):
        newest, more = pair(seed)
        HISTORY.append(more)
    return newest, moments(newest)


HISTORY: list[Array] = []
newest, state = train()
graph = call_graph()
picture(draw_calls(graph), "who-made-it", "Living bytes by the function that made them.")
assert sum(graph.own_bytes.values()) == sum(by_device()), "the graph accounts for every living byte"
assert graph.own_bytes["halved"] == newest.nbytes, "of three halves the newest is alive, and no tile"
assert graph.own_bytes["pair"] == 3 * newest.nbytes, "the list keeps all three of the others"
HISTORY.clear()
assert sum(by_device()) == 3 * newest.nbytes, "without the list, only what train returned is alive"

# %% [markdown]
# The seed of `train` is gone with the function that made it, and so are the six tiles, which lived for one line each: a
# profile shows what is alive when it is taken, not what it took to get there. The list shows as what it is, 30 of 60
# MiB. One `clear`, and they are gone.
#
# So: births in place, gradients counted by argument, living buffers by device, temporaries from the compiler. The next
# tours use these tables for everything that they claim.
