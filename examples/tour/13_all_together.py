# %% [markdown]
# # All together, and the trainer
#
# The trainer's transformer, written out by hand, is trained with ZeRO's stages 0 to 3 over eight devices and with data
# times tensor parallel over 4 x 2, and by `shardwise` on the same job: six runs with the same losses.
#
# Every part has had a tour of its own: [data parallel](05_data_parallel.md), [FSDP](06_fsdp.md),
# [tensor parallel](07_tensor_parallel.md), [a vocabulary over devices](08_vocabulary.md). Here they stand in one file
# of plain arrays, next to the trainer, which does the same with named axes.

# %%
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from matplotlib.figure import Figure

import show
from shardwise.job.load import loads
from shardwise.job.resolve import resolve
from shardwise.train.data.dataset import Reading, prepare
from shardwise.train.data.opening import Watch
from shardwise.train.loader import Loader
from shardwise.train.start import build
from shardwise.train.step import lower_step

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

N, STEPS, LENGTH, VOCAB, RATE, DECAY = 8, 10, 32, 257, 1e-3, 0.1
JOB = f"""apiVersion: shardwise.dev/v1alpha1
kind: TrainingJob
metadata: {{name: tour}}
spec:
  hardware: {{accelerator: cpu-sim, topology: 1x{N}}}
  training:
    model: {{layers: 2, heads: 4, embed: 64, seqLen: {LENGTH}}}
    data: {{train: [{{name: text, paths: ["{tempfile.__file__}"]}}], tokenizer: byte}}
    mesh: {{tensor: 2, dataInner: 2}}
    batch: {{sequences: 16}}
    optimizer: {{name: adamw, learningRate: {RATE}, weightDecay: {DECAY}}}
    steps: {STEPS}"""

# %% [markdown]
# ## The trainer's run
#
# `shardwise run job.yaml` does this on every host, with saves, metrics and a launcher around it. The step is compiled
# once, for fixed shardings. On this mesh it is FSDP over four devices, whose gathers and scatters `dataInner` cuts into
# two steps over two devices each, times tensor parallel over two. The text is one that is on every machine: a file of
# Python's own library.

# %%
job = resolve(loads(JOB))
program = build(job, jax.devices())
scratch = tempfile.TemporaryDirectory(prefix="all-together-")
reading = Reading(seq_len=LENGTH, sequences=16, steps=STEPS, seed=0)
data = prepare(job.spec.training.data, reading, cache_root=Path(scratch.name), watch=Watch())
loader = Loader(data.train.rows, program.layout, sequences=16, seq_len=LENGTH)
batches = [loader.batch(number) for number in range(STEPS)]
state, step = program.lower_init().compile()(), lower_step(program).compile()
weights = jax.device_get(state["params"])
words = jax.device_put(np.zeros(N, np.int32), program.layout.control)  # nobody asks for a save or a stop
runs: dict[str, list[float]] = {"shardwise": []}
for batch in batches:
    state, metrics = step(state, batch, words)
    runs["shardwise"].append(float(metrics.loss))

# %% [markdown]
# ## The same model, in plain arrays
#
# One device's part of it. `tensor` is the axis over which heads, the MLP's features and the vocabulary are split, and
# every `psum` over it adds up partial results. (The trainer makes each such sum in its two halves, with the next norm
# between them: a scatter over positions and a gather. That sends as much, and the norm is computed once, not on every
# device.) On a mesh where `tensor` has size 1, the same lines are the whole model. The trainer's weights all have
# `embed` as their first dimension, which is the one that its FSDP splits; those that map to it are turned here.
#
# One line may surprise: the key's bias gets no gradient. It adds the same number to all scores of a query, which
# softmax does not see, so the true gradient is zero. What rounding leaves instead is noise, and Adam would make full
# steps of it.


# %%
def normed(x: jax.Array, weights: Any, name: str) -> Any:
    x = x - x.mean(-1, keepdims=True)
    x = x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def block(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
    bias = w["blocks.attention.qkv.bias"]
    bias = jnp.stack([bias[0], jax.lax.stop_gradient(bias[1]), bias[2]])[:, None, :, None]
    q, k, v = jnp.einsum("bpe,eqhd->qbhpd", normed(x, w, "blocks.norm"), w["blocks.attention.qkv.weight"]) + bias
    scores = jnp.einsum("bhpd,bhkd->bhpk", q, k) / q.shape[-1] ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -jnp.inf)
    heads = jnp.einsum("bhpk,bhkd->bhpd", jax.nn.softmax(scores), v)
    out = jnp.einsum("bhpd,ehd->bpe", heads, w["blocks.attention.out.weight"])
    x = x + jax.lax.psum(out, "tensor") + w["blocks.attention.out.bias"]
    up = normed(x, w, "blocks.mlp_norm") @ w["blocks.mlp.up.weight"] + w["blocks.mlp.up.bias"]
    down = jax.lax.psum(jax.nn.gelu(up) @ w["blocks.mlp.down.weight"].T, "tensor")
    return x + down + w["blocks.mlp.down.bias"], None


def loss(params: Any, batch: Any) -> Any:
    table, positions = params["token_embedding"].T, params["position_embedding"].T
    entry = jax.lax.axis_index("tensor") * len(table) + jnp.arange(len(table))
    x = jax.lax.psum((batch.tokens[..., None] == entry).astype(float) @ table, "tensor") + positions
    x, _ = jax.lax.scan(block, x, {name: w for name, w in params.items() if name.startswith("blocks.")})
    logits = jnp.where(entry < VOCAB, normed(x, params, "norm") @ table.T, -jnp.inf)
    top = jax.lax.pmax(jax.lax.stop_gradient(logits.max(-1)), "tensor")
    log_z = jnp.log(jax.lax.psum(jnp.exp(logits - top[..., None]).sum(-1), "tensor")) + top
    target = jax.lax.psum(jnp.where(batch.targets[..., None] == entry, logits, 0).sum(-1), "tensor")
    return (log_z - target).mean()


# %% [markdown]
# ## Data parallel times tensor parallel
#
# One table of names says what is split over `tensor`. The gradient is averaged over `data`. Over `tensor` nothing is
# written: for what is whole there, such as norms, JAX adds the partial gradients itself. The optimizer stands outside
# of `shard_map`, where each array is one array again, so its global norm is over everything.


# %%
def mapped(function: Any, mesh: Any, specs: Any, out: Any, *, check_vma: bool = True) -> Any:
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=out, check_vma=check_vma))


def train(gradient: Any, update: Any, params: Any, moments: Any) -> Any:
    losses, grads = [], None
    for batch in batches:
        value, grads = gradient(params, batch)
        params, moments = update(params, moments, grads)
        losses.append(float(value))
    return losses, params, moments, grads


def averaged(mean: Any, params: Any, batch: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(jax.lax.pcast(params, "data", to="varying"), batch)
    return jax.lax.pmean(value, "data"), mean(grads)


def descend(params: Any, moments: Any, grads: Any) -> Any:
    updates, moments = rule.update(grads, moments, params)
    return optax.apply_updates(params, updates), moments


def apart(name: str) -> float:
    return float(np.abs(np.subtract(runs[name], runs["shardwise"])).max())


mesh_of = partial(jax.make_mesh, axis_names=("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
SPLIT = {"heads": "tensor", "mlp": "tensor", "vocab": "tensor"}
grid, specs = mesh_of((4, 2)), {name: P(*map(SPLIT.get, axes)) for name, axes in program.names.items()}
decayed = {name: name.endswith(("embedding", "weight")) and "norm" not in name for name in weights}
rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(RATE, b2=0.95, weight_decay=DECAY, mask=decayed))
params = jax.device_put(weights, {name: NamedSharding(grid, spec) for name, spec in specs.items()})
gradient = mapped(partial(averaged, partial(jax.lax.pmean, axis_name="data")), grid, (specs, P("data")), (P(), specs))
runs["DP x TP"], params, *_ = train(gradient, jax.jit(descend), params, rule.init(params))
show.held(table=params["token_embedding"], up=params["blocks.mlp.up.weight"], norm=params["norm.weight"])
assert apart("DP x TP") < 1e-5, "by hand or by shardwise, the losses are equal"

# %% [markdown]
# ## ZeRO, stage by stage
#
# [ZeRO](https://arxiv.org/abs/1910.02054) asks of each kind of state whether every device needs all of it. It does not
# care for names: parameters are one long vector, cut into eight pieces.
#
# | stage | parameters | moments | gradients | what moves |
# | --- | --- | --- | --- | --- |
# | 0 | whole | whole | whole | gradients summed |
# | 1 | whole | 1/8 | whole | gradients summed; parameters gathered after the update |
# | 2 | whole | 1/8 | 1/8 | gradients reduce-scattered; parameters gathered after the update |
# | 3 | 1/8 | 1/8 | 1/8 | parameters gathered for the step; gradients reduce-scattered |
#
# A reduce-scatter or a gather of B bytes sends 7/8 B from each device, a sum of B bytes twice that. So stage 2 sends as
# little as data parallel, and so does stage 3 as long as it gathers once. (Here it gathers the whole model at once;
# [FSDP](06_fsdp.md) gathers layer by layer.) Clipping needs the norm of the whole gradient: the one number that the
# owners of the pieces add up.

#
# What the stages share: Adam's step, on the whole vector or on a piece of it, and a run that holds what a stage
# measures against its row of the table.


# %%
flat, unravel = ravel_pytree(weights)
decays, _ = ravel_pytree({name: jnp.full(weight.shape, DECAY * decayed[name]) for name, weight in weights.items()})
vector, adam, line, PIECE = np.asarray(flat), optax.scale_by_adam(b1=0.9, b2=0.95), mesh_of((N, 1)), flat.size // N
stages: dict[str, Any] = {}


def stepped(params: Any, moments: Any, grads: Any, decay: Any, square: Any) -> Any:
    updates, moments = adam.update(grads * jnp.minimum(1, square**-0.5), moments)
    return params - RATE * (updates + decay * params), moments


def zero(gradient: Any, update: Any, split: tuple[P, P, P], bytes_held: float, passes: int) -> None:
    name, (param, moment, grad) = f"ZeRO-{len(stages)}", split
    state = (param, optax.ScaleByAdamState(P(), moment, moment))
    gradient = mapped(gradient, line, (param, P("data")), (P(), grad))
    update = mapped(update, line, (*state, grad), state, check_vma=False)
    before, placed = show.by_device(), jax.tree.map(lambda spec: NamedSharding(line, spec), state)
    runs[name], *after = train(gradient, update, *jax.device_put((vector, adam.init(vector)), placed))
    total = np.subtract(show.by_device(), before) / vector.size
    assert apart(name) < 1e-5, f"{name} has the losses of shardwise"
    assert np.allclose(total, bytes_held, rtol=1e-3), f"{name} holds on each device what its row says"
    sent = (show.bytes_moved(gradient, after[0], batches[0]) + show.bytes_moved(update, *after)) / vector.nbytes
    assert abs(sent - passes * 7 / 8) < 1e-3, f"{name} sends what its row says"
    each = [x.addressable_shards[0].data.nbytes / vector.size for x in (after[0], *after[1][1:], after[2])]
    stages[name] = each, [f"{number:.3f}" for number in (total.max(), bytes_held, sent, passes * 7 / 8)]


# %% [markdown]
# **Stage 0** is data parallel: every device holds everything, and all do the same step.


# %%
def summed(params: Any, batch: Any) -> Any:
    return averaged(lambda g: jax.lax.psum(ravel_pytree(g)[0], "data") / N, unravel(params), batch)


def whole(params: Any, moments: Any, grads: Any) -> Any:
    return stepped(params, moments, grads, decays, (grads**2).sum())


zero(summed, whole, (P(), P(), P()), bytes_held=16, passes=2)

# %% [markdown]
# **Stage 1**: each device keeps the moments of its own eighth and steps that eighth alone. What it has whole it cuts
# first, and the new parameters are gathered.


# %%
def piece(x: jax.Array) -> jax.Array:
    return x if x.size == PIECE else jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index("data") * PIECE, PIECE)


def own(params: Any, moments: Any, grads: Any) -> Any:
    square = jax.lax.psum((piece(grads) ** 2).sum(), "data")
    after, moments = stepped(piece(params), moments, piece(grads), piece(decays), square)
    return (after if params.size == PIECE else jax.lax.all_gather(after, "data", tiled=True)), moments


zero(summed, own, (P(), P("data"), P()), bytes_held=8 + 8 / N, passes=3)

# %% [markdown]
# **Stage 2**: an eighth of the gradient is all that the step of an eighth needs, so the sum is left scattered.


# %%
def scattered(params: Any, batch: Any) -> Any:
    return averaged(lambda g: jax.lax.psum_scatter(ravel_pytree(g)[0], "data", tiled=True) / N, unravel(params), batch)


zero(scattered, own, (P(), P("data"), P("data")), bytes_held=4 + 12 / N, passes=2)

# %% [markdown]
# **Stage 3**: the gather moves from the end of a step to the beginning of the next. Between steps each device holds an
# eighth of everything.


# %%
def gathered(params: Any, batch: Any) -> Any:
    return scattered(jax.lax.all_gather(params, "data", tiled=True, to="invarying"), batch)


zero(gathered, own, (P("data"), P("data"), P("data")), bytes_held=16 / N, passes=2)

# %%
rows = [(name, *numbers) for name, (_, numbers) in stages.items()]
show.table("ZeRO", ("each device", "bytes a parameter", "predicted", "sent, of parameters", "predicted"), rows)
figure, widths = Figure(figsize=(8, 2.8), layout="constrained"), np.transpose([each for each, _ in stages.values()])
axes = figure.add_subplot(title="Bytes a parameter on each device", ylim=(3.6, -0.6))
parts = ("parameters", "Adam's mean", "Adam's square", "gradients")
for label, width, left in zip(parts, widths, np.cumsum(widths, axis=0) - widths, strict=True):
    axes.barh(list(stages), width, left=left, label=label)
axes.legend(frameon=False, loc="lower right")
show.picture(figure, "stages", "Each stage of ZeRO stops holding one more thing on every device.")

# %% [markdown]
# ## Six runs, one training
#
# The losses agree to the rounding of float32: sums are made in other orders, and nothing else differs. Which of the six
# a job should be is a question of memory and bandwidth, and `mesh` in its file answers it.

# %%
rows = [(name, *(f"{losses[i]:.6f}" for i in (0, 4, 9)), f"{apart(name):.0e}") for name, losses in runs.items()]
show.table("Losses", ("", "step 1", "step 5", "step 10", "furthest from shardwise's"), rows)
