# %% [markdown]
# # Pipeline by hand
#
# Sixteen layers over eight devices, two on each, microbatches handed on by `ppermute`: the same bits as one device and
# its gradients. The bubble is recorded by the devices themselves, drawn both ways, and equal to its formula.
#
# Data, FSDP and tensor parallelism give every device a part of every layer. A pipeline gives every device some layers
# *whole*: a stage. What moves is then one activation from a stage to the next, the least of all kinds. What is paid is
# waiting: the last stage has nothing to do until the first batch has come through all others, and the first has nothing
# to do when the last still works. That is the bubble. Cutting the batch into microbatches makes it smaller
# ([GPipe](https://arxiv.org/abs/1811.06965)).

# %%
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import P
from matplotlib import colormaps
from matplotlib.figure import Figure

import show
from shardwise.train import pipeline as trainer
from show.loops import cost

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
Array = jax.Array
Weights = dict[str, Array]
S, L, D, F = 8, 16, 32, 64  # stages, layers, width, inner columns of a layer
mesh = jax.make_mesh((S,), ("stage",))

# %% [markdown]
# ## One device
#
# The layers have the same shape, so their weights are stacked, and a scan goes through them. That is the plain model,
# and a stage is the same function with fewer layers.


# %%
def layers(weights: Weights, x: Array) -> Array:
    def layer(x: Array, w: Weights) -> tuple[Array, None]:
        return x + jax.nn.gelu(jax.nn.standardize(x) @ w["up"]) @ w["down"], None

    return jax.lax.scan(layer, x, weights)[0]


def plain_loss(weights: Weights, inputs: Array, targets: Array) -> Array:
    outputs = jax.lax.map(partial(layers, weights), inputs)
    return jnp.mean((outputs - targets) ** 2)


keys = jax.random.split(jax.random.key(0), 4)
weights = {"up": jax.random.normal(keys[0], (L, D, F)) / 6, "down": jax.random.normal(keys[1], (L, F, D)) / 8}

# %% [markdown]
# ## The pipeline
#
# In one tick each stage works on one microbatch and hands its result to the next stage. Stage *s* gets at tick *t* what
# stage *s - 1* made at tick *t - 1*, so it works on item *t - s*; before its first item and after its last it idles.
# All devices run the same program, so an idle one computes too, on whatever has arrived. Nobody looks at the result,
# and its gradient is zero. (It must be finite all the same: zero times not-a-number is not zero.)
#
# The devices are a ring, so that items can go round more than once. In `rounds` = 1 that is GPipe: stage 0 holds layers
# 0 and 1, stage 1 layers 2 and 3. In `rounds` = 2 stage 0 holds layers 0 and 8, stage 1 layers 1 and 9, and each
# microbatch passes twice ([interleaved](https://arxiv.org/abs/2104.04473), or circular): a tick is half as long, so the
# same seven ticks of waiting cost half as much.
#
# Each stage also writes down what it worked on, for the drawing. Going backward, it calls the host to do so: `noted`
# changes nothing, but its gradient has a line of our own.


# %%
backward: list[tuple[int, int]] = []  # (stage, microbatch), in the order in which their gradients came
noted = jax.custom_vjp(lambda y, *_: y)


def note(seen: tuple[Array, Array], grad: Array) -> tuple[Array, None, None]:
    jax.debug.callback(lambda stage, microbatch: backward.append((int(stage), int(microbatch))), *seen)
    return grad, None, None


noted.defvjp(lambda y, *seen: (y, seen), note)


def visit(weights: Weights, turn: Array, x: Array) -> Array:
    return layers({name: w[turn] for name, w in weights.items()}, x)


def pipeline(weights: Weights, inputs: Array, work: Any = visit) -> tuple[Array, Array]:
    """[microbatch, ...] to this stage's results at the ticks that count, and its log, -1 where it was idle."""
    weights = {name: w[:, 0] for name, w in weights.items()}  # [rounds, layers of a visit, ...]
    (M, *shape), rounds, stage = inputs.shape, len(weights["up"]), jax.lax.axis_index("stage")

    def tick(arrived: Array, t: Array) -> tuple[Array, tuple[Array, Array]]:
        item = t - stage
        group, place = jnp.divmod(item, S * rounds)  # S microbatches go round together
        turn, microbatch = place // S, group * S + place % S
        busy = (item >= 0) & (item < M * rounds)
        x = jnp.where((stage == 0) & (turn == 0), inputs[jnp.clip(microbatch, 0, M - 1)], arrived)
        done = jnp.where(busy, microbatch, -1)
        y = noted(work(weights, turn, x), stage, done)
        return jax.lax.ppermute(y, "stage", [(s, (s + 1) % S) for s in range(S)]), (y, done)

    nothing = jax.lax.pcast(jnp.zeros(shape), "stage", to="varying")
    _, (made, log) = jax.lax.scan(tick, nothing, jnp.arange(M * rounds + S - 1))
    m = np.arange(M)
    at_the_end = m // S * S * rounds + (rounds - 1) * S + m % S + S - 1
    return made[at_the_end][None], log[None]


run = jax.jit(jax.shard_map(pipeline, mesh=mesh, in_specs=(P(None, "stage"), P()), out_specs=P("stage")))


def staged(weights: Weights, rounds: int) -> Weights:
    """[layers, ...] to [rounds, stages, layers of a visit, ...], each stage's part on its device."""
    cut = {name: w.reshape(rounds, S, L // S // rounds, *w.shape[1:]) for name, w in weights.items()}
    placed: Weights = jax.device_put(cut, jax.NamedSharding(mesh, P(None, "stage")))
    return placed


# %% [markdown]
# A tick's matrix products have the same shapes on a stage and on one device, and nothing is summed across devices:
# the results must be equal in every bit.

# %%
inputs, targets = (jax.random.normal(key, (16, 16, D)) for key in keys[2:])
expected = jax.jit(lambda weights, x: jax.lax.map(partial(layers, weights), x))(weights, inputs)
logs = {}
for rounds, M in ((1, 1), (1, 8), (2, 8), (1, 16), (2, 16)):
    outputs, logs[rounds, M] = map(np.asarray, run(staged(weights, rounds), inputs[:M]))
    assert np.array_equal(outputs[-1], expected[:M]), "the last stage's results are those of one device, bit for bit"
show.held(**{f"{name}, {rounds} round": w for rounds in (1, 2) for name, w in staged(weights, rounds).items()})

# %% [markdown]
# ## The bubble
#
# M microbatches that go round *v* times are M *v* items for each stage, and S - 1 ticks pass while the pipeline fills
# and drains. So of all cells of the timeline, (S - 1) / (M v + S - 1) are idle. The stages' own logs are counted.

# %%
formula = {(rounds, M): (S - 1) / (M * rounds + S - 1) for rounds, M in logs}
idle = {key: float((log < 0).mean()) for key, log in logs.items()}
rows = [(f"{M} x {v}", logs[v, M].shape[1], f"{formula[v, M]:.1%}", f"{idle[v, M]:.1%}") for v, M in logs]
show.table("The bubble", ("microbatches x rounds", "ticks", "idle, predicted", "idle, as logged"), rows)
assert idle == formula, "the idle part of what the stages logged is (S - 1) / (M v + S - 1)"

# %% [markdown]
# ## Gradients
#
# Nothing is written for the way back. The gradient of a scan is a scan from the end, and the gradient of sending to the
# next device is sending to the one before: autodiff makes the pipeline that runs backward, from the last microbatch on
# the last stage to the first on the first. So the stages' logs must be those of the way there in a mirror, and the idle
# part is the same. The loss is known on the last stage only; a sum with zeros from all others tells it to everyone.


# %%
def stage_loss(work: Any, weights: Weights, inputs: Array, targets: Array) -> Any:
    outputs, _ = pipeline(weights, inputs, work)
    last = jax.lax.axis_index("stage") == S - 1
    return jax.lax.psum(jnp.where(last, jnp.mean((outputs[0] - targets) ** 2), 0), "stage")


def gradient(work: Any) -> Any:
    stages = partial(jax.shard_map, mesh=mesh, in_specs=(P(None, "stage"), P(), P()), out_specs=P())
    return jax.jit(jax.value_and_grad(stages(partial(stage_loss, work))))


by_hand, logs_back = gradient(visit), {}
for rounds, M in ((1, 1), (1, 8), (2, 8)):
    plain, plain_grads = jax.jit(jax.value_and_grad(plain_loss))(weights, inputs[:M], targets[:M])
    backward.clear()
    loss, grads = by_hand(staged(weights, rounds), inputs[:M], targets[:M])
    jax.effects_barrier()
    logs_back[rounds, M] = np.array([[m for at, m in backward if at == stage] for stage in range(S)])
    assert np.allclose(loss, plain, rtol=1e-6), "the loss is that of one device"
    for name, grad in grads.items():
        apart = np.abs(np.asarray(grad).reshape(plain_grads[name].shape) - plain_grads[name]).max()
        assert apart < 1e-5 * np.abs(plain_grads[name]).max(), "the gradients of all layers are those of one device"
    assert np.array_equal(logs_back[rounds, M], logs[rounds, M][:, ::-1]), "backward, the stages work in a mirror"

# %% [markdown]
# Below, one batch goes forward and backward in three ways, in units of the time that a microbatch (an eighth of the
# batch) needs to go forward through two layers; backward takes twice as long. Eight devices could do it in 24. Uncut it
# takes 192, as long as on one device.


# %%
def timeline(axes: Any, end: float, cells: list[tuple[int, float, float, int]]) -> None:
    """(stage, begin, width, work): work is the microbatch, or its complement, -1 for 0, where it goes backward."""
    axes.set(xlim=(0, end), ylim=(S - 0.5, -0.5), yticks=range(S))
    axes.axvspan(0, max(begin + width for _, begin, width, _ in cells), color="0.92")
    for stage, begin, width, work in cells:
        number, text = (work, "white") if work >= 0 else (~work, "black")
        colour = colormaps["tab20"](2 * (0, 1, 2, 3, 4, 5, 6, 9)[number % 8] + (work < 0))
        axes.barh(stage, width, left=begin, height=0.9, color=colour, edgecolor="white", linewidth=0.6)
        axes.text(begin + width / 2, stage, number, ha="center", va="center", fontsize=6, color=text)


figure = Figure(figsize=(11, 8), layout="constrained")
for place, (v, M, width, end) in enumerate(((1, 1, 8, 192), (1, 8, 1, 45), (2, 8, 0.5, 45))):
    there = [(s, t * width, width, int(m)) for (s, t), m in np.ndenumerate(logs[v, M]) if m >= 0]
    turned = logs[v, M].shape[1] * width
    back = [(s, turned + 2 * t * width, 2 * width, ~int(m)) for (s, t), m in np.ndenumerate(logs_back[v, M]) if m >= 0]
    timeline(axes := figure.add_subplot(3, 1, place + 1, ylabel="stage"), end, there + back)
    axes.set_title(f"{M} microbatch{'es' * (M > 1)}, {v} round{'s' * (v > 1)}: {3 * turned:g}", fontsize=10, loc="left")
show.picture(figure, "timeline", "The stages' logs: forward, backward (pale), idle (grey). The upper scale is coarser.")

# %% [markdown]
# ## 1F1B: the same bubble, fewer living activations
#
# What a stage keeps of a microbatch lives from its way there to its way back. In GPipe's order all go there before the
# first comes back, so every stage keeps all of them. [1F1B](https://arxiv.org/abs/1806.03377), "one forward, one
# backward", changes only the order: stage *s* takes S - s microbatches in advance, just as many as are on their way
# through it and the stages behind it, and then always goes back with one before it takes another. No time is won or
# lost, because the first microbatch must still reach the last stage, and the last one come back to the first: the
# bubble is the same, only in other places. But now a stage keeps S - s microbatches at most, however many there are.
#
# It needs forward and backward in one schedule, which autodiff of a scan does not give, so it is computed here: a stage
# begins what is next in its order as soon as it is free and has what it needs from its neighbour. The same function
# with GPipe's order gives just what the stages logged.


# %%
def begun(orders: list[list[int]]) -> list[tuple[int, float, float, int]]:
    @cache
    def end(stage: int, place: int) -> int:
        work = orders[stage][place]
        source = stage - 1 if work >= 0 else stage + 1
        arrived = end(source, orders[source].index(work)) if 0 <= source < S else 0
        return max(arrived, end(stage, place - 1) if place else 0) + 1 + (work < 0)

    todo = [(stage, place, work) for stage in range(S) for place, work in enumerate(orders[stage])]
    return [(stage, end(stage, place) - 1 - (work < 0), 1 + (work < 0), work) for stage, place, work in todo]


def gpipe(M: int) -> list[list[int]]:
    return [[*range(M), *range(-M, 0)] for _ in range(S)]


def one_forward_one_backward(M: int) -> list[list[int]]:
    ahead = [min(M, S - stage) for stage in range(S)]
    return [[*range(a), *(work for m in range(M) for work in (~m, m + a) if work < M)] for a in ahead]


figure, living, takes = Figure(figsize=(11, 5.6), layout="constrained"), {}, {}
for place, (name, orders) in enumerate({"GPipe": gpipe(16), "1F1B": one_forward_one_backward(16)}.items()):
    takes[name] = max(begin + width for _, begin, width, _ in begun(orders))
    living[name] = [int(np.cumsum(np.where(np.array(order) < 0, -1, 1)).max()) for order in orders]
    timeline(axes := figure.add_subplot(2, 1, place + 1, ylabel="stage: keeps"), takes[name], begun(orders))
    axes.set_yticks(range(S), labels=[f"{stage}: {most:2}" for stage, most in enumerate(living[name])])
    axes.set_title(f"{name}, sixteen microbatches: {takes[name]:.0f}", fontsize=10, loc="left")
show.picture(figure, "one-forward-one-backward", "The same time; beside each stage, how many microbatches it keeps")
logged = {(s, t, 1, int(m)) for (s, t), m in np.ndenumerate(logs[1, 8]) if m >= 0}
logged |= {(s, 15 + 2 * t, 2, ~int(m)) for (s, t), m in np.ndenumerate(logs_back[1, 8]) if m >= 0}
assert set(begun(gpipe(8))) == logged, "the schedule computed for GPipe is the one that the stages logged"
assert takes["GPipe"] == takes["1F1B"] == 3 * (16 + S - 1), "1F1B takes as long as GPipe: the bubble is the same"
assert living == {"GPipe": [16] * S, "1F1B": [S - s for s in range(S)]}, "1F1B keeps at most S - s microbatches, not M"

# %% [markdown]
# ## What moves
#
# In each tick a device sends one microbatch's activation forward, and one backward: 2 (M + S - 1) of them in a step,
# and one number for the loss. For the same model and batch, FSDP gathers the weights twice and scatters their gradients
# once, and tensor parallelism sums the whole batch's activations forward and backward in each layer. Their bytes are by
# formula here; the tours before this one measure them.

# %%
M, rows_of_one = 8, inputs.shape[1]
spent = cost(by_hand, staged(weights, 1), inputs[:M], targets[:M])
activation, parameters = 4 * rows_of_one * D, sum(w.nbytes for w in weights.values())
predicted, fsdp, tensor = 2 * (M + S - 1) * activation + 7, 3 * 7 * parameters // 8, 2 * L * 2 * 7 * M * activation // 8
print(f"Each device sends {spent.sent_bytes:,} bytes in a step, {predicted:,} are predicted;")
print(f"by formula FSDP would send {fsdp:,}, and tensor parallelism {tensor:,}.")
assert set(spent.kinds) == {"collective-permute", "all-reduce"}, "no weights and no gradients are gathered or sent"
assert spent.sent_bytes == predicted, "a step sends M + S - 1 activations each way, and the loss"

# %% [markdown]
# ## What is kept
#
# So the price of microbatches is memory: going forward, each stage keeps what the way back will need, for every tick.
# Here that is the inside of its layers, and even a copy of the weights that the tick picked. Recomputing a visit on the
# way back (`jax.checkpoint`) leaves little more than two activations for each tick, what came and what went. It still
# grows with the number of microbatches, which 1F1B would bound by the number of stages.

# %%
ways = {"everything": by_hand, "what came and what went": gradient(jax.checkpoint(visit))}
pairs = {M: tuple(jax.random.normal(key, (M, 16, D)) for key in keys[2:]) for M in (8, 16)}
kept = {(name, M): show.temporaries(way, staged(weights, 1), *pairs[M]) for name, way in ways.items() for M in pairs}
table = [(way, M, f"{num_bytes:,}") for (way, M), num_bytes in kept.items()]
show.table("Kept on each device for the way back", ("", "microbatches", "bytes"), table)
grown = (kept["what came and what went", 16] - kept["what came and what went", 8]) // 8
print(f"recomputed, {grown:,} bytes more for each microbatch; two activations are {2 * activation:,}")
assert grown < 3 * activation, "recomputed, a microbatch more costs less than three activations"

# %% [markdown]
# ## The trainer's
#
# [The trainer's pipeline](../../trainer/shardwise/train/pipeline.py) is this one with three things more, and it takes
# any visit, so here it takes the layers above:
#
# - Layers are stored in their own order, device 0 the first two and so on, since a checkpoint must not depend on the
#   mesh. With two rounds they are `dealt` out once a step: to their stages, each by one permutation.
# - Embedding and loss would keep the first stage and the last one busy while the others wait. So each stage embeds, and
#   computes the loss of, every eighth microbatch, and a second ring that turns the other way takes them to the first
#   stage and back: twice the bytes.
# - The gradient is taken on each device, of what its own microbatches lose. Nothing is summed, because what a stage
#   owes to the others comes back through the rings.


# %%
def trainer_loss(schedule: trainer.Schedule, weights: Weights, inputs: Array, targets: Array) -> tuple[Array, Array]:
    of_visit, mine = L // S // schedule.rounds, {name: trainer.dealt(schedule, w) for name, w in weights.items()}

    def visit(x: Array, turn: Array, _microbatch: Array) -> Array:
        pick = partial(jax.lax.dynamic_slice_in_dim, start_index=turn * of_visit, slice_size=of_visit)
        return layers({name: pick(w) for name, w in mine.items()}, x)

    own = partial(trainer.own_microbatches, schedule)
    outputs = trainer.run(schedule, visit, own(inputs))
    return jnp.mean((outputs - own(targets)) ** 2) / S, trainer.of_all_stages(outputs)


def trainer_step(schedule: trainer.Schedule, *given: Any) -> tuple[Array, Array, Weights]:
    (loss, outputs), grads = jax.value_and_grad(partial(trainer_loss, schedule), has_aux=True)(*given)
    return jax.lax.psum(loss, "pipeline"), outputs, grads


stages = jax.make_mesh((S,), ("pipeline",))
stored = jax.device_put(weights, jax.NamedSharding(stages, P("pipeline")))
ins, outs = (P("pipeline"), P(), P()), (P(), P(), P("pipeline"))
plain, plain_grads = jax.jit(jax.value_and_grad(plain_loss))(weights, inputs, targets)
for rounds in (1, 2):
    local = partial(trainer_step, trainer.Schedule(S, rounds, 16))
    step = jax.jit(jax.shard_map(local, mesh=stages, in_specs=ins, out_specs=outs, check_vma=False))
    loss, outputs, grads = step(stored, inputs, targets)
    apart = max(float(np.abs(grads[name] - grad).max() / np.abs(grad).max()) for name, grad in plain_grads.items())
    sent = cost(step, stored, inputs, targets).sent_bytes
    print(f"the trainer's with {rounds} round{'s' * (rounds > 1)}: loss {loss:.6f}, {sent:,} bytes sent by a device")
    assert np.array_equal(outputs, expected), "the trainer's stages give the results of one device, bit for bit"
    assert np.allclose(loss, plain, rtol=1e-6), "the trainer's loss is that of one device"
    assert apart < 1e-5, "the trainer's gradients are those of one device, each with its layer"
