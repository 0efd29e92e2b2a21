# %% [markdown]
# # FSDP by hand
#
# Parameters, gradients and optimizer state are split over the devices, and a matrix is whole only while a layer uses
# it: 16 bytes a parameter become 2 on each of eight devices, for the same training as data parallel.
#
# In [data parallel](05_data_parallel.md) every device holds the whole model. In float32 a parameter takes 4 bytes, its
# gradient 4 and Adam's two moments 8: 16 bytes a parameter, on every device. FSDP (*fully sharded data parallel*, stage
# 3 of ZeRO, [Rajbhandari et al. 2020](https://arxiv.org/abs/1910.02054)) divides them by the number of devices. Each
# device still has its own rows of the batch. What changes is where things live between their uses.
#
# Six words, as all tours use them:
#
# - A *mesh* is the devices in a grid. Each of its *axes* has a name; here there is one axis, `data`, of eight devices.
# - A *shard* is the part of an array that one device holds. `P("data")` splits an array's first dimension over `data`,
#   `P(None, "data")` its second; `P()` leaves it whole on every device.
# - An *all-gather* gives every device all shards, which make the whole array.
# - A *reduce-scatter* adds up one array of each device, and gives every device its own shard of the sum.
# - An *all-reduce* gives every device all of that sum. It sends what the two before it send together.
#
# These exchanges are *collectives*; [tour 03](03_moving_data.md) draws them. Of an array that has *B* bytes as a whole,
# over *n* devices, each device sends *(n-1)/n B* in a gather or a scatter, here 7/8 *B*, and twice that in an
# all-reduce.

# %%
import tempfile
from functools import partial
from math import inf, prod
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from matplotlib.figure import Figure

import show
from show.loops import cost

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

N, INPUTS, HIDDEN, LAYERS, CLASSES, ROWS, STEPS = 8, 64, 256, 8, 10, 256, 10
SHAPES = {"up": (INPUTS, HIDDEN), "layers": (LAYERS, HIDDEN, HIDDEN), "down": (HIDDEN, CLASSES)}
RULE, KEY = optax.adamw(1e-3), jax.random.key(0)
mesh = jax.make_mesh((N,), ("data",), axis_types=(AxisType.Auto,))

# %% [markdown]
# ## Which dimension is split
#
# Each array is split along its longest dimension that eight divides, if it is large enough to be worth a collective of
# its own. (The trainer goes by an axis's name instead: tour 11.) Adam's moments have their parameter's shape, so the
# same rule places them. `eval_shape` gives all shapes without making an array.


# %%
def init(key: jax.Array) -> dict[str, jax.Array]:
    keys = zip(SHAPES.items(), jax.random.split(key, len(SHAPES)), strict=True)
    matrices = {name: jax.random.normal(one, shape) / shape[-2] ** 0.5 for (name, shape), one in keys}
    return {**matrices, "bias": jnp.zeros(CLASSES)}


def start(key: jax.Array) -> tuple[Any, Any]:
    return (params := init(key)), RULE.init(params)


def split(shape: tuple[int, ...], min_size: float) -> P:
    axes = sorted(range(len(shape)), key=lambda axis: -shape[axis])
    fits = (axis for axis in axes if prod(shape) > min_size and shape[axis] % N == 0)
    return next((P(*(None,) * axis, "data") for axis in fits), P())


def specs_of(min_size: float) -> Any:
    return jax.tree.map(lambda x: split(x.shape, min_size), jax.eval_shape(start, KEY))


def placed(specs: Any) -> Any:
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)


SPECS = specs_of(1024)
shards, optimizer = jax.jit(start, out_shardings=placed(SPECS))(KEY)
param_bytes = sum(x.nbytes for x in shards.values())
show.held(**shards, moment_of_layers=optimizer[0].mu["layers"])
drawing = show.draw(up=shards["up"], down=shards["down"], bias=shards["bias"])
show.picture(drawing, "split", "Each matrix is cut along its longest axis; ten biases are too few, and stay whole.")
assert optimizer[0].mu["layers"].sharding == shards["layers"].sharding, "a moment lives where its parameter lives"
assert all(("data" in x.sharding.spec) == (name in SHAPES) for name, x in shards.items()), "every matrix is split"

# %% [markdown]
# ## Gather, and its mirror
#
# On the way forward a matrix is all-gathered just before the layer that uses it: every device gets all shards. On the
# way back each device has a gradient of the *whole* matrix, from its own rows of the batch. What it needs is the sum
# over the devices of its own *shard* only. That is a reduce-scatter.
#
# So FSDP takes data parallel's all-reduce of the gradients apart: the reduce-scatter comes now, and the all-gather
# before the next use of the weights. JAX knows the pair: differentiating `all_gather` gives `psum_scatter`, its
# reduce-scatter, so no gradient is written by hand. Divided by the number of devices, the sum is the mean. The biases
# stayed whole, so their gradient is averaged as in data parallel (`pmean`).
#
# `loss` takes two functions: `whole` makes a parameter whole, and `again` may wrap a layer. With `jax.checkpoint` as
# `again`, the backward pass gathers a second time instead of keeping what was gathered.


# %%
def loss(params: Any, batch: Any, whole: Any = lambda _, x: x, again: Any = lambda layer: layer) -> Any:
    def layer(x: jax.Array, part: jax.Array) -> Any:
        return jax.nn.silu(x @ whole("layers", part)), None

    x, _ = jax.lax.scan(again(layer), batch["inputs"] @ whole("up", params["up"]), params["layers"])
    logits = x @ whole("down", params["down"]) + params["bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()


def gradients(specs: Any, again: Any, params: Any, batch: Any) -> Any:
    def whole(name: str, part: jax.Array) -> Any:
        spec = tuple(specs[name])[len(SHAPES[name]) - part.ndim :]  # in the loop a part has no layer axis
        return jax.lax.all_gather(part, "data", axis=spec.index("data"), tiled=True) if "data" in spec else part

    own = {name: x if "data" in specs[name] else jax.lax.pcast(x, "data", to="varying") for name, x in params.items()}
    value, grads = jax.value_and_grad(loss)(own, batch, whole, again)
    mean = {name: g / N if "data" in specs[name] else jax.lax.pmean(g, "data") for name, g in grads.items()}
    return jax.lax.pmean(value, "data"), mean


# %% [markdown]
# ## The same gradient
#
# Set the minimum size for splitting to infinity and this program is data parallel: every parameter stays whole and
# every gradient is averaged. So three programs can be compared: data parallel, FSDP, and FSDP that gathers again. The
# device memory profile is read before and after the state is made, and with the gradients in hand.


# %%
def over_devices(function: Any, specs: Any) -> Any:
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=(specs, P("data")), out_specs=(P(), specs)))


def fresh(place: Any) -> Any:
    return jax.device_put(jax.jit(start)(KEY), place)


batch = {"inputs": jax.random.normal(jax.random.key(1), (ROWS, INPUTS)), "labels": jnp.arange(ROWS) % CLASSES}
alone, batch = jax.device_put(batch, jax.devices()[0]), jax.device_put(batch, NamedSharding(mesh, P("data")))
expected = jax.device_get(jax.jit(jax.grad(loss))(fresh(jax.devices()[0])[0], alone))
programs: Any = {"data parallel": (specs_of(inf), lambda x: x), "FSDP": (SPECS, lambda x: x)}
programs["FSDP, gathered again"] = (SPECS, jax.checkpoint)
held = {}
for name, (specs, again) in programs.items():
    before = show.by_device()
    state = fresh(placed(specs))
    at_rest = show.by_device()
    _, grads = over_devices(partial(gradients, specs[0], again), specs[0])(state[0], batch)
    with_grads = show.by_device()
    held[name] = [4 / param_bytes * np.subtract(now, before) for now in (at_rest, with_grads)]
    for key, gradient in jax.device_get(grads).items():
        assert np.abs(gradient - expected[key]).max() < 1e-5, "all three programs have one device's gradient"
    del state, grads

# %% [markdown]
# ## Sixteen bytes a parameter, over the devices
#
# The prediction: 4 + 4 + 8 bytes a parameter, divided by the devices. A model of 1.5 billion parameters needs 24 GB on
# every device without FSDP, and 3 GB on each of eight with it. Between steps there are no gradients, so the state at
# rest is 12 bytes a parameter.

# %%
by_data, kept, twice = programs
cells = [(i, *(f"{held[name][when][i]:.3f}" for name in (by_data, kept) for when in (0, 1))) for i in range(N)]
columns = ("device", "data parallel", "+ gradients", "FSDP", "+ gradients")
show.table(f"Bytes a parameter; predicted: 12, 16, 12/8 = {12 / N}, 16/8 = {16 / N}", columns, cells)
assert np.allclose(held[by_data], [[12.0] * N, [16.0] * N], rtol=1e-3), "data parallel holds 16 bytes a parameter"
assert np.allclose(held[kept], [[12 / N] * N, [16 / N] * N], rtol=1e-3), "FSDP holds 16 / devices bytes a parameter"

# %% [markdown]
# ## What moves for it
#
# The compiled programs say what they send. Data parallel all-reduces the gradients; FSDP's gather and reduce-scatter
# send the same number of bytes.
#
# FSDP is often introduced with "the entire model is never on one device". That is true of the state. It is true of the
# step only if the backward pass gathers again: else every layer's whole matrix waits for it. The second gather costs
# half as much again on the wire, and a little less here, where `up` and `down` are gathered once. *Temporaries* are
# what the step needs besides its state while it runs.

# %%
moved, needs, table = {}, {}, []
for (name, (specs, again)), predicted in zip(programs.items(), (2, 2, 3), strict=True):
    program = over_devices(partial(gradients, specs[0], again), specs[0])
    costs = cost(program, fresh(placed(specs))[0], batch)
    moved[name], needs[name] = costs.sent_bytes / param_bytes, costs.temporary_bytes / param_bytes
    table.append((name, f"{predicted * 7 / 8:.3f}", f"{moved[name]:.3f}", f"{needs[name]:.2f}"))
show.table("In bytes of all parameters", ("program", "predicted to send", "sends", "temporaries"), table)
assert needs[kept] > 1, "gathered once, the whole model is on every device between forward and backward"
assert abs(moved[kept] / moved[by_data] - 1) < 0.01, "FSDP sends no more than data parallel"
assert abs(moved[twice] / moved[by_data] - 1.5) < 0.02, "the second gather adds half as much again"
assert needs[twice] < 0.6, "gathered again, one layer at a time is whole"

# %% [markdown]
# ## Ten steps
#
# The optimizer works on parts: AdamW looks at one parameter at a time, so a part needs nothing from the others.
# (Clipping by the global norm would need a sum over the devices first.) One device, data parallel and FSDP add the same
# numbers in another order, so they agree to the rounding of float32.


# %%
def train(gradient: Any, state: Any, batch: Any, jit: Any) -> Any:
    def step(state: Any, batch: Any) -> Any:
        value, grads = gradient(state[0], batch)
        updates, optimizer = RULE.update(grads, state[1], state[0])
        return value, (optax.apply_updates(state[0], updates), optimizer)

    losses, program = [], jit(step)
    for _ in range(STEPS):
        value, state = program(state, batch)
        losses.append(float(value))
    return losses, jax.device_get(state[0]["layers"])


runs = {"one device": train(jax.value_and_grad(loss), fresh(jax.devices()[0]), alone, jax.jit)}
for name, (specs, wrap) in programs.items():
    gradient = partial(gradients, specs[0], wrap)
    runs[name] = train(gradient, fresh(placed(specs)), batch, partial(over_devices, specs=specs))
cells = [(name, *(f"{losses[i]:.6f}" for i in (0, 4, 9))) for name, (losses, _) in runs.items()]
show.table("Loss", ("", "step 1", "step 5", "step 10"), cells)
for losses, layers in runs.values():
    assert np.abs(layers - runs[by_data][1]).max() < 1e-4, "FSDP trains the parameters of data parallel"
    assert np.allclose(losses, runs[by_data][0], atol=1e-5), "FSDP has the losses of data parallel"

# %%
axes, left = (figure := Figure(figsize=(8, 2.8), layout="constrained")).add_subplot(), np.zeros(3)
share = np.array([held[name][1][0] / 16 for name in programs])
parts = {"parameters": 4 * share, "Adam's moments": 8 * share, "gradients": 4 * share}
for label, width in {**parts, "temporaries": 4 * np.array(list(needs.values()))}.items():
    axes.barh(list(programs), width, left=left, label=label)
    left = left + width
axes.set(title="What a device needs at once, in bytes a parameter", ylim=(2.6, -0.6))
axes.legend(frameon=False, loc="lower right")
show.picture(figure, "cost", "The state takes an eighth; gathering again keeps what a step needs beside it small.")

# %% [markdown]
# ## That is FSDP
#
# Shards at rest, an all-gather before each use, a reduce-scatter of each gradient: an eighth of the memory, for the
# bytes of data parallel, or half as many again where the backward pass gathers too, and the same losses. Next, [tensor
# parallelism](07_tensor_parallel.md) splits the computation of a layer too. The rest of this page is for those who
# write such a program: how to make the weights, how to gather over many devices, and which flags to set on GPUs.

# %% [markdown]
# ## An init that never makes the whole
#
# A common version runs the ordinary init inside `shard_map` and lets each device cut its part out of the result. The
# *state* is split then, but each device has made all of it first, and a model that needs FSDP does not fit there. Under
# `jit` with `out_shardings` the compiler makes each part where it will live. JAX's random numbers do not depend on the
# partition ([the tour of randomness](04_randomness.md)), so both give the same bits.


# %%
def cut(spec: P, x: jax.Array) -> jax.Array:
    if "data" not in spec:
        return x
    axis = tuple(spec).index("data")
    size = x.shape[axis] // N
    return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index("data") * size, size, axis)


cut_out = jax.shard_map(lambda key: jax.tree.map(cut, SPECS[0], init(key)), mesh=mesh, in_specs=P(), out_specs=SPECS[0])
inits = {"whole, then cut": jax.jit(cut_out), "in parts": jax.jit(init, out_shardings=placed(SPECS[0]))}
needs = {name: show.temporaries(made, KEY) / param_bytes for name, made in inits.items()}
cells = [(name, f"{x:.2f}") for name, x in needs.items()]
show.table("Temporary memory of init on each device", ("init", "in bytes of all parameters"), cells)
one, other = (jax.device_get(made(KEY)) for made in inits.values())
assert all((one[name] == other[name]).all() for name in one), "both ways give the same bits"
assert needs["whole, then cut"] > 1, "cutting parts out of the whole makes the whole on every device"
assert needs["in parts"] < 0.5, "made in parts, the whole is never anywhere"

# %% [markdown]
# ## A gather in two steps
#
# Over many devices one gather is not always one: XLA's compiler for TPUs makes of a gather over 64 chips an all-reduce
# of the whole matrix, which sends twice as much. Gathers over 16 it leaves as they are. So
# [the trainer](../../trainer/shardwise/train/fsdp.py) lets `data` be two axes of the mesh, and gathers over the inner
# one first, then over the outer; the gradient is scattered the other way round.
#
# That adds no byte. Of B bytes over n = outer x inner devices, the first step sends (inner - 1) B / n, as it joins
# small parts to larger ones, and the second (outer - 1) B / outer. Together they are (n - 1) B / n, as in one step. The
# order is not free: with the outer axis first the parts come in another order, and the matrix is another.


# %%
def in_steps(steps: tuple[Any, ...], part: jax.Array) -> Any:
    for axis in steps:
        part = jax.lax.all_gather(part, axis, tiled=True, to="invarying")
    return part


pairs = jax.make_mesh((4, 2), both := ("outer", "inner"), axis_types=(AxisType.Auto,) * 2)
sends, matrix = {}, jax.device_put(shards["layers"][0], NamedSharding(pairs, P(both)))
for words, steps in {"one step": (both,), "two steps": both[::-1]}.items():
    program = jax.jit(jax.shard_map(partial(in_steps, steps), mesh=pairs, in_specs=P(both), out_specs=P()))
    assert (program(matrix) == shards["layers"][0]).all(), "in one step or in two, the matrix is the same"
    sends[words] = [(one.group, one.sent_bytes / matrix.nbytes) for one in show.collectives(program, matrix)]
cells = [(words, " + ".join(f"{part} over {n}" for n, part in each)) for words, each in sends.items()]
show.table("Sent by each device, in bytes of the matrix", ("gathered in", "sent, over a group of"), cells)
assert sends == {"one step": [(8, 7 / 8)], "two steps": [(2, 1 / 8), (4, 3 / 4)]}, "two steps send what one step sends"

# %% [markdown]
# ## Flags of XLA for GPUs, then and now
#
# On GPUs such programs are often started with five flags in `XLA_FLAGS`, copied from guides of 2023: all set to true
# but `triton_gemm_any`, which is set to false. Their names begin with `xla_gpu_`.
#
# | flag | what it does | today |
# | --- | --- | --- |
# | `enable_triton_softmax_fusion` | makes a softmax one Triton kernel | gone: such fusions are made without it |
# | `triton_gemm_any` | Triton's matrix product wherever it can, not only where it seems faster | there, and on |
# | `enable_async_collectives` | lets collectives run beside computation | gone: they do |
# | `enable_latency_hiding_scheduler` | orders a program so that collectives and computation overlap | there, off |
# | `enable_highest_priority_async_stream` | lets the stream of collectives go first | there, and on |
#
# ([JAX's own guide dropped three of them](https://github.com/jax-ml/jax/pull/25444) in 2024; exceptions from
# asynchronous collectives are now made with `xla_gpu_disable_async_collectives`.) What FSDP gains by is the scheduler:
# a layer's gather can run while the layer before it computes. Checking needs no GPU: XLA refuses an option that it does
# not know (in `XLA_FLAGS` that ends the process), and its dump lists the options that are not at their default.

# %%
flags = "enable_triton_softmax_fusion triton_gemm_any enable_async_collectives"
flags += " enable_latency_hiding_scheduler enable_highest_priority_async_stream"
today = {}
for flag in flags.split():
    with tempfile.TemporaryDirectory() as folder:
        try:
            options: dict[str, Any] = {f"xla_gpu_{flag}": True, "xla_dump_to": folder}
            jax.jit(lambda x: x + 1).lower(1.0).compile(compiler_options=options)
            changed = next(Path(folder).glob("*.debug_options")).read_text(encoding="utf-8")
            today[flag] = "off" if flag in changed else "on"
        except jax.errors.JaxRuntimeError as error:
            today[flag] = "gone" if "No such compile option" in str(error) else str(error)
show.table(f"Defaults in jaxlib {jax.__version__}", ("xla_gpu_...", "today"), list(today.items()))
assert list(today.values()) == ["gone", "on", "gone", "off", "on"], "two are gone, two are on, one is worth setting"
