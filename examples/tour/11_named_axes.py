# %% [markdown]
# # Named axes
#
# One GPT, written by the names of its axes, becomes data parallel, FSDP and tensor parallel by changing nothing but a
# mapping from names to mesh axes. Its losses stay those of one device, and those of the trainer with the same weights.
#
# The library is [haliax](https://github.com/marin-community/marin/tree/main/lib/haliax). Its stable release 1.3 no
# longer imports with a current JAX, so we use its continuation `marin-haliax`, which has the same import name
# ([why](../decisions/0001-haliax-version.md)). A `NamedArray` is a plain array in `.array` with an `Axis`, a name and a
# size, for each dimension; by custom a capital names an axis.

# %%
import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from haliax import Axis, NamedArray
from jax.sharding import AxisType, Mesh, NamedSharding

import show
from shardwise.train.block import Block
from shardwise.train.config import GptConfig
from shardwise.train.linear import Linear
from shardwise.train.model import Gpt
from show.loops import Cost, cost, cost_bars, cost_table

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

Array = jax.Array
Mapped = Mapping[str, Any]  # the name of an axis -> that of a mesh axis, or of several
SIZES = {"num_layers": 4, "num_heads": 4, "embed_size": 64, "mlp_size": 256, "seq_len": 32, "vocab_size": 256}
CONFIG = GptConfig(**SIZES, remat="none", attention="plain")  # type: ignore[arg-type]  # all of them are integers
Batch, Position, Key = Axis("batch", 16), CONFIG.Position, CONFIG.Position.alias("key")
Embed, Mlp, Vocab = CONFIG.Embed, CONFIG.Mlp, CONFIG.Vocab
STEPS, RULE, TOLERANCE = 3, optax.adam(1e-3), 5e-6
QUICK: dict[str, str | bool] = {"xla_backend_optimization_level": "0", "xla_cpu_use_fusion_emitters": False}

# %% [markdown]
# ## The model: no device, no mesh, no order of dimensions
#
# The weights are a tree of modules that hold named arrays. Ours is the one that the trainer's `Gpt.init` makes, so that
# we can compare later; what is computed with it is written here. `hax.dot(q, k, axis=...)` sums over that axis,
# wherever it stands, and keeps all others. So a weight may map several axes to several others, attention needs no
# reshape, and nobody sees that the trainer stores `embed` first in every weight, also in those that map to it.
# `blocks` is one `Block` whose arrays have an axis more, `layers`, and `fold_via` is a `scan` over it.


# %%
def linear(x: NamedArray, of: Linear) -> NamedArray:
    return hax.auto_sharded(hax.dot(x, of.weight, axis=of.In) + of.bias)


def layer(x: NamedArray, block: Block) -> NamedArray:
    qkv = linear(block.norm(x), block.attention.qkv)  # type: ignore[arg-type, misc, union-attr]  # it has both
    q, k, v = qkv.unbind(CONFIG.Qkv)
    k, v = k.rename({"position": "key"}), v.rename({"position": "key"})  # no name may stand twice in one array
    scores = hax.dot(q, k, axis=CONFIG.HeadSize) / math.sqrt(CONFIG.HeadSize.size)
    seen = hax.tril(hax.ones((Position, Key), dtype=bool), Position, Key)
    x = x + linear(hax.dot(hnn.softmax(hax.where(seen, scores, -1e9), axis=Key), v, axis=Key), block.attention.out)
    hidden = linear(block.mlp_norm(x), block.mlp.up)  # type: ignore[misc]  # this block has one
    return x + linear(hnn.gelu(hidden, approximate=True), block.mlp.down)


def by_names(model: Gpt, tokens: NamedArray, targets: NamedArray, *, scanned: bool = True) -> Array:
    x = hax.auto_sharded(model.token_embedding.take(Vocab, tokens) + model.position_embedding)
    by_scan = model.blocks.fold_via(lambda block, x: layer(x, block))
    x = by_scan(x) if scanned else reduce(layer, model.blocks.unstacked(), x)
    logits = hax.dot(model.norm(x), model.token_embedding, axis=Embed)
    return jnp.mean(hnn.cross_entropy_loss(logits, Vocab, hnn.one_hot(targets, Vocab)).array)


TOKENS, TARGETS = (hax.random.randint(jax.random.key(seed), (Batch, Position), 0, Vocab.size) for seed in (1, 2))

# %% [markdown]
# ## Layers by scan: one program for any depth
#
# A `scan` compiles its body once. The same layers called one after the other give a program that grows with their
# number, and the compiler's time with it. (The seconds are of two cores with XLA told to hurry, here and below, since
# a few steps do not repay a good compile. They are the only thing on this page that another run changes.)
#
# It is sometimes said that a scan also spares compiling for another number of layers. It does not: the number of rounds
# is part of the program, so another depth is another program, only a short one.


# %%
def compiled(depth: int, *, scanned: bool) -> tuple[str, str]:  # the program, and the seconds to compile it
    abstract = jax.eval_shape(partial(Gpt.init, replace(CONFIG, num_layers=depth)), key=jax.random.key(0))
    lowered = jax.jit(partial(by_names, scanned=scanned)).lower(abstract, TOKENS, TARGETS)
    began = time.perf_counter()
    lowered.compile(QUICK)
    return lowered.as_text(), f"{time.perf_counter() - began:.1f}"


DEPTHS = (1, 8)
both = [[compiled(depth, scanned=scanned) for depth in DEPTHS] for scanned in (True, False)]
lines, seconds = [[len(text.splitlines()) for text, _ in made] for made in both], [[s for _, s in m] for m in both]
columns = ("layers", "lines, scan", "lines, calls", "seconds, scan", "seconds, calls")
show.table("The loss, compiled", columns, zip(DEPTHS, *lines, *seconds, strict=True))
assert len(set(lines[0])) == 1, "a scan has as many lines for eight layers as for one"
assert lines[1][-1] > 3 * lines[1][0], "a program that calls its layers grows with them"
assert len({text for text, _ in both[0]}) == len(DEPTHS), "another depth is another program"

# %% [markdown]
# ## What a mapping does not tell you
#
# `hax.shard(x, mapping)` looks up each name of `x` and splits that dimension over the mesh axis found. Four traps:
#
# 1. A name that no array has is ignored. A mapping that says `head` where the model says `heads` splits nothing.
# 2. `hax.axis_mapping` is read while a function is *traced*. One that is compiled keeps its layout under any other
#    mapping, without a word. (In the trainer the layout is an argument, for this reason.)
# 3. Inside `jit`, an array none of whose names is mapped is not pinned at all. Outside, the same call makes it whole on
#    every device.
# 4. `named_jit(f, axis_resources=m)` lays out what `f` *returns*. An often-copied example multiplies two whole matrices
#    under it and says that XLA distributes the product with an all-gather and a reduce-scatter: nothing is distributed.
#    With arguments that are split it is, by one all-reduce.

# %%
make_mesh = partial(jax.make_mesh, axis_names=("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
line, grid = make_mesh((8, 1)), make_mesh((4, 2))
with jax.set_mesh(line):
    whole = (hax.ones((Batch, Embed)), weight := hax.ones((Embed, Mlp)))
    split = hax.shard(whole, {"embed": "data"})
    assert hax.shard(weight, {"embd": "data"}).array.is_fully_replicated, "a name that no array has is ignored"
    pin = jax.jit(hax.auto_sharded)
    one, other = (hax.axis_mapping({name: "data"})(pin)(weight).array.sharding for name in ("embed", "mlp"))
    assert one == other, "a compiled function keeps the mapping that it was traced under"
    unpinned = jax.jit(partial(hax.shard, mapping={}))(split[1]).array
    show.held(split=split[1].array, unpinned=unpinned, misspelt=hax.shard(weight, {"embd": "data"}).array)
    assert not unpinned.is_fully_replicated, "inside jit an array without a mapped name is not pinned"
    product = hax.named_jit(lambda x, w: hax.dot(x, w, axis=Embed), axis_resources={"embed": "data"})
    kinds = [[found.kind for found in show.collectives(product, *given)] for given in (whole, split)]
    assert kinds == [[], ["all-reduce"]], "named_jit distributes no argument; a product over a split name is one sum"

# %% [markdown]
# ## One step, and two mappings around it
#
# `compute` says where activations live: `hax.auto_sharded(x)`, which `linear` calls on its result, looks the names of
# `x` up in it and pins `x` there. `parameters` says where weights and Adam's moments are stored between steps:
# `pspec_for` looks up the names of every array of a tree, so neither the model nor the optimizer has to be taken apart.
# A name without an entry is split over nothing.


# %%
LOSSES: dict[str, list[float]] = {}
STORED: dict[str, int] = {}  # bytes of weights and moments on one device
COSTS: dict[str, Cost] = {}  # of one step


def train(
    loss: Callable[..., Array], compute: Mapped | None, state: Any, tokens: NamedArray, targets: NamedArray
) -> tuple[Any, Array]:
    model, moments = state
    with nullcontext() if compute is None else hax.axis_mapping(compute):
        value, grads = jax.value_and_grad(loss)(model, tokens, targets)
    updates, moments = RULE.update(grads, moments, model)
    return (optax.apply_updates(model, updates), moments), value


def run(name: str, loss: Callable[..., Array], mesh: Mesh, parameters: Mapped, compute: Mapped | None) -> None:
    with jax.set_mesh(mesh):
        places = jax.tree.map(partial(NamedSharding, mesh), hax.partitioning.pspec_for(STATE, parameters))
        # Rows are split over every axis of the mesh but `tensor`, its last.
        state, rows = jax.device_put(STATE, places), hax.shard((TOKENS, TARGETS), {"batch": mesh.axis_names[:-1]})
        step = jax.jit(partial(train, loss, compute), out_shardings=(places, None), compiler_options=QUICK)
        COSTS[name], LOSSES[name] = cost(step, state, *rows), []
        for _ in range(STEPS):
            state, value = step(state, *rows)
            LOSSES[name].append(float(value))
    STORED[name] = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(state))


MODEL = jax.jit(partial(Gpt.init, CONFIG), compiler_options=QUICK)(key=jax.random.key(0))
STATE = (MODEL, jax.jit(RULE.init)(MODEL))

# %% [markdown]
# ## Only the mapping changes
#
# - **Data parallel**: activations by `batch`, weights whole.
# - **FSDP**: weights and moments are stored by `embed`, the one name that nearly all of them have. Batch and embed are
#   over the same mesh axis, in different arrays.
# - **Tensor parallel**: `heads`, `mlp` and `vocab` over a second mesh axis, stored and computed with alike.
# - **FSDP and tensor parallel**: the entries of both.
#
# XLA puts in all communication. The losses must be those of one device: only the order of sums differs, so a few units
# in the last place of a float32 loss of 6 (5e-7 each) are allowed.

# %%
BATCH, FSDP, TENSOR = {"batch": "data"}, {"embed": "data"}, {"heads": "tensor", "mlp": "tensor", "vocab": "tensor"}
BOTH = {**BATCH, **TENSOR}
MAPPINGS: dict[str, tuple[Mesh, Mapped, Mapped]] = {
    "one device": (make_mesh((1, 1)), {}, {}),
    "data parallel": (line, {}, BATCH),
    "FSDP": (line, FSDP, BATCH),
    "tensor parallel": (grid, TENSOR, BOTH),
    "FSDP and tensor": (grid, {**FSDP, **TENSOR}, BOTH),
}


def predicted(mesh: Mesh, parameters: Mapped) -> int:
    # Bytes on one device: weight and moments in float32, split as the names of the array say, and Adam's counter.
    arrays = jax.tree.leaves(MODEL, is_leaf=lambda x: isinstance(x, NamedArray))
    parts = {name: mesh.shape[axis] for name, axis in parameters.items()}
    return int(4 + sum(12 * x.array.size // math.prod(parts.get(axis.name, 1) for axis in x.axes) for x in arrays))


def apart(name: str) -> float:
    return float(np.abs(np.subtract(LOSSES[name], LOSSES["one device"])).max())


for name, mapping in MAPPINGS.items():
    run(name, by_names, *mapping)
    assert apart(name) < TOLERANCE, f"{name}: the losses are those of one device"
by_formula = {name: predicted(*mapping[:2]) for name, mapping in MAPPINGS.items()}
cost_table("One step, on each device", COSTS, stored=STORED, predicted=by_formula)
assert by_formula == STORED, "names and mapping say what is stored"
assert STORED["FSDP"] < STORED["one device"] / 7.5, "FSDP stores an eighth of all but a few biases"
for which, (title, axes) in enumerate({"weight": (Embed, Mlp), "activation": (Batch, Mlp)}.items(), 1):
    placed = {name: hax.shard(hax.zeros(axes), to[which], to[0]).array for name, to in list(MAPPINGS.items())[1:]}
    show.picture(show.draw(**placed), title, f"The {title} of the MLP's first product: who has which block.")

# %% [markdown]
# What moves can be predicted as well. Data parallel sums every gradient once, and a sum of B bytes over n devices sends
# 2 (n - 1)/n B. The token table is used twice, as embedding and as head, and XLA sums its two gradients *separately*.
# FSDP gathers a layer's weights in the round of the loop that needs them, once forward and once backward, so no gather
# makes more than one matrix. Its gradients are often said to be reduce-scattered; XLA's CPU compiler sums them whole
# and cuts (what a TPU's does can be asked of `shardwise plan`).

# %%
elements = sum(x.size for x in jax.tree.leaves(MODEL)) + MODEL.token_embedding.array.size + 1  # the 1 is the loss
sent, fsdp = COSTS["data parallel"].sent_bytes, COSTS["FSDP"]
print(f"data parallel: {2 * 7 / 8 * 4 * elements:,.0f} bytes to send predicted, {sent:,} measured")
print(f"FSDP: {fsdp.largest_gather_bytes:,} bytes in the largest gather, {STORED['one device'] // 3:,} in the model")
assert sent == 2 * 7 / 8 * 4 * elements, "data parallel sums each gradient once"
assert fsdp.largest_gather_bytes == 4 * Embed.size * Mlp.size, "no gather of FSDP makes more than one matrix"
assert "reduce-scatter" not in fsdp.kinds, "XLA for CPU makes no reduce-scatter of its own"

# %% [markdown]
# ## Without `auto_sharded`
#
# Under FSDP both `batch` and `embed` are over the mesh axis `data`. An activation has both names, and only one of them
# can have the axis. The mapping decides for `batch`. Left alone, XLA follows the token table into `embed`: every device
# then computes with the whole batch, and every product over `embed` ends in a sum of whole activations. The losses are
# right, which is the trouble: only the bytes say that something is wrong.

# %%
run("left to XLA", by_names, line, FSDP, None)
more = [getattr(COSTS["left to XLA"], what) / getattr(fsdp, what) for what in ("sent_bytes", "temporary_bytes")]
assert apart("left to XLA") < TOLERANCE, "the losses do not show that a pin is lost"
assert min(more) > 3, "without auto_sharded a step sends several times as much, and needs as much more memory"

# %% [markdown]
# There is a second way to lose the pin. Older code writes the loss of *one* row and maps it, `hax.vmap(loss, Batch)`;
# inside, the name `batch` is gone and `auto_sharded` cannot find it, so all of it is for nothing. Names make the map
# unnecessary: the model above takes the batch as one more axis.


# %%
def row_by_row(model: Gpt, tokens: NamedArray, targets: NamedArray) -> Array:
    return jnp.mean(hax.vmap(partial(by_names, model), Batch)(tokens, targets))


run("vmap", row_by_row, line, FSDP, BATCH)
cost_table("FSDP, one step on each device", {name: COSTS[name] for name in ("FSDP", "left to XLA", "vmap")})
assert COSTS["vmap"].sent_bytes > 3 * fsdp.sent_bytes, "a vmap hides the batch from auto_sharded"

# %% [markdown]
# ## The trainer, on the same weights
#
# The same two tables stand at the head of the trainer's [layout.py](../../trainer/shardwise/train/layout.py), with one
# name more for keys and values that several heads share, as in Llama, and a third table for activations between
# attention and MLP, which `tensor` splits by position. What the trainer does otherwise:
# the layout is an argument; its programs are compiled by `jax.jit`, because `named_jit` has a second cache beside
# JAX's; and weights are gathered, and their gradients scattered, by hand. `data` is two mesh axes there, since over
# many devices [each goes in two steps](../../trainer/shardwise/train/fsdp.py): a gather over the inner axis and then
# the outer, a scatter the other way round. Here these are 2 x 2, so no matrix is gathered or scattered over four
# devices at once. The same three steps with its `loss`:

# %%
from shardwise.train.axes import COMPUTE, PARAMETERS
from shardwise.train.dropout import Dropout
from shardwise.train.layout import Layout
from shardwise.train.loss import HeadLoss, head_loss
from shardwise.train.mesh import DATA

layout, f32 = Layout.over(np.array(jax.devices()).reshape(1, 2, 2, 1, 1, 2)), jnp.dtype("float32")
settings = HeadLoss(Vocab.size, 4096, 0.0, by_position=True, compute=f32, wire=f32, logits=f32)
of_head = partial(head_loss, settings)


def by_trainer(model: Gpt, tokens: NamedArray, targets: NamedArray) -> Array:
    sums = model.loss(tokens.array, None, targets.array, jnp.ones(TOKENS.array.shape), Dropout.none(), layout, of_head)
    return sums.total / sums.weight


tables = [{n: DATA if to == "data" else to for n, to in t.items()} for t in MAPPINGS["FSDP and tensor"][1:]]
known = {*tables[0], *tables[1]}  # the other names are of axes that this model has not
ours = [{n: to for n, to in table.items() if n in known} for table in (PARAMETERS, COMPUTE)]
assert tables == ours, "the trainer's two tables are those of the tour"
run("trainer", by_trainer, layout.mesh, PARAMETERS, COMPUTE)
cost_table("FSDP and tensor, one step on each device", {name: COSTS[name] for name in ("FSDP and tensor", "trainer")})
assert apart("trainer") < TOLERANCE, "the trainer's losses are those of the tour"
by_hand = [one for _, one in COSTS["trainer"].collectives if one.kind != "all-reduce" and "," in one.shapes]  # matrices
assert {one.group for one in by_hand} == {2}, "the trainer gathers and scatters no matrix over more than two devices"
show.picture(cost_bars(COSTS), "bytes", "A step on each device: a lost pin costs more than any mapping.")
