# %% [markdown]
# # Tensor parallel by hand
#
# One transformer layer is cut into eight, so that each device holds an eighth of every matrix and works on an eighth of
# the heads: one sum over devices for each pair of matrices, with the answer and the gradients of one device.
#
# In [FSDP](06_fsdp.md) a device still computes with whole matrices, and gathers them first. Here it never has more than
# its own shard of a matrix, and computes with that alone: no weights move, but activations do. All devices see the same
# tokens. The idea is that of [Megatron-LM](https://arxiv.org/abs/1909.08053). The mesh has one axis, `tensor`, of eight
# devices; the layer has 128 tokens of width 1024, eight heads, and a hidden layer four times as wide.

# %%
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from matplotlib.figure import Figure

import show
from show.refusals import refusal

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

Array = jax.Array
Weights = dict[str, Array]
Step = Callable[[Array], Array]
COLUMNS, ROWS = P(None, "tensor"), P("tensor", None)
MATRICES = {"q": COLUMNS, "k": COLUMNS, "v": COLUMNS, "proj": ROWS, "up": COLUMNS, "down": ROWS}
SPLIT = MATRICES | {"gain": P(), "bias": P()}
mesh = jax.make_mesh((8,), ("tensor",), axis_types=(AxisType.Auto,))


def weights(key: Array, width: int) -> Weights:
    keys = dict(zip(SPLIT, jax.random.split(key, len(SPLIT)), strict=True))
    shapes = dict.fromkeys(MATRICES, (width, width)) | {"up": (width, 4 * width), "down": (4 * width, width)}
    w = {name: jax.random.normal(keys[name], shape) / shape[0] ** 0.5 for name, shape in shapes.items()}
    return w | {name: 1 + jax.random.normal(keys[name], (width,)) / 4 for name in ("gain", "bias")}


def off(found: Any, right: Any) -> float:
    return float(np.abs(np.asarray(found) - np.asarray(right)).max() / np.abs(right).max())


# %% [markdown]
# ## Columns, then rows
#
# An MLP is two matrices with a function of single elements between them: `gelu(x up) down`. Cut `up` by **columns**. A
# column of `x up` needs all of `x` and one column of `up`, so each device makes its own eighth of the hidden values.
# GELU looks at one element at a time, so it needs nothing from the other devices.
#
# Those eighths are just what the matching **rows** of `down` are multiplied with. So each device goes straight on, and
# ends with a matrix of full size that is one *term* of the answer. The answer is the sum of the eight terms: one
# all-reduce, in JAX `psum`. A device runs the code of the whole MLP, on narrower matrices.
#
# The other order does not work. With `up` cut by rows each device has a term of every hidden value, and GELU of a term
# is no term of the GELU: the terms would have to be summed before it.


# %%
def mlp(x: Array, w: Weights) -> Array:
    return jax.nn.gelu(x @ w["up"]) @ w["down"]


def add_up(x: Array) -> Any:
    return jax.lax.psum(x, "tensor")


split = partial(jax.shard_map, mesh=mesh, in_specs=(P(), SPLIT), out_specs=P())
x, w = jax.random.normal(jax.random.key(1), (128, 1024)), weights(jax.random.key(2), width=1024)
shardings = {name: NamedSharding(mesh, spec) for name, spec in SPLIT.items()}
placed_x, placed = jax.device_put((x, w), (NamedSharding(mesh, P()), shardings))
hidden = jax.jit(split(lambda x, w: jax.nn.gelu(x @ w["up"]), out_specs=COLUMNS))(placed_x, placed)
split_mlp = jax.jit(split(lambda x, w: add_up(mlp(x, w))))
y = split_mlp(placed_x, placed)
show.held(x=placed_x, **placed, hidden=hidden, y=y)
drawing = show.draw(x=placed_x, up=placed["up"], hidden=hidden, down=placed["down"], y=y)
drawing.set_size_inches(11, 2.4)
show.picture(drawing, "mlp", "gelu(x up) down: x and y are on every device, hidden values stay where they are made")
sums = show.collectives(split_mlp, placed_x, placed)
rows_first = sum(jax.nn.gelu(x[:, i::8] @ w["up"][i::8]) for i in range(8)) @ w["down"]

assert all(8 * placed[m].addressable_shards[0].data.nbytes == w[m].nbytes for m in MATRICES), "an eighth on each device"
assert [(one.kind, one.result_bytes) for one in sums] == [("all-reduce", x.nbytes)], "all that moves is one sum"
assert off(y, mlp(x, w)) < 1e-5, "columns, then rows: the MLP of one device"
assert off(rows_first, y) > 0.1, "rows first is another function"

# %% [markdown]
# `y` may differ from one device's in its last bits, as 4096 products are added in eight groups: the tolerance is 1e-5
# of the largest element. `gain` and `bias` are vectors, which come into use below; every device holds all of them.

# %% [markdown]
# ## Attention by heads
#
# Attention splits as the MLP does, because heads never look at each other. Cut `q`, `k` and `v` by columns, which is by
# heads (here one of width 128 on each device), and `proj`, the projection behind them, by rows. The number of heads
# must be a multiple of the number of devices. A device again runs the code of the whole, with fewer heads. So a layer
# has two sums: one after attention, one after the MLP. Each is an all-reduce of all activations, 128 x 1024 numbers
# of 4 bytes. Over eight devices it sends twice 7/8 of them: 2 sums x 2 x 7/8 x 524,288 bytes are what the table below
# says is sent.
#
# In the code, `leave` is that sum, at the end of each split part. `enter`, at its beginning, does nothing yet; the way
# back will need it. XLA can find the same split itself, from `in_shardings` or from inputs that are already placed. All
# are compared with the layer run operation by operation on one device.


# %%
def same(x: Array) -> Array:
    return x


def attention(x: Array, w: Weights, heads: int) -> Array:
    q, k, v = ((x @ w[name]).reshape(len(x), heads, -1).transpose(1, 0, 2) for name in "qkv")
    scores = jnp.where(jnp.tri(len(x), dtype=bool), q @ k.transpose(0, 2, 1) / q.shape[-1] ** 0.5, -jnp.inf)
    return (jax.nn.softmax(scores) @ v).transpose(1, 0, 2).reshape(len(x), -1) @ w["proj"]


def layer(x: Array, w: Weights, heads: int = 8, enter: Step = same, leave: Step = same) -> Array:
    x = x + leave(attention(enter(x), w, heads))
    return x + leave(mlp(enter(x), w))


plain = np.asarray(layer(x, w))
runs: dict[str, tuple[Any, ...]] = {
    "one device, jit": (jax.jit(layer), x, w),
    "in_shardings": (jax.jit(layer, in_shardings=(NamedSharding(mesh, P()), shardings)), x, w),
    "placed inputs": (jax.jit(layer), placed_x, placed),
    "shard_map": (jax.jit(split(partial(layer, heads=1, leave=add_up))), placed_x, placed),
}
outs = {way: np.asarray(run(*given)) for way, (run, *given) in runs.items()}
moved = {way: show.collectives(*run) for way, run in runs.items()}
each = [(way, len(c), sum(one.sent_bytes for one in c), np.allclose(outs[way], plain)) for way, c in moved.items()]
show.table("One layer", ("way", "sums", "bytes sent by each device", "allclose"), each)

assert moved["in_shardings"] == moved["shard_map"] == 2 * sums, "XLA finds the split made by hand, with its two sums"
assert (outs["in_shardings"] == outs["placed inputs"]).all(), "in_shardings and placed inputs are the same, bit for bit"
assert max(off(out, plain) for out in outs.values()) < 1e-5, "every way gives the layer of one device"

# %% [markdown]
# All agree to 1e-5 of the largest element. NumPy's `allclose` says False, even of one device, because it asks for more;
# [the reason](#why-allclose-says-false) is at the end of the page.

# %% [markdown]
# ## The way back: the operators f and g
#
# On the way back the two ends of a split part do opposite things. Megatron calls them **f** and **g**:
#
# | | stands | forwards | backwards |
# | --- | --- | --- | --- |
# | **g** | at the end | adds up the devices' terms | nothing: each term of a sum gets the sum's whole gradient |
# | **f** | at the beginning | nothing | adds up the devices' gradients of `x`: each knows only its own columns' share |
#
# So a layer sums activations twice forwards, and their gradients twice backwards. What stands *before* the split part
# learns from f's sum. Here it is `gain`, a factor for each column of `x`, as in a norm, of which every device has a
# copy. f gives all copies the same gradient, so they stay equal without any communication of their own.
#
# In JAX one switch of [`shard_map`](https://docs.jax.dev/en/latest/notebooks/shard_map.html) decides whether you write
# f and g:
#
# - With `check_vma=True`, the default, types say which values vary over which mesh axis, and JAX puts f and g in by
#   itself. A plain `psum` is enough. (Its f is `pvary`, the `pcast(..., to="varying")` of tour 05, whose gradient is a
#   sum; the gradient of `psum` is `pvary`, which does nothing.)
# - With `check_vma=False` there are no such types. The gradient of a `psum` is another `psum`, which adds up eight
#   equal gradients of `y`, and nobody adds up the shares of `x`. There, write f and g yourself.

# %%
f, g = jax.custom_vjp(same), jax.custom_vjp(add_up)
f.defvjp(lambda x: (same(x), None), lambda _, grad: (add_up(grad),))
g.defvjp(lambda x: (add_up(x), None), lambda _, grad: (same(grad),))


def loss(x: Array, w: Weights, enter: Step = same, leave: Step = same) -> Array:
    return jnp.square(leave(mlp(enter(x * w["gain"]), w))).mean()


def inside(enter: Step, leave: Step, *, check_vma: bool) -> Any:
    def local(x: Array, w: Weights) -> Any:
        grads = jax.grad(loss, argnums=1)(x, w, enter, leave)
        return grads | {"gain": grads["gain"][None]}  # one row from each device

    return jax.jit(split(local, out_specs=SPLIT | {"gain": ROWS}, check_vma=check_vma))(placed_x, placed)


right = jax.grad(loss, argnums=1)(x, w)
ways = {
    "psum, check_vma=True": inside(same, add_up, check_vma=True),
    "psum, check_vma=False": inside(same, add_up, check_vma=False),
    "g alone, check_vma=False": inside(same, g, check_vma=False),
    "f and g, check_vma=False": inside(f, g, check_vma=False),
    "psum, False, grad outside": jax.jit(jax.grad(split(partial(loss, leave=add_up), check_vma=False), 1))(x, w),
}
times = {way: float(np.vdot(v["up"], right["up"]) / np.vdot(right["up"], right["up"])) for way, v in ways.items()}
gain_off = {way: off(grads["gain"], right["gain"]) for way, grads in ways.items()}
compared = [(way, f"{times[way]:.3f} x", f"{gain_off[way]:.0e}") for way in ways]
show.table("Gradients against one device's", ("taken by", "of up", "of gain: off by"), compared)
good = {way for way in ways if abs(times[way] - 1) < 1e-4 and gain_off[way] < 1e-5}

assert "psum, check_vma=True" in good, "a plain psum has the right gradients under check_vma=True"
assert abs(times["psum, check_vma=False"] - 8) < 1e-4, "under False they are too large by the number of devices"
assert np.ptp(ways["g alone, check_vma=False"]["gain"], axis=0).any(), "without f the copies of a parameter part"
assert "f and g, check_vma=False" in good, "hand-made f and g are right under check_vma=False"
assert "psum, False, grad outside" in good, "a gradient taken outside shard_map is right either way"
assert "axis types do not match" in refusal(lambda: inside(f, g, check_vma=True)), "under True JAX refuses f and g"

# %% [markdown]
# The last row is why the fault goes unnoticed: `jax.grad` *of* a `shard_map` divides the gradient of a replicated
# result by the number of devices, which just makes up for the sum. A train step by hand takes its gradients inside.

# %% [markdown]
# ## One sum instead of two
#
# [GPT-J](https://github.com/kingoflolz/mesh-transformer-jax) gives one norm of `x` to attention and to the MLP, side by
# side. Both end in a term of a sum, so a device adds its two terms by itself, and they are summed over devices
# **once**: half the bytes, and half on the way back too, where f sums once. It is another function than the layer
# above; [PaLM](https://arxiv.org/abs/2204.02311) uses it too. The residual `x` and the bias are no terms, and are added
# once, after the sum.
#
# There is a catch on the way back. JAX puts its f at every *use* of a replicated value, here at the products with `q`,
# `k`, `v` and `up`, so four gradients are summed where one would do. Say f once, by `pcast(..., to="varying")` before
# the four: that is all of Megatron's operators that is left to write.
#
# A fault that is often copied (`TransformerLayerShard`) puts the *normed* `x` and the bias into the sum. With n devices
# the layer is then too large by n-1 biases and by n times the normed `x`, and its value depends on how many devices
# compute it. Below is its case, but narrower: 4 x 2 devices, 16 sequences over `data`, 12 heads over `tensor`. The
# block is written for one sequence; `vmap` puts the batch back.

# %%
grid = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
vary = partial(jax.lax.pcast, axis_name="tensor", to="varying")


def beside(x: Array, w: Weights, heads: int, enter: Step, leave: Step) -> Array:
    h = enter(jax.nn.standardize(x) * w["gain"])
    return x + leave(attention(h, w, heads) + mlp(h, w)) + w["bias"]


def copied(x: Array, w: Weights, heads: int, enter: Step, leave: Step) -> Array:
    h = enter(jax.nn.standardize(x) * w["gain"])
    return x + leave(h + attention(h, w, heads) + mlp(h, w) + w["bias"])


def on_grid(block: Callable[..., Array], enter: Step) -> Any:
    local = jax.vmap(partial(block, heads=12 // 2, enter=enter, leave=add_up), in_axes=(0, None))
    return jax.jit(jax.shard_map(local, mesh=grid, in_specs=(P("data"), SPLIT), out_specs=P("data")))


def energy(run: Callable[..., Array], x: Array, w: Weights) -> Array:
    return jnp.square(run(x, w)).mean()


batch, narrow = jax.random.normal(jax.random.key(3), (16, 32, 192)), weights(jax.random.key(4), width=192)
blocks = {"in turn": on_grid(layer, vary), "side by side": on_grid(beside, vary), "f unsaid": on_grid(beside, same)}
there = {name: show.collectives(run, batch, narrow) for name, run in blocks.items()}
both = {name: show.collectives(jax.jit(jax.grad(partial(energy, run))), batch, narrow) for name, run in blocks.items()}
sent = [[sum(c.sent_bytes for c in moved_by[name]) for moved_by in (there, both)] for name in blocks]
counts = [(name, len(there[name]), len(both[name]), *bytes_) for name, bytes_ in zip(blocks, sent, strict=True)]
show.table("A block on 4 x 2 devices", ("way", "sums", "with gradient", "bytes sent", "with gradient"), counts)
found, one_device = blocks["side by side"](batch, narrow), jax.vmap(lambda x: beside(x, narrow, 12, same, same))(batch)
predicted = 2 * jax.nn.standardize(batch) * narrow["gain"] + narrow["bias"]

assert [count[1:3] for count in counts[:2]] == [(2, 4), (1, 2)], "one sum instead of two, with gradients two, not four"
assert sent[0] == [2 * one for one in sent[1]], "half the bytes are sent, forwards and with gradients"
assert np.diff(sent[2]) == 4 * np.diff(sent[1]), "an f at every use of x sums four times as much on the way back"
assert off(found, one_device) < 1e-5, "side by side on the grid is side by side on one device"
assert off(on_grid(copied, vary)(batch, narrow) - found, predicted) < 1e-5, (
    "n normed inputs and n-1 biases are too much"
)

# %% [markdown]
# ## That is tensor parallelism
#
# A split layer is the layer of one device, with three things to get right: how each matrix is cut, the number of heads
# on a device, and where the sums stand, forwards and backwards. Next, [the vocabulary](08_vocabulary.md), often the
# largest matrix of all, is cut the same way. The rest of this page is about mistakes: a comparison that says False of a
# right answer, and faults that run.

# %% [markdown]
# ## Why `allclose` says False
#
# The table of [one layer](#attention-by-heads) has False in its last column. Nothing is wrong with the split: `jit` on
# one device gets a False too. `allclose` allows each element an error of 1e-5 of *itself* (and 1e-8). But a float32
# error is in proportion to the numbers that were added up, and an element that came out near zero is small beside
# those. In the picture errors hardly depend on the value, but the tolerance does, and what fails lies on the left.
#
# The proof is to take the cause away: in float64 the same check of the same split says True, and against that result
# the split layer is no worse than the one-device layer.

# %%
with jax.enable_x64(True):
    wide = jax.tree.map(partial(np.asarray, dtype=np.float64), (x, w))
    exact, exact_split = (np.asarray(runs[way][0](*wide)) for way in ("one device, jit", "shard_map"))
error = np.abs(outs["shard_map"] - plain)
fails = error > 1e-8 + 1e-5 * np.abs(plain)
figure = Figure(figsize=(7.5, 3.8), layout="constrained")
axes = figure.add_subplot(xlabel="size of the element", ylabel="|split - plain|", xscale="log", yscale="log")
for name, which in {"within allclose": ~fails, "outside": fails}.items():
    axes.plot(np.abs(plain[which]), error[which], ".", ms=2, label=f"{name}: {which.mean():.1%}")
axes.legend(title=f"columns that pass alone: {(~fails).all(0).mean():.0%}", loc="upper left", markerscale=5)
show.picture(figure, "allclose", "Small and large elements have the same error, but allclose grants less to the small")

assert not np.allclose(outs["shard_map"], plain), "allclose says False of a right answer"
assert np.abs(plain[fails]).max() < np.abs(plain).mean(), "what fails lies near zero"
assert np.allclose(exact_split, exact), "in float64 the same check says True"
assert off(outs["shard_map"], exact) < 2 * off(plain, exact), "one device is no nearer to the truth"

# %% [markdown]
# ## Five faults to know
#
# They are from a notebook that is often copied, whose last cell has this layer in `shard_map` and was never run. In the
# order in which one meets them:
#
# 1. A comma is missing between two parameters, so it is no Python.
# 2. `(P("k", None, None)) * 3` is not three specs: the inner parentheses make no tuple, a comma would.
# 3. The layer calls the MLP where it means attention, with five arguments; attention takes four.
# 4. The MLP has no sum, and returns one device's term as if it were all. `check_vma` notices.
# 5. `num_heads=8` stays eight on each device: 64 heads of width 16, not 8 of 128. Nothing notices, as the shapes fit.


# %%
lone_term = jax.jit(split(mlp, check_vma=False))(placed_x, placed)
many_heads = jax.jit(split(lambda x, w: add_up(attention(x, w, heads=8))))(placed_x, placed)
faults = {"no sum": off(lone_term, mlp(x, w)), "eight heads each": off(many_heads, attention(x, w, heads=8))}
show.table("Faults that run", ("fault", "off by"), [(name, f"{by:.2f}") for name, by in faults.items()])

assert "unsupported" in refusal(lambda: P("k", None, None) * 3), "a spec times three is refused"  # type: ignore[operator]
assert "require replication" in refusal(lambda: split(mlp)(placed_x, placed)), "check_vma notices the missing sum"
assert faults["no sum"] > 0.1, "without the sum a device gives its term as if it were all"
assert faults["eight heads each"] > 0.1, "eight heads on each device are other heads"
