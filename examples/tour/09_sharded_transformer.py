# %% [markdown]
# # The sharded transformer
#
# A whole GPT over eight devices, two data-parallel times four tensor-parallel: made shard by shard, trained with Adam
# equal to one device, saved shard by shard without pickle, and restored on other meshes with the same bits.
#
# The pieces are those of the two tours before this one: layers cut by heads and by columns, and a vocabulary cut over
# devices. Here they are put together, and what a real run needs is added: weights, an optimizer, text, a checkpoint.
# A widely read notebook does all of this with `xmap`, which JAX no longer has; `jax.shard_map` takes its place, and
# what that notebook says and leaves out is measured on the way.

# %%
import sys
import tempfile
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, P
from matplotlib.figure import Figure

import show

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
Tree = dict[str, Any]

# %% [markdown]
# ## The text
#
# Give a file as the argument, a Shakespeare for example, and the model learns that. Without one it learns what every
# Python brings along: the pages behind `help()`, from the standard library's `pydoc_data/topics.py`. A token is one
# character. The number of different characters is rounded up to a multiple of 8, so that the vocabulary can be cut in
# 1, 2, 4 or 8 equal parts; the spare entries are never a target. `entropy` is the loss of a model that knows how
# frequent each character is and nothing else. A batch is B windows of T characters, and beside each character the one
# that follows.

# %%
text = Path(sys.argv[1]).read_text(encoding="utf-8") if len(sys.argv) > 1 else "\n".join(topics.values())
characters, data = np.unique(list(text), return_inverse=True)
entropy = -float((part := np.bincount(data) / len(data)) @ np.log(part))
B, T, D, H, F, L = 16, 64, 64, 8, 256, 2  # batch, time, width, heads, inner columns of the MLP, layers
K, V = D // H, len(characters) + -len(characters) % 8  # width of a head, vocabulary
print(f"{len(data):,} characters, {len(characters)} different, padded to {V}, entropy {entropy:.2f}: {text[:22]!r}...")


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    starts = np.random.default_rng(step).integers(0, len(data) - T - 1, (B, 1))
    windows = data[starts + np.arange(T + 1)].astype(np.int32)
    return windows[:, :-1], windows[:, 1:]


# %% [markdown]
# ## What is cut, and where
#
# One table is the whole plan: the shape of each array, and the dimension that is cut over `tensor`. Attention is cut by
# heads (`qkv`, and the rows of `out` that meet them), the MLP by its inner columns (`up`, and the rows of `down`), the
# vocabulary by entries (`words`, `head`), the positions by columns. The norms have no weights of their own; theirs
# would be whole on every device. Nothing is cut over `data`: the two halves of the mesh hold copies. The state of a run
# is the weights and Adam's two moments, cut in the same way.

# %%
TABLES: dict[str, tuple[tuple[int, ...], int]] = {"words": ((V, D), 0), "positions": ((T, D), 1), "head": ((D, V), 1)}
PLAN = TABLES | {"qkv": ((L, H, D, 3 * K), 1), "out": ((L, H, K, D), 1), "up": ((L, D, F), 2), "down": ((L, F, D), 1)}
SPECS = {name: P(*[None] * cut, "tensor") for name, (_, cut) in PLAN.items()}


def mesh_of(num_data: int, num_tensor: int) -> jax.sharding.Mesh:
    return jax.make_mesh((num_data, num_tensor), ("data", "tensor"), devices=jax.devices()[: num_data * num_tensor])


# %% [markdown]
# ## Weights that are never whole
#
# The often-copied way gives each shard a random key of its own. It keeps its promise: weights and moments are made on
# the device that holds them. But the weights then depend on the number of shards, and no two meshes train the same
# model. Here each *slice* of an array, along the dimension that is cut, has a key: folded from the slice's number in
# the whole array. A device makes the slices that it holds and no others, and on any mesh they are the same: normal
# numbers over the root of the rows of a matrix. On a mesh of `jax.make_mesh` an array's sharding is part of its type,
# so Adam's zeros, made like the weights, are cut like them.
#
# Predicted for each device: 4 bytes a parameter, times three with Adam's moments, divided by the four shards, and 4
# bytes for Adam's count of steps. The same formula gives 1.44 GiB for that notebook's own model (two layers of width
# 3072, 5000 words, two shards); its memory table says 1.5.


# %%
def my_part(key: Array, shape: tuple[int, ...], cut: int) -> Any:
    here = shape[cut] // jax.lax.axis_size("tensor")
    numbers = jax.lax.axis_index("tensor") * here + jnp.arange(here)
    normal = partial(jax.random.normal, shape=shape[:cut] + shape[cut + 1 :])
    return shape[-2] ** -0.5 * jax.vmap(lambda number: normal(jax.random.fold_in(key, number)), out_axes=cut)(numbers)


def init(mesh: jax.sharding.Mesh, key: Array) -> Tree:
    def parts(keys: Array) -> Tree:
        return {name: my_part(own, *PLAN[name]) for name, own in zip(PLAN, keys, strict=True)}

    params = jax.shard_map(parts, mesh=mesh, in_specs=P(), out_specs=SPECS)(jax.random.split(key, len(PLAN)))
    return {"params": params, "adam": adam.init(params)}


def same_bits(one: Tree, other: Tree) -> bool:
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, one, other)))


adam, key, mesh, before = optax.adam(3e-3), jax.random.key(0), mesh_of(2, 4), show.by_device()
init_here = jax.jit(partial(init, mesh))
state = init_here(key)
measured = [now - then for now, then in zip(show.by_device(), before, strict=True)]
start = jax.tree.map(np.asarray, jax.jit(partial(init, mesh_of(1, 1)))(key))
assert same_bits(start, state), "the weights made in parts are, bit for bit, those that one device makes"

# %%
whole = 4 * sum(int(np.prod(shape)) for shape, _ in PLAN.values())
predicted, scratch = 3 * whole // 4 + 4, show.temporaries(init_here, key)
print(f"bytes of state: predicted {predicted:,}; measured {measured}; to make it, {scratch:,} more on each device")
show.held(**state["params"])
assert measured == [predicted] * 8, "each device holds its quarter of weights and moments, to the byte"
assert scratch < whole / 2, "the init makes nothing near the whole on any device"
show.picture(show.draw(**{name: state["params"][name] for name in TABLES}), "parts", "Who holds which part of a table")

# %% [markdown]
# ## The model
#
# The layer is GPT-J's: attention and MLP side by side, so that one sum over devices does for both. It does not know
# how many heads it has; the weights it is given tell it. Nor does it know about devices: it is handed
# [Megatron's](https://arxiv.org/abs/1909.08053) two operators. `spread` stands where the shards part: nothing forward,
# a sum of gradients backward. `total` stands where they meet: a sum forward, nothing backward. `shard_map` tracks
# what differs between devices, so the first is `pcast` and the second a plain `psum`, and both backward passes
# come out right.
#
# JAX would also put in the `pcast` by itself, but at each *use* of `h`, and `h` is used twice: two sums backward
# instead of one. So it is written once, by hand.
#
# Words are looked up in the window of the vocabulary that a shard holds, which is a product with one-hot rows: a word
# outside of the window has a row of zeros. Positions are the columns that it holds, set among zeros, and a single sum
# over the shards completes both. The loss never has whole logits: a maximum, the sum of exponentials and the target's
# logit cross the shards, one number each for a character. The z-loss is on the true log Z, so the maximum that was
# taken out is put back. The first line of `shard_loss` marks the weights as one copy for each half of the batch; going
# backward, that is where gradients are summed.


# %%
spread: Any = partial(jax.lax.pcast, axis_name="tensor", to="varying")
total: Any = partial(jax.lax.psum, axis_name="tensor")


def logits_of(p: Tree, x: Array, spread: Any, total: Any) -> Any:
    for n in range(L):
        h = spread(jax.nn.standardize(x))
        q, k, v = jnp.split(jnp.einsum("btd,hde->bthe", h, p["qkv"][n]), 3, axis=-1)
        heads = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x += total(jnp.einsum("bthk,hkd->btd", heads, p["out"][n]) + jax.nn.gelu(h @ p["up"][n]) @ p["down"][n])
    return spread(jax.nn.standardize(x)) @ p["head"]


def window(ids: Array, size: int) -> Array:
    return jax.nn.one_hot(ids - jax.lax.axis_index("tensor") * size, size)


def shard_loss(params: Tree, ids: Array, targets: Array) -> Any:
    params = jax.lax.pcast(params, "data", to="varying")
    columns = params["positions"] @ window(jnp.arange(D), params["positions"].shape[1]).T
    x = total(window(ids, len(params["words"])) @ params["words"] + columns)
    logits = logits_of(params, x, spread, total)
    top = jax.lax.pmax(jax.lax.stop_gradient(logits).max(-1), "tensor")
    log_z = top + jnp.log(total(jnp.exp(logits - top[..., None]).sum(-1)))
    target_logits = total((logits * window(targets, logits.shape[-1])).sum(-1))
    return jax.lax.pmean((log_z - target_logits + 1e-4 * log_z**2).mean(), "data")


# %% [markdown]
# ## One step
#
# Adam works on each number by itself, so a device that has the gradients of its shards updates them and their moments
# without a word to the others. Beside it stands the plain model for one device, with whole arrays and the loss of
# optax. It shares the layer above, in which `spread` and `total` then do nothing.


# %%
def plain_loss(params: Tree, ids: Array, targets: Array) -> Any:
    logits = logits_of(params, params["words"][ids] + params["positions"], jnp.asarray, jnp.asarray)
    cross_entropy = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    return (cross_entropy + 1e-4 * jax.nn.logsumexp(logits, -1) ** 2).mean()


def step(loss_of: Any, state: Tree, ids: Array, targets: Array) -> tuple[Tree, Array]:
    loss, grads = jax.value_and_grad(loss_of)(state["params"], ids, targets)
    updates, moments = adam.update(grads, state["adam"])
    return {"params": optax.apply_updates(state["params"], updates), "adam": moments}, loss


def step_on(mesh: jax.sharding.Mesh) -> Any:
    mapped = jax.shard_map(shard_loss, mesh=mesh, in_specs=(SPECS, P("data"), P("data")), out_specs=P())
    return jax.jit(partial(step, lambda p, *pair: mapped(p, *jax.reshard(pair, jax.NamedSharding(mesh, P("data"))))))


def train(one_step: Any, state: Tree, steps: range) -> tuple[Tree, list[float]]:
    losses = []
    for number in steps:
        state, loss = one_step(state, *batch(number))
        losses.append(float(loss))
    return state, losses


# %% [markdown]
# What moves in a step can be counted beforehand. A sum of *n* bytes over *k* devices makes each of them send
# 2 (k - 1) / k *n*. Over `tensor`: a sum of activations for each layer and for the embedding, and backward one for each
# layer and for the head; three numbers for each character in the loss. Over `data`: the gradients of a device's shards,
# and the loss. XLA joins some sums in one call.

# %%
here, alone = step_on(mesh), jax.jit(partial(step, plain_loss))
to_send = 2 * 3 / 4 * 4 * (B // 2) * T * ((2 * L + 2) * D + 3) + 2 * 1 / 2 * (whole // 4 + 4)
calls = show.collectives(here, state, *batch(0))
moved = [(call.kind, call.group, call.shapes, f"{call.sent_bytes:,}") for call in calls]
show.table(f"What a step moves: predicted {to_send:,.0f} bytes", ("", "devices", "of it here", "bytes sent"), moved)
assert {call.kind for call in calls} == {"all-reduce"}, "a step never gathers: no whole weights, no whole logits"
assert sum(call.sent_bytes for call in calls) == to_send, "a step sends what was predicted, to the byte"

# %% [markdown]
# Now both take a step, from the same weights, on the same batch. Adam's first moment is then a tenth of the gradient,
# so it compares the gradients. They cannot be equal in every bit, because four partial sums are added in another order
# than one long one; they agree to a few parts in ten million.

# %%
(state, loss), (plain, plain_first) = here(state, *batch(0)), alone(start, *batch(0))
pairs = [(np.asarray(state["adam"][0].mu[name]), np.asarray(plain["adam"][0].mu[name])) for name in PLAN]
apart = max(np.abs(a - b).max() / np.abs(b).max() for a, b in pairs)
print(f"loss {float(loss):.6f}, plain {float(plain_first):.6f}; gradients at most {apart:.0e} of the largest apart")
assert abs(float(loss) - float(plain_first)) < 1e-5, "the sharded loss is the plain loss"
assert apart < 1e-5, "the gradients of all weights are the plain ones"

# %% [markdown]
# Forty steps. Differences grow as they go on, so a loss may be off by 1e-4.

# %%
STEPS = 40
state, losses = train(here, state, range(1, STEPS))
_, plain_losses = train(alone, plain, range(1, STEPS))
assert np.allclose(losses, plain_losses, atol=1e-4), "forty steps of Adam over eight devices are forty steps on one"
assert np.mean(losses[-5:]) < entropy, "the model learns more than how frequent each character is"

# %% [markdown]
# A curve that is often shown proves nothing. If the model is trained with its own input as the target, the loss falls
# to almost nothing, because a causal model may look at the character that it is asked for.

# %%
_, echo = train(lambda state, ids, _: here(state, ids, ids), init_here(key), range(1, STEPS))
assert echo[-1] < 0.1 * losses[-1], "a model asked for its own input has almost no loss, and has learned nothing"

# %% [markdown]
# ## A checkpoint that is never whole in memory
#
# The often-copied checkpoint pulls each array whole into the memory of one host, and keeps the shape of the tree in a
# pickle: a file that can run any program on whoever opens it. Its restore gives back NumPy arrays, which JAX then puts
# whole on the first device ([as seen before](02_memory.md)).
#
# Here an array is a memory-mapped `.npy` file, named after its place in the tree. Each shard is written where it
# belongs, once, from the device that holds its first copy (`replica_id` 0). To restore, each device asks for its block
# by index and maps no more than that from the file. Nothing says how the array was cut, so the new mesh need not be the
# old one. Many hosts can do the same on a shared file system; in a bucket, where no one writes into the middle of a
# file, arrays are stored in chunks instead, which is what TensorStore does and what the trainer uses.


# %%
def file_of(folder: Path, path: Any) -> Path:
    return folder / (jax.tree_util.keystr(path, simple=True, separator=".") + ".npy")


def stored(leaf: Array) -> list[jax.Shard]:
    return [shard for shard in leaf.addressable_shards if shard.replica_id == 0]


def save(folder: Path, state: Tree) -> None:
    for path, leaf in jax.tree.leaves_with_path(state):
        file = np.lib.format.open_memmap(file_of(folder, path), "w+", leaf.dtype, leaf.shape)
        for shard in stored(leaf):
            file[shard.index] = shard.data


def restore(folder: Path, mesh: jax.sharding.Mesh) -> Any:
    def restored(path: Any, leaf: Any) -> Array:
        file = np.load(file_of(folder, path), mmap_mode="r", allow_pickle=False)
        placed = jax.NamedSharding(mesh, leaf.sharding.spec if leaf.sharding else P())
        return jax.make_array_from_callback(file.shape, placed, lambda index: file[index])

    return jax.tree.map_with_path(restored, jax.eval_shape(partial(init, mesh), key))


temporary = tempfile.TemporaryDirectory()
save(folder := Path(temporary.name), state)
files, leaves = sorted(file.name for file in folder.iterdir()), jax.tree.leaves(state)
written = sum(shard.data.nbytes for leaf in leaves for shard in stored(leaf))
print(f"{len(files)} files, {written:,} bytes of numbers: {', '.join(files)}")
assert written == sum(leaf.nbytes for leaf in leaves), "every number is written once"
assert {Path(name).suffix for name in files} == {".npy"}, "nothing in the checkpoint is a pickle"

# %% [markdown]
# The checkpoint is restored on the mesh that it came from and on two others, and trained on. On the same mesh the
# losses are those of the run that never stopped, bit for bit. On another mesh the weights are still the same bits, and
# the losses are equal up to the order of the sums.

# %%
restored = {shape: restore(folder, mesh_of(*shape)) for shape in ((2, 4), (1, 8), (4, 2))}
assert all(same_bits(back, state) for back in restored.values()), "restored on any mesh, the state is the same bits"
onward = range(STEPS, STEPS + 10)
unbroken, resumed = (train(here, begin, onward)[1] for begin in (state, restored[2, 4]))
assert resumed == unbroken, "on its own mesh the run goes on as if it had never stopped, bit for bit"
_, elsewhere = train(step_on(mesh_of(4, 2)), restored[4, 2], onward)
assert np.allclose(elsewhere, unbroken, atol=1e-4), "on another mesh the run goes on, equal up to the order of sums"

# %%
figure = Figure(figsize=(8.5, 4.2), layout="constrained")
axes = figure.add_subplot(xlabel="step", ylabel="loss (nats a character)", ylim=(0, 6), xlim=(0, STEPS + 10))
axes.plot(range(1, STEPS + 10), losses + unbroken, color="tab:blue", lw=2, label="eight devices, 2 x 4")
axes.plot(range(1, STEPS, 3), plain_losses[::3], "ko", ms=4, label="one device, plain")
axes.plot(onward, elsewhere, "x", color="tab:red", ms=7, mew=2, label="restored on 4 x 2")
axes.plot(range(1, STEPS), echo, color="tab:grey", lw=1.5, ls="--", label="its own input as target")
axes.legend(frameon=False, ncols=2)
show.picture(figure, "training", "Training on eight devices, on one, and from the checkpoint on another mesh.")
