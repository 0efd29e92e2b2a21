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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import P
from matplotlib.figure import Figure

import show

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
Array = jax.Array
Params = dict[str, Array]
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
frequency = np.bincount(data) / len(data)
entropy = -float(frequency @ np.log(frequency))
B, T, D, H, F, L = 16, 64, 64, 8, 256, 2  # batch, time, width, heads, inner columns of the MLP, layers
K, V = D // H, len(characters) + -len(characters) % 8  # width of a head, vocabulary
print(f"{len(data):,} characters, {len(characters)} different ones, padded to {V}; it begins {text[:22]!r}")


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    starts = np.random.default_rng(step).integers(0, len(data) - T - 1, B)
    windows = data[starts[:, None] + np.arange(T + 1)].astype(np.int32)
    return windows[:, :-1], windows[:, 1:]


# %% [markdown]
# ## What is cut, and where
#
# One table is the whole plan: the shape of each array, the dimension that is cut over `tensor`, and the standard
# deviation at the start. Attention is cut by heads (`qkv`, and the rows of `out` that meet them), the MLP by its inner
# columns (`up`, and the rows of `down`), the vocabulary by entries (`words`, `head`), the positions by columns. The
# scales of the norms are whole on every device. Nothing is cut over `data`: the two halves of the mesh hold copies.
# The state of a run is the weights and Adam's two moments, cut in the same way.

# %%
PLAN: dict[str, tuple[tuple[int, ...], int | None, float]] = {
    "words": ((V, D), 0, 0.02),
    "positions": ((T, D), 1, 0.02),
    "scale": ((L, D), None, 0.0),
    "qkv": ((L, H, D, 3 * K), 1, D**-0.5),
    "out": ((L, H, K, D), 1, (2 * L * D) ** -0.5),
    "up": ((L, D, F), 2, D**-0.5),
    "down": ((L, F, D), 1, (2 * L * F) ** -0.5),
    "last_scale": ((D,), None, 0.0),
    "head": ((D, V), 1, D**-0.5),
}
SPECS = {name: P() if cut is None else P(*[None] * cut, "tensor") for name, (_, cut, _) in PLAN.items()}


def mesh_of(num_data: int, num_tensor: int) -> jax.sharding.Mesh:
    devices = jax.devices()[: num_data * num_tensor]
    return jax.make_mesh((num_data, num_tensor), ("data", "tensor"), devices=devices)


# %% [markdown]
# ## Weights that are never whole
#
# The often-copied way gives each shard a random key of its own. It keeps its promise: weights and moments are made on
# the device that holds them. But the weights then depend on the number of shards, and no two meshes train the same
# model. Here each *slice* of an array, along the dimension that is cut, has a key: folded from the slice's number in
# the whole array. A device makes the slices that it holds and no others, and on any mesh they are the same. On a mesh
# of `jax.make_mesh` an array's sharding is part of its type, so Adam's zeros, made like the weights, are cut like them.
#
# Predicted for each device: 4 bytes a parameter, times three with Adam's moments, divided by the four shards (the
# norms' scales are not divided), and 4 bytes for Adam's count of steps. The same formula gives 1.44 GiB for that
# notebook's own model (two layers of width 3072, 5000 words, two shards); its memory table says 1.5.


# %%
def my_part(key: Array, shape: tuple[int, ...], cut: int | None, deviation: float) -> Array:
    if cut is None:
        return jnp.zeros(shape)
    here = shape[cut] // jax.lax.axis_size("tensor")
    numbers = jax.lax.axis_index("tensor") * here + jnp.arange(here)
    rest = shape[:cut] + shape[cut + 1 :]

    def one(number: Array) -> Array:
        return deviation * jax.random.normal(jax.random.fold_in(key, number), rest)

    part: Array = jax.vmap(one, out_axes=cut)(numbers)
    return part


def init(mesh: jax.sharding.Mesh, key: Array) -> Tree:
    def parts(key: Array) -> Params:
        keys = jax.random.split(key, len(PLAN))
        return {name: my_part(own, *PLAN[name]) for name, own in zip(PLAN, keys, strict=True)}

    params = jax.shard_map(parts, mesh=mesh, in_specs=P(), out_specs=SPECS)(key)
    return {"params": params, "adam": adam.init(params)}


def same_bits(one: Tree, other: Tree) -> bool:
    return all(jax.tree.leaves(jax.tree.map(lambda a, b: np.array_equal(np.asarray(a), np.asarray(b)), one, other)))


adam, key, mesh, before = optax.adam(3e-3), jax.random.key(0), mesh_of(2, 4), show.by_device()
init_here = jax.jit(partial(init, mesh))
state = init_here(key)
measured = [now - then for now, then in zip(show.by_device(), before, strict=True)]
start = jax.tree.map(np.asarray, jax.jit(partial(init, mesh_of(1, 1)))(key))
assert same_bits(start, state), "the weights made in parts are, bit for bit, those that one device makes"

# %%
cut, copied = (sum(np.prod(shape) for shape, dim, _ in PLAN.values() if (dim is None) == none) for none in (0, 1))
predicted, scratch = 12 * (cut // 4 + copied) + 4, show.temporaries(init_here, key)
rows = [(f"device {n}", f"{predicted:,}", f"{count:,}", f"{scratch:,}") for n, count in enumerate(measured)]
show.table("Weights and moments, in bytes", ("", "predicted", "measured", "needed to make them"), rows)
show.held(**state["params"])
assert measured == [predicted] * 8, "each device holds its quarter of weights and moments, to the byte"
assert scratch < 4 * (cut + copied) / 2, "the init makes nothing near the whole on any device"
drawn = {name: state["params"][name][layer] for name, layer in (("words", ...), ("head", ...), ("up", 0), ("down", 0))}
show.picture(show.draw(**drawn), "parts", "Who holds which part of four arrays. Each part is there twice, for `data`.")

# %% [markdown]
# ## The model
#
# The layer is GPT-J's: attention and MLP side by side, so that one sum over devices does for both. It does not know
# how many heads it has; the weights it is given tell it. Nor does it know about devices: it is handed
# [Megatron's](https://arxiv.org/abs/1909.08053) two operators. `spread` stands where the shards part: nothing forward,
# a sum of gradients backward. `total` stands where they meet: a sum forward, nothing backward. `shard_map` keeps book
# of what differs between devices, so the first is `pcast` and the second a plain `psum`, and both backward passes
# come out right.
#
# JAX would also put in the `pcast` by itself, but at each *use* of `h`, and `h` is used twice: two sums backward
# instead of one. So it is written once, by hand.
#
# Words are looked up in the window of the vocabulary that a shard holds, positions are the columns that it holds, set
# among zeros, and a single sum over the shards completes both.

# %%
Over = Callable[[Array], Array]
spread: Over = partial(jax.lax.pcast, axis_name="tensor", to="varying")
total: Over = partial(jax.lax.psum, axis_name="tensor")


def layer(x: Array, p: Params, spread: Over, total: Over) -> Array:
    h = spread(jax.nn.standardize(x) * (1 + p["scale"]))
    q, k, v = jnp.split(jnp.einsum("btd,hde->bthe", h, p["qkv"]), 3, axis=-1)
    heads = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    return x + total(jnp.einsum("bthk,hkd->btd", heads, p["out"]) + jax.nn.gelu(h @ p["up"]) @ p["down"])


def logits_of(params: Params, x: Array, spread: Over, total: Over) -> Array:
    for n in range(L):
        x = layer(x, {name: params[name][n] for name in ("scale", "qkv", "out", "up", "down")}, spread, total)
    return spread(jax.nn.standardize(x) * (1 + params["last_scale"])) @ params["head"]


def window(ids: Array, size: int) -> tuple[Array, Array]:
    own = ids - jax.lax.axis_index("tensor") * size
    return jnp.clip(own, 0, size - 1), (own >= 0) & (own < size)


def embed(params: Params, ids: Array) -> Array:
    own, mine = window(ids, len(params["words"]))
    left = jax.lax.axis_index("tensor") * params["positions"].shape[1]
    columns = jax.lax.dynamic_update_slice(jnp.zeros((T, D)), params["positions"], (0, left))
    return total(jnp.where(mine[..., None], params["words"][own], 0) + columns)


# %% [markdown]
# The loss never has whole logits: a maximum, the sum of exponentials and the target's logit cross the shards, one
# number each for a character. The z-loss is on the true log Z, so the maximum that was taken out is put back. The first
# line marks the weights as one copy for each half of the batch; going backward, that is where gradients are summed.


# %%
def shard_loss(params: Params, ids: Array, targets: Array) -> Array:
    params = jax.lax.pcast(params, "data", to="varying")
    logits = logits_of(params, embed(params, ids), spread, total)
    top = jax.lax.pmax(jax.lax.stop_gradient(logits).max(-1), "tensor")
    log_z = top + jnp.log(total(jnp.exp(logits - top[..., None]).sum(-1)))
    own, mine = window(targets, logits.shape[-1])
    target_logits = total(jnp.where(mine, jnp.take_along_axis(logits, own[..., None], -1)[..., 0], 0))
    loss: Array = jax.lax.pmean((log_z - target_logits + 1e-4 * log_z**2).mean(), "data")
    return loss


# %% [markdown]
# ## One step
#
# Adam works on each number by itself, so a device that has the gradients of its shards updates them and their moments
# without a word to the others. Beside it stands the plain model for one device, with whole arrays and the loss of
# optax. It shares the layer above, in which `spread` and `total` then do nothing. On the mesh the old state is given
# up (donated), so that the new one takes its place and not a second one.


# %%
def plain_loss(params: Params, ids: Array, targets: Array) -> Array:
    x = params["words"][ids] + params["positions"]
    logits = logits_of(params, x, lambda whole: whole, lambda whole: whole)
    cross_entropy: Array = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    return (cross_entropy + 1e-4 * jax.nn.logsumexp(logits, -1) ** 2).mean()


def step(loss_of: Callable[..., Array], state: Tree, ids: Array, targets: Array) -> tuple[Tree, Array]:
    loss, grads = jax.value_and_grad(loss_of)(state["params"], ids, targets)
    updates, moments = adam.update(grads, state["adam"])
    return {"params": optax.apply_updates(state["params"], updates), "adam": moments}, loss


def step_on(mesh: jax.sharding.Mesh) -> Any:
    mapped = jax.shard_map(shard_loss, mesh=mesh, in_specs=(SPECS, P("data"), P("data")), out_specs=P())
    halves = jax.NamedSharding(mesh, P("data"))
    return jax.jit(partial(step, lambda params, *pair: mapped(params, *jax.reshard(pair, halves))), donate_argnums=0)


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
activations, per_character, gradients = 4 * (B // 2) * T * D, 4 * (B // 2) * T, 4 * (cut // 4 + copied) + 4
to_send = 2 * 3 / 4 * ((2 * L + 2) * activations + 3 * per_character) + 2 * 1 / 2 * gradients
calls = show.collectives(here, state, *batch(0))
moved = [(call.kind, call.group, call.shapes, f"{call.sent_bytes:,}") for call in calls]
show.table(f"What a step moves: predicted {to_send:,.0f} bytes", ("", "devices", "of it here", "bytes sent"), moved)
assert sum(call.sent_bytes for call in calls) == to_send, "a step sends what was predicted, to the byte"
assert {call.kind for call in calls} == {"all-reduce"}, "a step never gathers: no whole weights, no whole logits"

# %% [markdown]
# Now both train, from the same weights, on the same batches. After one step Adam's first moment is a tenth of the
# gradient, so it compares the gradients. They cannot be equal in every bit, because four partial sums are added in
# another order than one long one; they agree to a few parts in ten million.

# %%
state, losses = train(here, state, range(1))
plain, plain_losses = train(alone, start, range(1))
assert abs(losses[0] - plain_losses[0]) < 1e-5, "the sharded loss is the plain loss"
pairs = [(np.asarray(state["adam"][0].mu[name]), np.asarray(plain["adam"][0].mu[name])) for name in PLAN]
apart = max(np.abs(a - b).max() / np.abs(b).max() for a, b in pairs)
assert apart < 1e-5, "the gradients of all weights are the plain ones"

# %% [markdown]
# Forty steps in all. Two other things are seen on the way. The copies of a shard stay the same bits without ever being
# compared, because they start the same and get the same sums. And a curve that is often shown proves nothing: if the
# model is trained with its own input as the target, the loss falls to almost nothing, because a causal model may look
# at the character that it is asked for.

# %%
STEPS = 40
state, later = train(here, state, range(1, STEPS))
plain, plain_later = train(alone, plain, range(1, STEPS))
losses, plain_losses = losses + later, plain_losses + plain_later
_, echo = train(lambda state, ids, _: here(state, ids, ids), init_here(key), range(STEPS))
furthest = max(abs(a - b) for a, b in zip(losses, plain_losses, strict=True))
print(
    f"gradients {apart:.0e} apart; loss {losses[-1]:.3f}, plain {plain_losses[-1]:.3f}, furthest apart {furthest:.0e}"
)
assert furthest < 1e-3, "forty steps of Adam over eight devices are forty steps on one"
assert np.mean(losses[-5:]) < entropy, "the model learns more than how frequent each character is"
assert echo[-1] < 0.1 * losses[-1], "a model asked for its own input has almost no loss, and has learned nothing"
shards = [leaf.addressable_shards for leaf in jax.tree.leaves(state)]
twice = [(a.data, b.data) for leaf in shards for a in leaf for b in leaf if a.index == b.index]
assert all(np.array_equal(a, b) for a, b in twice), "the copies of a shard are still the same bits"

# %% [markdown]
# ## A checkpoint that is never whole in memory
#
# The often-copied checkpoint pulls each array whole into the memory of one host, and keeps the shape of the tree in a
# pickle: a file that can run any program on whoever opens it. Its restore gives back NumPy arrays, which JAX then puts
# whole on the first device.
#
# Here an array is a memory-mapped `.npy` file, named after its place in the tree. Each shard is written where it
# belongs, once, from the device that holds its first copy (`replica_id` 0). To restore, each device asks for its block
# by index and maps no more than that from the file. Nothing says how the array was cut, so the new mesh need not be the
# old one. Many hosts can do the same on a shared file system; in a bucket, where no one writes into the middle of a
# file, arrays are stored in chunks instead, which is what TensorStore does and what the trainer uses.


# %%
def file_of(folder: Path, path: Any) -> Path:
    return folder / (jax.tree_util.keystr(path, simple=True, separator=".") + ".npy")


def save(folder: Path, state: Tree) -> None:
    for path, leaf in jax.tree.leaves_with_path(state):
        file = np.lib.format.open_memmap(file_of(folder, path), "w+", leaf.dtype, leaf.shape)
        for shard in leaf.addressable_shards:
            if shard.replica_id == 0:
                file[shard.index] = shard.data
        file.flush()


def restore(folder: Path, mesh: jax.sharding.Mesh) -> Any:
    def restored(path: Any, leaf: Any) -> Array:
        file = np.load(file_of(folder, path), mmap_mode="r", allow_pickle=False)
        placed = jax.NamedSharding(mesh, leaf.sharding.spec if leaf.sharding else P())
        return jax.make_array_from_callback(file.shape, placed, lambda index: file[index])

    return jax.tree.map_with_path(restored, jax.eval_shape(partial(init, mesh), key))


until_the_end = tempfile.TemporaryDirectory()
folder = Path(until_the_end.name)
save(folder, state)
sizes = {file.name: np.load(file, allow_pickle=False).nbytes for file in sorted(folder.iterdir())}
print(f"{len(sizes)} files, {sum(sizes.values()):,} bytes of numbers: {', '.join(sizes)}")
assert sum(sizes.values()) == sum(leaf.nbytes for leaf in jax.tree.leaves(state)), "no number is stored twice"
assert {Path(name).suffix for name in sizes} == {".npy"}, "nothing in the checkpoint is a pickle"

# %% [markdown]
# The checkpoint is restored on the mesh that it came from and on two others, and trained on. On the same mesh the
# losses are those of the run that never stopped, bit for bit. On another mesh the weights are still the same bits, and
# the losses are equal up to the order of the sums.

# %%
meshes = {"2 x 4": mesh, "1 x 8": mesh_of(1, 8), "4 x 2": mesh_of(4, 2)}
restored = {name: restore(folder, onto) for name, onto in meshes.items()}
for back in restored.values():
    assert same_bits(back, state), "restored on any mesh, the state is the same bits"
blocks = {f"up on {name}": back["params"]["up"][0] for name, back in restored.items()}
show.picture(
    show.draw(**blocks), "restored", "One checkpoint on three meshes: the same numbers, held by other devices."
)
loose = jnp.asarray(np.asarray(state["params"]["words"]))
assert loose.devices() == {jax.devices()[0]}, "an array restored as NumPy is put whole on the first device"
onward = range(STEPS, STEPS + 10)
_, unbroken = train(here, state, onward)
_, resumed = train(here, restored["2 x 4"], onward)
_, elsewhere = train(step_on(meshes["4 x 2"]), restored["4 x 2"], onward)
assert resumed == unbroken, "on its own mesh the run goes on as if it had never stopped, bit for bit"
assert np.allclose(elsewhere, unbroken, atol=1e-4), "on another mesh the run goes on, equal up to the order of sums"

# %%
figure = Figure(figsize=(8.5, 4.2), layout="constrained")
axes = figure.add_subplot(xlabel="step", ylabel="loss (nats a character)", ylim=(0, 6), xlim=(0, STEPS + 10))
axes.plot(losses + unbroken, color="tab:blue", lw=2, label="eight devices, 2 x 4")
axes.plot(range(0, STEPS, 3), plain_losses[::3], "ko", ms=4, label="one device, plain")
axes.plot(onward, elsewhere, "x", color="tab:red", ms=7, mew=2, label="restored on 4 x 2")
axes.plot(echo, color="tab:grey", lw=1.5, ls="--", label="its own input as target")
axes.axhline(entropy, color="tab:green", lw=1, label="knows the frequencies only")
axes.axvline(STEPS - 0.5, color="tab:red", lw=1, ls=":")
axes.legend(frameon=False, ncols=2)
show.picture(figure, "training", "Training on eight devices, on one, and from the checkpoint (dotted) on another mesh.")
