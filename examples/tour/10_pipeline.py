# %% [markdown]
# # Pipeline by hand
#
# Sixteen layers over eight devices, two on each, microbatches handed on by `ppermute`: the same bits as one device and
# its gradients, with the bubble recorded by the devices themselves, drawn, and equal to its formula.
#
# Data, FSDP and tensor parallelism give every device a part of every layer. A pipeline gives every device some layers
# *whole*: a stage. What moves is then one activation from a stage to the next, the least of all kinds. What is paid is
# waiting: the last stage has nothing to do until the first batch has come through all others, and the first has nothing
# to do when the last still works. That is the bubble. Cutting the batch into microbatches makes it smaller
# ([GPipe](https://arxiv.org/abs/1811.06965)).

# %%
import re
from ast import literal_eval
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import P
from matplotlib import colormaps
from matplotlib.figure import Figure

import show
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
# Each stage also writes down what it worked on, for the drawing.


# %%
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
        y = work(weights, turn, x)
        following = jax.lax.ppermute(y, "stage", [(s, (s + 1) % S) for s in range(S)])
        return following, (y, jnp.where(busy, microbatch, -1))

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
    outputs, log = run(staged(weights, rounds), inputs[:M])
    logs[rounds, M] = np.asarray(log)
    assert np.array_equal(np.asarray(outputs)[-1], expected[:M]), (
        "the last stage's results are those of one device, bit for bit"
    )
show.held(**{f"{name}, {rounds} round": w for rounds in (1, 2) for name, w in staged(weights, rounds).items()})

# %% [markdown]
# ## The bubble
#
# M microbatches that go round *v* times are M *v* items for each stage, and S - 1 ticks pass while the pipeline fills
# and drains. So of all cells of the timeline, (S - 1) / (M v + S - 1) are idle. The stages' own logs are counted.
# Backward is the same picture in a mirror, at about twice the time for each cell, and the idle part is the same.

# %%
formula = {(rounds, M): (S - 1) / (M * rounds + S - 1) for rounds, M in logs}
idle = {key: float((log < 0).mean()) for key, log in logs.items()}
rows = [
    (f"{M} x {rounds}", logs[rounds, M].shape[1], f"{formula[rounds, M]:.1%}", f"{idle[rounds, M]:.1%}")
    for rounds, M in logs
]
show.table("The bubble", ("microbatches x rounds", "ticks", "idle, predicted", "idle, as logged"), rows)
assert idle == formula, "the idle part of what the stages logged is (S - 1) / (M v + S - 1)"

# %% [markdown]
# Below, one batch goes forward in three ways, in units of the time that a microbatch (an eighth of the batch) needs for
# two layers. Eight devices could do it in 8. Uncut it takes 64, as long as on one device.

# %%
WAYS = (
    ("the whole batch at once: 64", (1, 1), 8.0, 64),
    ("eight microbatches: 15", (1, 8), 1.0, 16),
    ("eight microbatches in two rounds of half the layers: 11.5", (2, 8), 0.5, 16),
)
colours = colormaps["tab10"]
figure = Figure(figsize=(9, 8.4), layout="constrained")
for place, (words, key, width, end) in enumerate(WAYS):
    axes = figure.add_subplot(3, 1, place + 1, xlim=(0, end), ylim=(S - 0.5, -0.5), ylabel="stage")
    axes.axvspan(0, logs[key].shape[1] * width, color="0.92")
    for (stage, t), number in np.ndenumerate(logs[key]):
        if number >= 0:
            axes.barh(
                stage, width, left=t * width, height=0.9, align="center", color=colours(number), edgecolor="white"
            )
            word = number if end < 64 else "all"
            axes.text((t + 0.5) * width, stage, word, ha="center", va="center", fontsize=7, color="white")
    axes.set_title(words, fontsize=10, loc="left")
figure.supxlabel("time, forward", fontsize=10)
show.picture(
    figure, "timeline", "What each stage works on, by its own log; grey is the bubble. The upper scale is coarser."
)

# %%
figure = Figure(figsize=(7.5, 3.6), layout="constrained")
axes = figure.add_subplot(xlabel="microbatches", ylabel="idle part", xscale="log", ylim=(0, 1))
axes.set_xticks([1, 2, 4, 8, 16, 32, 64], labels=["1", "2", "4", "8", "16", "32", "64"])
for rounds in (1, 2):
    over = np.arange(1 if rounds == 1 else S, 65)
    axes.plot(over, (S - 1) / (over * rounds + S - 1), color=f"C{rounds}", label=f"{rounds} round{'s' * (rounds > 1)}")
    points = [(M, part) for (v, M), part in idle.items() if v == rounds]
    axes.plot(*zip(*points, strict=True), "o", color=f"C{rounds}")
axes.legend(frameon=False)
show.picture(figure, "bubble", "The bubble of eight stages: the formula as lines, the stages' logs as dots.")

# %% [markdown]
# ## Gradients
#
# Nothing is written for the way back. The gradient of a scan is a scan from the end, and the gradient of sending to the
# next device is sending to the one before: autodiff makes the pipeline that runs backward. The loss is known on the
# last stage only; a sum with zeros from all others tells it to everyone.


# %%
def stage_loss(work: Any, weights: Weights, inputs: Array, targets: Array) -> Any:
    outputs, _ = pipeline(weights, inputs, work)
    last = jax.lax.axis_index("stage") == S - 1
    return jax.lax.psum(jnp.where(last, jnp.mean((outputs[0] - targets) ** 2), 0), "stage")


def gradient(work: Any) -> Any:
    specs = (P(None, "stage"), P(), P())
    return jax.jit(
        jax.value_and_grad(jax.shard_map(partial(stage_loss, work), mesh=mesh, in_specs=specs, out_specs=P()))
    )


plain, plain_grads = jax.jit(jax.value_and_grad(plain_loss))(weights, inputs, targets)
by_hand = gradient(visit)
for rounds in (1, 2):
    loss, grads = by_hand(staged(weights, rounds), inputs, targets)
    assert np.allclose(loss, plain, rtol=1e-6), "the loss is that of one device"
    for name, grad in grads.items():
        apart = np.abs(np.asarray(grad).reshape(plain_grads[name].shape) - plain_grads[name]).max()
        assert apart < 1e-5 * np.abs(plain_grads[name]).max(), "the gradients of all layers are those of one device"
        print(f"{rounds} x round, {name}: furthest apart {apart:.0e}, largest {np.abs(plain_grads[name]).max():.1f}")
sent_to = re.findall(r"perm=(\(\(.*?\)\))", str(jax.make_jaxpr(by_hand)(staged(weights, 1), inputs, targets)))
print("forward ", sent_to[0], "\nbackward", sent_to[1])
there, back = (sorted(literal_eval(pairs)) for pairs in sent_to)
assert back == sorted((receiver, sender) for sender, receiver in there), "backward, every stage sends to the one before"

# %% [markdown]
# ## What moves
#
# In each tick a device sends one microbatch's activation forward, and one backward: 2 (M + S - 1) of them in a step,
# and one number for the loss. For the same model and batch, FSDP gathers the weights twice and scatters their gradients
# once, and tensor parallelism sums the whole batch's activations forward and backward in each layer. Their bytes are by
# formula here; the tours before this one measure them.

# %%
M, rows_of_one = inputs.shape[:2]
spent = cost(by_hand, staged(weights, 1), inputs, targets)
activation, parameters = 4 * rows_of_one * D, sum(w.nbytes for w in weights.values())
moved = {
    "pipeline, predicted": 2 * (M + S - 1) * activation + 7,
    "pipeline, measured": spent.sent_bytes,
    "FSDP, by formula": 3 * 7 * parameters // 8,
    "tensor parallel, by formula": 2 * L * 2 * 7 * M * activation // 8,
}
show.table("Bytes that each device sends in a step", ("", "bytes"), [(way, f"{sent:,}") for way, sent in moved.items()])
assert spent.sent_bytes == moved["pipeline, predicted"], "a step sends M + S - 1 activations each way, and the loss"
assert spent.kinds == {"collective-permute": 2 * (M + S - 1), "all-reduce": 1}, "no weights and no gradients move"

# %% [markdown]
# ## What is kept
#
# The price of microbatches is memory: going forward, each stage keeps what the way back will need, for every tick. Here
# that is the inside of its layers, and even a copy of the weights that the tick picked. Recomputing a visit on the way
# back (`jax.checkpoint`) leaves little more than two activations for each tick, what came and what went. It still
# grows with the number of microbatches.
# [1F1B](https://arxiv.org/abs/1806.03377) bounds it by the number of stages, with the same bubble: a stage goes
# backward with a microbatch as soon as it can, and not after all forwards. That needs forward and backward in one
# schedule, which autodiff of a scan does not give.

# %%
recomputed = gradient(jax.checkpoint(visit))
kept: dict[tuple[str, int], int] = {}
for M in (16, 32):
    pair = tuple(jax.random.normal(key, (M, 16, D)) for key in keys[2:])
    kept["everything", M] = show.temporaries(by_hand, staged(weights, 1), *pair)
    kept["what came and what went", M] = show.temporaries(recomputed, staged(weights, 1), *pair)
table = [(way, M, f"{num_bytes:,}") for (way, M), num_bytes in kept.items()]
show.table("Kept on each device for the way back", ("", "microbatches", "bytes"), table)
grown = kept["what came and what went", 32] - kept["what came and what went", 16]
print(f"{grown // 16:,} bytes more for each microbatch; two activations are {2 * activation:,}")
assert grown < 16 * 3 * activation, "recomputed, a microbatch more costs less than three activations"
assert kept["what came and what went", 32] < kept["everything", 32] / 4, "recomputing keeps less than a quarter"
