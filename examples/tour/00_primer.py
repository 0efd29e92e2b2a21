# %% [markdown]
# # The primer: what JAX is made of
#
# `vmap`, `scan`, pytrees and their prefixes, keys, an Equinox module with an Optax optimizer, and named arrays: each in
# a few lines on one device, each checked against the plain way to do it.
#
# All later tours are made of these. Eight devices are there from the start, simulated on this machine's processor; at
# the end of this tour one of them holds everything and seven hold nothing, which is what the next tours change.

# %%
from collections.abc import Callable
from typing import Any

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

from show import by_device, picture, table
from show.refusals import refusal

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
Array = jax.Array

# %% [markdown]
# ## vmap: one program for a whole batch
#
# `jax.vmap` takes a function of one example and returns a function of a batch. It does not loop: every operation of the
# program gets a batch dimension. A *jaxpr* is JAX's own listing of a traced program, one equation per operation, so
# counting equations tells the two ways apart. The numbers are small and whole, so float32 adds them without rounding,
# and "equal" can mean equal in every bit.

# %%
a = jnp.arange(8 * 2 * 3, dtype=jnp.float32).reshape(8, 2, 3)
b = jnp.arange(8 * 3 * 4, dtype=jnp.float32).reshape(8, 3, 4)


def in_a_loop(a: Array, b: Array) -> Array:
    return jnp.stack([a[i] @ b[i] for i in range(8)])


def equations(function: Callable[..., Any], *args: Any) -> int:
    return len(jax.make_jaxpr(function)(*args).eqns)


batched = jax.vmap(jnp.matmul)
print("one example: ", jax.make_jaxpr(jnp.matmul)(a[0], b[0]))
print("vmap of it:  ", jax.make_jaxpr(batched)(a, b))
print("equations of a Python loop over 8 examples:", equations(in_a_loop, a, b))
assert jnp.array_equal(batched(a, b), in_a_loop(a, b)), "vmap gives the bits that a loop over the examples gives"
assert equations(batched, a, b) == 1, "vmap of a matrix product is one equation, however large the batch"

# %% [markdown]
# ## scan: a loop inside the program
#
# `jax.lax.scan` carries a value along an array: its body takes (carry, element) and returns (new carry, output). The
# usual first example is a cumulative sum, and a common version of it sets two things side by side that are not the
# same. Its Python loop appends `sum(values[:i])`, which leaves element i out: the **exclusive** sum. Its scan returns
# the carry *after* the addition: the **inclusive** sum, which is also what `jnp.cumsum` gives. Both are useful; here is
# each of them in both ways.


# %%
def by_hand(values: Array, inclusive: int) -> list[Any]:
    return [sum(values[: i + inclusive]) for i in range(len(values))]


def by_scan(values: Array, inclusive: int) -> Array:
    def body(total: Array, value: Array) -> tuple[Array, Array]:
        return total + value, total + value if inclusive else total

    return jax.lax.scan(body, jnp.zeros((), values.dtype), values)[1]


values = jnp.array([3, 1, 4, 1, 5, 9, 2, 6])
hand, scan = (jnp.array([way(values, inclusive) for inclusive in (0, 1)]) for way in (by_hand, by_scan))
rows: list[Any] = [(kind, hand[i].tolist(), scan[i].tolist()) for i, kind in enumerate(("exclusive", "inclusive"))]
table(f"Cumulative sums of {values.tolist()}", ("", "by hand", "by scan"), rows)
assert jnp.array_equal(hand, scan), "both kinds of sum are the same by hand and by scan"
assert jnp.array_equal(scan[1], jnp.cumsum(values)), "jnp.cumsum is the inclusive sum"
assert not jnp.array_equal(hand[0], scan[1]), "the exclusive loop and the inclusive scan are different sums"

# %% [markdown]
# It is also said that such a Python loop cannot be compiled. It can: the length of an array is known while JAX traces,
# so the loop is *unrolled*. The price is the size of the program. Each of the n sums takes one equation for its slice
# and three for each of its elements (cut it out, drop its dimension, add it), so n + 3n(n-1)/2 in all. The scan is one
# equation at any length. This is why the layers of a large model are scanned: its program, and so the time to compile
# it, does not grow with the depth.

# %%
compiled = jax.jit(by_hand, static_argnums=1)(values, 0)
assert jnp.array_equal(jnp.array(compiled), hand[0]), "the Python loop compiles, and its sums are right"

lengths = (2, 4, 8, 16, 32)
loops, scans = ([equations(lambda x, f=f: f(x, 0), jnp.arange(n)) for n in lengths] for f in (by_hand, by_scan))
predicted = [n + 3 * n * (n - 1) // 2 for n in lengths]
rows = list(zip(lengths, predicted, loops, scans, strict=True))
table("Equations in the program", ("length", "loop, predicted", "loop, measured", "scan"), rows)
assert loops == predicted, "the unrolled loop has n + 3n(n-1)/2 equations"
assert set(scans) == {scans[0]}, "the program of a scan does not grow with the length"

figure = Figure(figsize=(9, 3.2), layout="constrained")
left, right = figure.subplots(1, 2)
left.bar(range(8), hand[0], label="exclusive sum")
left.bar(range(8), values, bottom=hand[0], label="+ the element itself: inclusive sum")
left.set(title="cumulative sums", xlabel="element")
right.plot(lengths, loops, "o-", lengths, scans, "o-")
right.set(title="equations in the program", xlabel="length of the array")
left.legend()
right.legend(["Python loop, unrolled", "scan"])
caption = "Left: what the two sums differ by. Right: the loop grows with the square of its length, scan does not."
picture(figure, "scan", caption)

# %% [markdown]
# ## Pytrees, and prefixes of them
#
# A *pytree* is any nest of lists, tuples, dicts and registered classes; its *leaves* are the arrays. A model, its
# gradients and the state of an optimizer are pytrees, and `jax.tree.map` applies a function leaf by leaf
# (`jax.tree_map`, its older name, is gone). The transformations of JAX take pytrees everywhere; the functions of
# `jax.numpy` do not.
#
# Where a transformation wants to know something about each leaf, a *prefix* of the tree is enough: the same structure
# down to some depth, where one entry then counts for all leaves below it. So `in_axes=0` says the same as
# `((0, 0),)`. `None` means "do not map this one": with `((0, None),)` each of the 8 left matrices meets the whole stack
# of 8 right ones, so there are 64 products, of which the diagonal is the batch.


# %%
prefixes: list[Any] = [0, ((0, 0),), ((0, None),)]
made = [jax.vmap(lambda pair: pair[0] @ pair[1], in_axes=prefix)((a, b)) for prefix in prefixes]
table("vmap over a pair of stacks", ("in_axes", "result"), zip(prefixes, (m.shape for m in made), strict=True))
products = jax.tree.map(jnp.matmul, {"one": a[0], "two": [a[1]]}, {"one": b[0], "two": [b[1]]})
print("a tree of products:", jax.tree.map(jnp.shape, products))
refused_sum = refusal(jnp.sum, [a, b])
print("jnp.sum of a list:", refused_sum)
assert jnp.array_equal(products["two"][0], made[0][1]), "tree.map applies a function to leaves of equal places"
assert jnp.array_equal(made[0], made[1]), "a prefix counts for all leaves below it"
assert jnp.array_equal(made[2][jnp.arange(8), jnp.arange(8)], made[0]), "what is not mapped meets every example"
assert "TypeError" in refused_sum, "the functions of jax.numpy take arrays, not pytrees"

# %% [markdown]
# ## Keys: randomness is an argument
#
# JAX has no hidden random state. A *key* is passed in, and the same key gives the same numbers every time. New keys
# come from `split` or `fold_in`; a key that was split or drawn from is not used again. This rule is easily broken: an
# often-copied example of two nested layers makes both of them from key 0. The shapes differ, so nothing looks wrong,
# but the smaller layer holds the first numbers of the larger one. [Tour 4](04_randomness.md) is about keys on many
# devices.

# %%
first, second = jax.random.split(jax.random.key(0))
small = jax.random.normal(first, (3, 4)).ravel()
shared, split = (jax.random.normal(key, (4, 5)).ravel()[:12] for key in (first, second))
layers = {"(3, 4), first key": small, "(4, 5), first key": shared, "(4, 5), second key": split}
rows = [(name, *(f"{x:+.3f}" for x in layer[:6])) for name, layer in layers.items()]
table("The first six weights of a layer", ("shape, made from", *"123456"), rows)
assert jnp.array_equal(small, shared), "two layers made from one key begin with the same numbers"
assert not jnp.any(small == split), "two layers made from split keys share no number"

# %% [markdown]
# ## A module and an optimizer
#
# An Equinox module is a dataclass that is a pytree: its arrays are leaves, so `grad`, `jit` and `vmap` take the whole
# model. Its fields are declared, `__init__` fills them, and `__call__` makes it callable. An often-copied version
# declares no field, which Equinox now refuses, and names its method `forward` but calls `model(x)`.


# %%
class Network(eqx.Module):
    """Two layers with a tanh between them."""

    first: Array
    second: Array

    def __init__(self, *keys: Array) -> None:
        self.first = jax.random.normal(keys[0], (3, 64)) / jnp.sqrt(3)
        self.second = jax.random.normal(keys[1], (64, 1)) / jnp.sqrt(64)

    def __call__(self, x: Array) -> Array:
        """From (batch, 3) to (batch, 1)."""
        return jnp.tanh(x @ self.first) @ self.second


class Undeclared(eqx.Module):
    """As often copied: no field is declared."""

    def __init__(self) -> None:
        self.weights = jnp.ones(3)


print(refusal(Undeclared))
assert "cannot assign" in refusal(Undeclared), "the fields of a module must be declared"

# %% [markdown]
# Optax's Adam keeps two moments for each parameter, as large as the parameters, and one count of steps: in float32 that
# is 4 bytes for each parameter, 8 for its moments, and 4 for the count. The prediction stands beside what the memory
# profile of each device says. At the first step both moments come from one gradient, so their ratio is its sign, and
# every weight moves by the learning rate ([Kingma and Ba](https://arxiv.org/abs/1412.6980)).


# %%
def loss_of(model: Network, x: Array, y: Array) -> Array:
    return jnp.mean((model(x) - y) ** 2)


@eqx.filter_jit
def update(model: Network, state: optax.OptState, x: Array, y: Array) -> tuple[Network, optax.OptState, Array]:
    loss, gradients = eqx.filter_value_and_grad(loss_of)(model, x, y)
    updates, state = optimizer.update(gradients, state, model)
    return eqx.apply_updates(model, updates), state, loss


before = by_device()
optimizer = optax.adam(0.01)
start = Network(first, second)
state = optimizer.init(start)
measured = [after - old for after, old in zip(by_device(), before, strict=True)]
expected = [12 * (start.first.size + start.second.size) + 4] + 7 * [0]
rows = [(f"device {i}", *both) for i, both in enumerate(zip(expected, measured, strict=True))]
table("Bytes of a model and Adam's state", ("", "predicted", "measured"), rows)
assert measured == expected, "a model with Adam takes 12 bytes for each parameter, all on device 0"

x = jax.random.normal(jax.random.key(1), (128, 3))
y = jnp.sin(x.sum(axis=1, keepdims=True))
model, state, first_loss = update(start, state, x, y)
moved, last_loss = jnp.abs(model.first - start.first), first_loss
for _ in range(100):
    model, state, last_loss = update(model, state, x, y)
print(f"each weight's first step: {moved.min():.5f} to {moved.max():.5f}; loss: {first_loss:.2f} to {last_loss:.2f}")
assert jnp.allclose(moved, 0.01, rtol=1e-3), "Adam's first step moves every weight by the learning rate"
assert last_loss < first_loss / 5, "the loss falls"

# %% [markdown]
# ## Named arrays
#
# Axes known by position are easily confused. To make each row of a matrix sum to one, `x / x.sum(axis=1)` looks right,
# but the sums are a vector, a vector is lined up with the *last* axis, and so each column is divided by the sum of the
# row of the same number. Where the matrix is square nothing complains. In [Haliax](https://haliax.readthedocs.io) an
# array carries its axes by name: a reduction names its axis, and broadcasting lines the axes up by name, whatever their
# order. By convention a capital names an axis.

# %%
Row, Column = hax.Axis("row", 4), hax.Axis("column", 4)
square = jnp.array([[1, 2, 3, 4], [2, 2, 2, 2], [9, 3, 3, 1], [5, 6, 7, 8]], jnp.float32)
named = hax.named(square, (Row, Column))
by_position = square / square.sum(axis=1)
by_name = (named / hax.sum(named, Column)).array
turned = named.rearrange((Column, Row))
shares = {"x": square, "x / x.sum(axis=1)": by_position, "x / hax.sum(x, Column)": by_name}
figure = Figure(figsize=(9, 2.6), layout="constrained")
for axes, (title, matrix) in zip(figure.subplots(1, 3), shares.items(), strict=True):
    axes.imshow(matrix / matrix.max(), cmap="Blues", vmax=2, aspect="auto")
    for i, j in np.ndindex(4, 4):
        axes.text(j, i, f"{matrix[i, j]:.2g}", ha="center", va="center")
    axes.set(title=title, xticks=[], yticks=range(4), yticklabels=[f"row sum {row:.2g}" for row in matrix.sum(axis=1)])
picture(figure, "names", "Each matrix with the sums of its rows: by position they miss, by name each is one.")
assert jnp.allclose(by_name.sum(axis=1), 1, atol=1e-6), "by name each row sums to one, up to float32's rounding"
assert not jnp.any(jnp.isclose(by_position.sum(axis=1), 1)), "by position no row sums to one"
assert (named + turned == 2 * named).array.all(), "the order of named axes does not matter"

# %% [markdown]
# Broadcasting by name has one limit that is rarely said: the axes of one array must be among those of the other. A
# causal mask compares positions with key positions, two axes of which neither array has both. Haliax refuses to guess,
# and asks for `broadcast_axis`. What then comes out is the lower triangle that `jnp.tril` makes. A function of one
# example is mapped over an axis by its name, too.

# %%
Batch, Position = hax.Axis("batch", 8), hax.Axis("position", 5)
Key = Position.alias("key_position")
refused_mask = refusal(lambda: hax.arange(Position) >= hax.arange(Key))
print(refused_mask)
mask = (hax.arange(Position).broadcast_axis(Key) >= hax.arange(Key)).rearrange((Position, Key)).array
print(mask.astype(int))
images = hax.random.normal(second, (Batch, Row, Column))
by_vmap = hax.vmap(lambda image: hax.sum(image, (Row, Column)), Batch)(images)
assert "broadcast_axis" in refused_mask, "broadcasting by name adds no axis unasked"
assert jnp.array_equal(mask, jnp.tril(jnp.ones((5, 5)))), "comparing two named ranges gives the causal mask"
assert jnp.allclose(by_vmap.array, images.array.sum((1, 2)), atol=1e-5), "vmap over a name maps that axis"

# %% [markdown]
# Names are also what makes a model easy to spread: a mapping from axis names to the axes of a mesh of devices is all
# that changes between data parallelism, FSDP and tensor parallelism. [Tour 11](11_named_axes.md) does exactly that. The
# [next tour](01_devices_and_arrays.md) begins with the devices.
