# %% [markdown]
# # Data parallel by hand
#
# Eight devices hold the same parameters and different rows of the batch, and one sum of gradients a step keeps them one
# model. The step is written by hand, with gradient accumulation, summed metrics and donation, and equals one device.
#
# The rule behind it: the gradient of a sum over rows is the sum of the rows' gradients, so it does not matter who
# computes which row as long as everyone ends up with the same total.

# %%
from functools import partial
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

Arrays = dict[str, jax.Array]
INPUTS, HIDDEN, CLASSES = 64, 128, 10
ROWS, PADDING, MINIBATCHES = 1024, 75, 4
STEPS, REPORT_EVERY = 20, 2
RULE, WHOLE, BY_ROWS = optax.adamw(1e-2), P(), P("data")

# %% [markdown]
# ## The model, and a loss that is a sum
#
# A network with one hidden layer. Two decisions make it ready for any number of devices:
#
# - The loss and every metric is a pair `(sum, count)`. Sums and counts add up over minibatches, devices and steps;
#   means do not. The division comes last.
# - A row may be padding (label -1), as in the last batch of a data set. It counts for nothing, so devices may have
#   different counts.
#
# There is no dropout here: [the tour of randomness](04_randomness.md) has the keys that give each row its own mask.


# %%
def init(key: jax.Array) -> Arrays:
    up, down = jax.random.split(key)
    return {"up": jax.random.normal(up, (INPUTS, HIDDEN)) / 8, "down": jax.random.normal(down, (HIDDEN, CLASSES)) / 11}


def loss(params: Arrays, batch: Arrays) -> tuple[jax.Array, Any]:
    logits = jax.nn.silu(batch["inputs"] @ params["up"]) @ params["down"]
    entropy = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(batch["labels"], 0))
    real = batch["labels"] >= 0
    total, correct = jnp.where(real, entropy, 0).sum(), (logits.argmax(-1) == batch["labels"]).sum()
    return total, {"loss": (total, real.sum()), "accuracy": (correct, real.sum())}


def make_batch(key: jax.Array) -> Arrays:
    inputs = jax.random.normal(key, (ROWS, INPUTS))
    labels = (inputs[:, :CLASSES] + inputs[:, CLASSES : 2 * CLASSES]).argmax(-1)
    return {"inputs": inputs, "labels": jnp.where(jnp.arange(ROWS) < ROWS - PADDING, labels, -1)}


# %% [markdown]
# ## Who holds what
#
# The mesh has one axis, `data`. `P("data")` cuts an array's rows into eight parts; `P()` puts the whole array on every
# device.

# %%
mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
everywhere = NamedSharding(mesh, WHOLE)
params = jax.device_put(jax.jit(init)(jax.random.key(0)), everywhere)
batch = jax.device_put(make_batch(jax.random.key(1)), NamedSharding(mesh, BY_ROWS))
show.held(inputs=batch["inputs"], labels=batch["labels"], up=params["up"], down=params["down"])
drawing = show.draw(inputs=batch["inputs"], up=params["up"], down=params["down"])
show.picture(drawing, "holds", "Each device has its own eighth of the rows, and all of the parameters.")

# %% [markdown]
# ## Minibatches first, then the other devices
#
# *Gradient accumulation* computes a device's rows in a few minibatches, one after the other, and adds the gradients up,
# so that only one minibatch's activations are alive at a time. Inside `shard_map` a function sees one device's rows; it
# is written as if there were no other device, and the one line that knows of them is the sum at the end.
#
# The word `pcast` needs an explanation. `shard_map` tracks which values vary from device to device. The gradient with
# respect to something that does *not* vary, such as replicated parameters, is by definition the total over all devices,
# and JAX puts that sum in by itself. `pcast(..., to="varying")` says that each device differentiates a copy of its own:
# no sum is made until we write one.


# %%
def accumulate(params: Arrays, batch: Arrays) -> Any:
    def part(rows: Arrays) -> Any:
        return jax.grad(loss, has_aux=True)(params, rows)

    parts = jax.tree.map(lambda x: x.reshape(MINIBATCHES, -1, *x.shape[1:]), batch)
    empty = jax.tree.map(jnp.zeros_like, jax.eval_shape(part, jax.tree.map(lambda x: x[0], parts)))
    return jax.lax.scan(lambda total, rows: (jax.tree.map(jnp.add, total, part(rows)), None), empty, parts)[0]


def own(params: Arrays, batch: Arrays) -> Any:
    return accumulate(jax.lax.pcast(params, "data", to="varying"), batch)


def summed(params: Arrays, batch: Arrays) -> Any:
    return jax.lax.psum(own(params, batch), "data")


def over_devices(function: Any, out: P = WHOLE, *, check_vma: bool = True) -> Any:
    return jax.shard_map(function, mesh=mesh, in_specs=(WHOLE, BY_ROWS), out_specs=out, check_vma=check_vma)


def apart(tree: Any, other: Any) -> float:
    # The largest difference of two trees, relative to each array's largest value.
    pairs = zip(*(map(np.asarray, jax.tree.leaves(one)) for one in (tree, other)), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


# %% [markdown]
# One device takes the whole batch at once, with no minibatches and no mesh: that is the result to reach. The sums are
# the same numbers added up in another order, so they agree to the rounding of float32 and not to the last bit.

# %%
plain = jax.jit(jax.grad(loss, has_aux=True))
alone = jax.device_put((params, batch), jax.devices()[0])
expected, sums = plain(*alone)
grads, metrics = jax.jit(over_devices(summed))(params, batch)
assert apart(grads, expected) < 1e-5, "the summed gradient is one device's gradient of the whole batch"
assert int(metrics["loss"][1]) == int(sums["loss"][1]) == ROWS - PADDING, "the devices count the real rows together"

# %% [markdown]
# ## A mean of means is not the mean
#
# Before the sum, each device knows only its own rows, and the last device has fewer real ones. A common version of this
# step takes each device's mean loss and averages those (`pmean`): right as long as the counts are equal, wrong here.

# %%
each = over_devices(lambda *args: jax.tree.map(jnp.atleast_1d, own(*args)[1]["loss"]), BY_ROWS)
totals, counts = jax.jit(each)(params, batch)
table: list[Any] = [(i, n, f"{t:.2f}", f"{t / n:.4f}") for i, (t, n) in enumerate(zip(totals, counts, strict=True))]
show.table("Before the sum", ("device", "real rows", "loss, summed", "loss, mean"), table)
mean, mean_of_means = float(totals.sum() / counts.sum()), float((totals / counts).mean())
one_mean = float(sums["loss"][0] / sums["loss"][1])
print(f"one device {one_mean:.5f}; sum of sums / sum of counts {mean:.5f}; mean of means {mean_of_means:.5f}")
assert abs(mean - one_mean) < 1e-5, "summed losses over summed counts are the mean of the whole batch"
assert abs(mean_of_means - one_mean) > 1e-4, "the mean of the devices' means is another number"

# %% [markdown]
# ## Who makes the sum, and how often
#
# Four ways to write the gradient's sum. Without `pcast` JAX makes it, which is right, but it does so where the gradient
# is made: in every minibatch. With `pcast` there is one sum, after the last minibatch. Older code has a `psum` or
# `pmean` and no `pcast`, because it was written for `check_rep=False`. Under today's default, `check_vma=True`, the
# same lines sum twice, and the gradient is eight times too large, without any error. With `check_vma=False` they mean
# what they meant then.


# %%
def twice(params: Arrays, batch: Arrays) -> Any:
    return jax.lax.psum(accumulate(params, batch)[0], "data")


ways = {
    "pcast, then psum": over_devices(lambda *args: summed(*args)[0]),
    "nothing: JAX sums": over_devices(lambda *args: accumulate(*args)[0]),
    "psum without pcast": over_devices(twice),
    "the same, check_vma=False": over_devices(twice, check_vma=False),
}
times, costs = {}, {}
for name, way in ways.items():
    program = jax.jit(way).lower(params, batch).compile()
    made, right = np.asarray(program(params, batch)["up"]), np.asarray(expected["up"])
    times[name], costs[name] = float((made * right).sum() / (right * right).sum()), cost(program)
moved = {name: made.sent_bytes for name, made in costs.items()}
table = [(name, f"{times[name]:.3f}", costs[name].kinds["all-reduce"], f"{moved[name]:,}") for name in ways]
show.table("Four ways", ("written", "gradient / right one", "sums a step", "bytes each device sends"), table)
predicted = 2 * 7 / 8 * sum(x.nbytes for x in params.values())
print(f"one sum over a ring of 8 sends 2 x 7/8 of the gradients' bytes: {predicted:,.0f}")
by_hand, by_jax, wrong, old = ways
assert abs(moved[by_hand] - predicted) < 1, "one sum sends 2 (n-1)/n of the gradient's bytes"
assert abs(times[by_jax] - 1) < 1e-5, "JAX's own sum is right"
assert moved[by_jax] == MINIBATCHES * moved[by_hand], "JAX's own sum is made in every minibatch"
assert abs(times[wrong] - 8) < 1e-4, "psum after JAX's own sum makes the gradient eight times too large"
assert abs(times[old] - 1) < 1e-5, "the same lines are right with check_vma=False"

# %% [markdown]
# ## The step
#
# Gradient, division by the count, optimizer, new parameters. Every device makes the same update from the same sums, so
# the eight copies stay equal without ever being compared. State and metrics are *donated*: the step may write its
# results where its arguments were, which saves a second copy of the state. The old arrays are gone after the call.


# %%
def train_step(gradient: Any, carried: Any, batch: Arrays) -> Any:
    params, optimizer, metrics = carried
    grads, sums = gradient(params, batch)
    updates, optimizer = RULE.update(jax.tree.map(lambda g: g / sums["loss"][1], grads), optimizer, params)
    return optax.apply_updates(params, updates), optimizer, jax.tree.map(jnp.add, metrics, sums)


def no_metrics() -> Any:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(loss, params, batch)[1])


def start(place: Any) -> Any:
    return jax.device_put((jax.tree.map(jnp.copy, params), RULE.init(params), no_metrics()), place)


# %% [markdown]
# `no_metrics` is the empty sums that a report starts from. Its shapes come from `eval_shape`, which traces the
# loss and computes nothing, so a new metric needs a change in one place only.
#
# What donation saves, by device, from the device memory profile. Device 0 also holds the copy of the one-device run.

# %%
state = start(everywhere)
step = over_devices(partial(train_step, summed))
before = show.by_device()
after = jax.jit(step)(state, batch)
kept = show.by_device()
del after
after = jax.jit(step, donate_argnums=0)(state, batch)
donated = show.by_device()
state_bytes = sum(x.nbytes for x in jax.tree.leaves(state))
table = [(i, *(f"{x / 1024:.1f}" for x in row)) for i, row in enumerate(zip(before, kept, donated, strict=True))]
title = f"KiB on each device; the state has {state_bytes / 1024:.1f}"
show.table(title, ("device", "before the step", "after it", "after it, donated"), table)
assert state[0]["up"].is_deleted(), "a donated state is gone after the step"
assert all(k - b >= state_bytes for k, b in zip(kept, before, strict=True)), "without donation there are two states"
assert donated == before, "with donation the step holds no more than before it"

# %% [markdown]
# ## Twenty steps
#
# As written, against one device. Each report adds up the metrics of two steps.


# %%
def train(step: Any, place: Any, batch: Arrays) -> Any:
    # Parameters after all steps, the mean loss of each report, and how far apart the devices' copies were then.
    carried, losses, spread = start(place), [], []
    for _ in range(STEPS // REPORT_EVERY):
        carried = (*carried[:2], jax.device_put(no_metrics(), place))
        for _ in range(REPORT_EVERY):
            carried = jax.jit(step, donate_argnums=0)(carried, batch)
        losses.append(float(carried[2]["loss"][0] / carried[2]["loss"][1]))
        copies = [np.asarray(shard.data) for shard in carried[0]["up"].addressable_shards]
        spread.append(max(float(np.abs(copy - copies[0]).max()) for copy in copies))
    return carried[0], losses, spread


one, one_losses, _ = train(partial(train_step, plain), jax.devices()[0], alone[1])
many, losses, spread = train(step, everywhere, batch)
print(f"one device and eight: losses {apart(losses, one_losses):.0e} apart, parameters {apart(many, one):.0e}")
assert apart(many, one) < 1e-4, "eight devices train the parameters of one"
assert apart(losses, one_losses) < 1e-5, "eight devices have the losses of one"
assert spread == [0] * len(spread), "the eight copies stay equal, bit for bit"

# %% [markdown]
# ## And twenty without the sum
#
# JAX refuses a step that leaves out the gradient's sum under `check_vma=True`, because the result varies between
# devices while `P()` says that it does not. Its message ends with the advice to consider `check_vma=False`. Then the
# step runs, every device trains a model of its own on its own rows, and no error ever says so.

# %%
try:
    jax.eval_shape(over_devices(partial(train_step, own)), start(everywhere), batch)
    refusal = ""
except ValueError as error:
    refusal = str(error)
assert "could not infer replication" in refusal, "check_vma=True refuses a step without the sum"
_, _, drift = train(over_devices(partial(train_step, accumulate), check_vma=False), everywhere, batch)
assert drift[-1] > 0.1, "without the sum the copies drift apart"

# %%
left, right = (figure := Figure(figsize=(9, 3.2), layout="constrained")).subplots(1, 2)
steps = range(REPORT_EVERY, STEPS + 1, REPORT_EVERY)
left.plot(steps, one_losses, color="tab:grey", lw=4, alpha=0.5, label="one device")
left.plot(steps, losses, "o", color="tab:blue", ms=4, label="eight devices")
right.plot(steps, drift, "o-", color="tab:red", ms=4, label="without the sum")
right.plot(steps, spread, "o-", color="tab:blue", ms=4, label="with it")
for axes, title in ((left, "Mean loss"), (right, "Largest difference between two copies")):
    axes.set(title=title, xlabel="step", xticks=range(0, STEPS + 1, 5))
    axes.legend(frameon=False)
show.picture(figure, "training", "Eight devices follow one. Without the sum their copies of a matrix drift apart.")

# %% [markdown]
# What each device holds is everything: parameters, gradients and optimizer state of the whole model, eight times over.
# That is what [the next tour](06_fsdp.md) takes away.
