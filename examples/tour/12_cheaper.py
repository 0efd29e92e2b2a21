# %% [markdown]
# # Cheaper
#
# Four ways to make one training step cheaper, added one after the other to the same small language model: mixed
# precision, rematerialisation, donation and a loss by blocks. After each the memory of every device is predicted,
# measured and drawn, and so is the time, and the loss stays what it was.
#
# A step's memory on a device is its *arguments* (parameters and optimizer state, which stay), its *temporaries* (above
# all the *activations* that the forward pass saves for the backward pass), and its *results*. The model is eight
# residual layers and a head over a vocabulary, data parallel over eight devices: each has all the weights and an eighth
# of the tokens, and the gradients are summed.

# %%
import re
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jmp
import numpy as np
import optax
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from matplotlib.figure import Figure

from show import by_device, bytes_moved, mib, picture, table, temporaries
from show.refusals import refusal

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
Array = jax.Array
Tree = dict[str, Array]

L, E, M, V, T = 8, 64, 256, 4096, 4096
mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
tokens = jax.device_put(jax.random.randint(jax.random.key(1), (T,), 0, V), NamedSharding(mesh, P("data")))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What makes a step cheaper."""

    precision: str = "float32"
    remat: bool = False
    donate: bool = False
    block: int = T // 8
    unroll: int = 1


def init() -> Tree:
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = {"embed": (V, E), "up": (L, E, M), "down": (L, M, E), "head": (E, V)}
    pairs = zip(keys, shapes.items(), strict=True)
    return {name: jax.random.normal(key, shape) * shape[-2] ** -0.5 for key, (name, shape) in pairs}


def layer(x: Array, weights: tuple[Array, Array]) -> tuple[Array, None]:
    up, down = weights
    scale = jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5)
    return x + jax.nn.gelu(x * scale @ up) @ down, None


# %% [markdown]
# Everything that a recipe changes is in these two functions. `jax.checkpoint` says: save only what goes in, and compute
# the rest again when the backward pass needs it. The loss goes by blocks of tokens, one block being all of them unless
# the recipe says otherwise.


# %%
def loss_of(params: Tree, tokens: Array, recipe: Recipe) -> Array:
    policy = jmp.get_policy(recipe.precision)
    params = policy.cast_to_compute(params)
    body = jax.checkpoint(layer, prevent_cse=recipe.unroll > 1) if recipe.remat else layer
    x, _ = lax.scan(body, params["embed"][tokens], (params["up"], params["down"]), unroll=recipe.unroll)

    def block_loss(part: tuple[Array, Array]) -> Array:
        logits = policy.cast_to_output(part[0] @ params["head"])
        right = jnp.take_along_axis(logits, part[1][:, None], axis=-1)[:, 0]
        return jnp.sum(jax.nn.logsumexp(logits, axis=-1) - right) / T

    parts = (x.reshape(-1, recipe.block, E), (7 * tokens + 1).reshape(-1, recipe.block) % V)
    return jnp.sum(lax.map(jax.checkpoint(block_loss) if recipe.block < len(tokens) else block_loss, parts))


adam = optax.adam(1e-4)


def make_step(recipe: Recipe) -> Any:
    def step(state: tuple[Tree, Any], tokens: Array) -> tuple[tuple[Tree, Any], Array]:
        params, moments = state
        own = lax.pcast(params, "data", to="varying")
        loss, gradients = jax.value_and_grad(loss_of)(own, tokens, recipe)
        updates, moments = adam.update(lax.psum(gradients, "data"), moments, params)
        return (optax.apply_updates(params, updates), moments), lax.psum(loss, "data")

    sharded = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
    return jax.jit(sharded, donate_argnums=(0,) if recipe.donate else ())


@partial(jax.jit, static_argnums=0, out_shardings=NamedSharding(mesh, P()))
def start(dtype: Any) -> tuple[Tree, Any]:
    params = jax.tree.map(lambda array: array.astype(dtype), init())
    return params, adam.init(params)


# %% [markdown]
# ## What the forward pass saves
#
# `jax.vjp` runs the forward pass and returns the backward pass as a function, which carries every array that it will
# need: the *residuals*. Without running anything their shapes can be counted, here without the weights among them. A
# layer of plain float32 saves *6 M + 2 E + 2* numbers for each token (the GELU alone has six of the wide ones), the
# rematerialised layer only its input, *E* numbers. With bfloat16 each is two bytes instead of four.


# %%
def saved(recipe: Recipe) -> dict[str, int]:
    shapes, own = jax.eval_shape(init), jnp.zeros(T // 8, int)
    _, backward = jax.eval_shape(lambda params: jax.vjp(lambda p: loss_of(p, own, recipe), params), shapes)
    weights = {shape.shape for shape in shapes.values()}
    arrays = [array for array in jax.tree.leaves(backward) if array.shape not in weights]
    layers = sum(array.size * array.dtype.itemsize for array in arrays if array.shape[:2] == (L, T // 8))
    return {"layers": layers, "all": sum(array.size * array.dtype.itemsize for array in arrays)}


plain, mixed = Recipe(), Recipe(precision="params=float32,compute=bfloat16,output=float32")
remat = replace(mixed, remat=True)
donation = replace(remat, donate=True)
recipes = {"plain": plain, "+ bfloat16": mixed, "+ remat": remat, "+ donation": donation}
recipes["+ blocks"] = replace(donation, block=32)
residuals = {name: saved(recipe) for name, recipe in recipes.items()}
wide = L * T // 8 * (6 * M + 2 * E + 2)
assert residuals["plain"]["layers"] == 4 * wide, "a plain layer saves 6 M + 2 E + 2 numbers a token"
assert residuals["+ bfloat16"]["layers"] == 2 * wide, "bfloat16 halves what the layers save"
assert residuals["+ remat"]["layers"] == 2 * L * T // 8 * E, "a rematerialised layer saves its input and nothing else"

# %% [markdown]
# ## The ladder
#
# Now every recipe is compiled and run. `memory_analysis` gives the arguments, the temporaries, the results, and how
# much of the results is *aliased*: written into the memory of an argument, which donation allows. A device needs
# arguments + temporaries + results - aliased. The old state is held on purpose while the new one is counted: without
# donation both are alive. (Two cores play eight devices here, so take the seconds as a rough order.)

# %%
count = sum(shape.size for shape in jax.tree.leaves(jax.eval_shape(init)))
state_bytes = 3 * 4 * count + 4
allowed = {"plain": 0, "+ bfloat16": 1e-2, "+ remat": 1e-3, "+ donation": 0, "+ blocks": 1e-3}
accounts, alive, seconds = {}, {}, {}
losses: dict[str, list[float]] = {}
for former, (name, recipe) in zip(["plain", *recipes], recipes.items(), strict=False):
    before, state = by_device()[0], start(jnp.float32)
    program = make_step(recipe).lower(state, tokens).compile()
    account, kinds = program.memory_analysis(), ("argument", "temp", "output", "alias")
    accounts[name] = np.array([getattr(account, f"{kind}_size_in_bytes") for kind in kinds])
    mine = state_bytes + tokens.nbytes // 8
    assert accounts[name][0] == mine, f"{name}: parameters and moments are 12 bytes a parameter"
    arrays = re.findall(r"\bf32\[([\d,]+)\]", program.as_text())
    largest = max(np.prod([int(size) for size in dims.split(",")]) for dims in arrays)
    assert (largest >= T // 8 * V) == (recipe.block == T // 8), f"{name}: only by blocks no array has all logits"
    old, loss, losses[name], seconds[name] = state, 0.0, [], np.inf
    for _ in range(2):
        old, began = state, time.perf_counter()
        state, loss = jax.block_until_ready(program(old, tokens))
        seconds[name] = min(seconds[name], time.perf_counter() - began)
        losses[name].append(float(loss))
    changed = np.abs(np.subtract(losses[name], losses[former])).max()
    assert changed <= allowed[name], f"{name}: the loss changes by no more than {allowed[name]}"
    alive[name] = by_device()[0] - before - 4
    assert alive[name] == (1 if recipe.donate else 2) * state_bytes, f"{name}: donation leaves one state alive, not two"
    del old, state, loss

# %% [markdown]
# Remat and donation compute the same numbers, so the loss stays, with donation in every bit. By blocks the sums have
# another order. bfloat16 is near, with its 8 bits of fraction.

# %%
needs = {name: sizes[:3] - [0, 0, sizes[3]] for name, sizes in accounts.items()}
columns = {name: (residuals[name]["all"], *need, need.sum(), alive[name]) for name, need in needs.items()}
rows = [(name, *map(mib, each), f"{losses[name][-1]:.6f}", f"{seconds[name]:.1f}") for name, each in columns.items()]
heads = ("", "saved", "arguments", "temporaries", "results", "sum", "alive", "loss", "seconds")
table("MiB on each device, loss of the 2nd step, seconds of a step on two cores", heads, rows)
totals = [need.sum() for need in needs.values()]
assert totals[1] > totals[2] > totals[3] > totals[4], "remat, donation and blocks each make the step smaller"
sent = bytes_moved(make_step(recipes["+ blocks"]), start(jnp.float32), tokens)
assert sent == 2 * 7 * (4 * count + 4) // 8, "what moves is the sum of float32 gradients and of the loss"

# %%
figure = Figure(figsize=(8.4, 3.6), layout="constrained")
names = [f"{row[0]}\n{row[-1]} s" for row in rows]
left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
begin = np.zeros(len(needs))
parts = np.array(list(needs.values())).T / 2**20
for part, sizes in zip(("arguments", "temporaries", "results"), parts, strict=True):
    left.barh(names, sizes, left=begin, label=part, edgecolor="white")
    begin += sizes
left.set(xlabel="MiB on each device during a step", xlim=(0, 64))
left.legend(fontsize=8, loc="lower right")
right.barh(names, [residual["all"] / 2**20 for residual in residuals.values()], color="tab:purple")
right.set(xlabel="MiB saved for the backward pass")
left.invert_yaxis()
picture(figure, "ladder", "A step: its memory on each device, its seconds, and what its forward pass saves.")

# %% [markdown]
# Reading the ladder:
#
# - **Mixed precision does not halve the parameters and the optimizer.** A widely read text says that it does, "so our
#   750M parameter model would only need 6GB". But its policy, like this one, keeps both in float32 and only computes in
#   bfloat16: the arguments are the same to the byte, and that model still needs 12 GB with its gradients. What halves
#   is what the layers *save*. On a CPU even the temporaries do not fall, because XLA computes bfloat16 in float32 there
#   and keeps those copies; an accelerator's matrix units are made for bfloat16. (The 15 times that the text quotes for
#   an A100 compare with float32 outside of its matrix units. Against TF32, which JAX uses for float32 there by default,
#   it is twice.)
# - **Rematerialisation** is what the temporaries feel most, at the price of computing each layer's forward pass twice.
# - **Donation** makes the results cost nothing: the new state is written over the old. The temporaries *rise*, as the
#   compiler can no longer use the results' memory for scratch before it is filled, so only the sum tells the truth.
# - **The loss by blocks** never has the logits of all tokens at once. It matters more as the vocabulary grows: GPT-2's
#   has 50,257 words, this one 4,096. Most of what remains are the gradients and their sum, 3 MiB each.
#
# ## Halving for real, and what it costs
#
# Everything in bfloat16 does halve parameters and moments. But a bfloat16 number has 8 significant bits: an update
# below a 512th of a weight rounds away. Adam's first step moves each weight by the learning rate, here 0.0001, so every
# weight above 0.0512 stays exactly where it is, and smaller ones move on a coarse grid. The text warns of this itself,
# by a loss that ends 0.15 higher; here is why. (Its policy is also misspelt, and refused: the key is `params`.)

# %%
misspelt = refusal(jmp.get_policy, "compute=bfloat16,parameter=f32,output=f32")
print(misspelt)
assert "Unknown key" in misspelt, "the copied policy is refused"
for dtype, precision in ((jnp.float32, mixed.precision), (jnp.bfloat16, "bfloat16")):
    first = start(dtype)
    then, _ = make_step(Recipe(precision=precision))(first, tokens)
    size = sum(array.nbytes for array in jax.tree.leaves(first)) - 4
    stuck = float(jnp.mean((then[0]["up"] == first[0]["up"])[jnp.abs(first[0]["up"]) > 0.0512]))
    print(f"State in {jnp.dtype(dtype).name}: {mib(size)} MiB; of the large weights {stuck:.0%} did not move")
    assert size == count * 3 * jnp.dtype(dtype).itemsize, "the state is as large as the parameters' type makes it"
    assert round(stuck, 2) == (dtype == jnp.bfloat16), "in bfloat16 no large weight moves, in float32 all do"

# %% [markdown]
# ## Rematerialisation needs the loop
#
# Inside a `scan`, the backward pass is a loop of its own, which cannot reach into the forward loop, so it must compute
# again. Unrolled, forward and backward are one straight line of code, and the compiler sees every value in both. What
# JAX saves is the same, but here XLA undoes it: the temporaries with and without `jax.checkpoint` are as good as equal,
# even with the barriers that `prevent_cse=True` puts there, since the CPU's compiler drops them. (In a `scan`,
# `prevent_cse=False` leaves out barriers that a loop does not need.) So the layers of the trainer are a scan, and its
# checkpoint is [around the whole body](../decisions/0004-remat-around-the-scan.md).


# %%
def scratch(recipe: Recipe) -> int:
    own = jax.ShapeDtypeStruct((T // 8,), jnp.int32)
    return temporaries(jax.jit(lambda p, t: jax.grad(loss_of)(p, t, recipe)), jax.eval_shape(init), own)


bases = {"scan": plain, "unrolled": replace(plain, unroll=L)}
found = {name: [scratch(base), scratch(replace(base, remat=True))] for name, base in bases.items()}
table("MiB of temporaries", ("layers", "plain", "remat"), [(name, *map(mib, pair)) for name, pair in found.items()])
assert found["scan"][1] < found["scan"][0] / 2, "in a scan, remat more than halves the temporaries"
assert found["unrolled"][1] > 0.9 * found["unrolled"][0], "unrolled, remat saves next to nothing"
