# %% [markdown]
# # A vocabulary over devices
#
# The table of tokens and the output layer are cut by vocabulary: each device looks up the tokens it holds and scores
# the words it holds, and loss, accuracy and all gradients come out without the logits ever being in one place.
#
# These two matrices have a row for every word, so they are much of a small model; and the logits, tokens times words,
# are the largest array of a training step. Here 5000 words are cut over eight devices, 625 on each. (A vocabulary that
# does not divide is padded, and [the trainer](../../trainer/shardwise/train/loss.py) masks the padding.)

# %%
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, P, lax
from jax.sharding import AxisType, NamedSharding
from matplotlib.figure import Figure

import show
from shardwise.train.embedding import Lookup, lookup
from shardwise.train.loss import Head, HeadLoss, Tokens, head_loss
from shardwise.train.table import Table, copies

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

VOCAB, WIDTH, TOKENS, LONGEST, f32 = 5000, 64, 512, 1024, jnp.dtype(jnp.float32)
ROWS, COLUMNS = P("tensor", None), P(None, "tensor")
mesh = jax.make_mesh((1, 1, 8), ("data_outer", "data_inner", "tensor"), axis_types=(AxisType.Auto,) * 3)
jax.set_mesh(mesh)


def split(run: Callable[..., Any], *in_specs: Any) -> Any:
    return jax.jit(jax.shard_map(run, in_specs=in_specs, out_specs=P()))


def place(array: Array, spec: P) -> Any:
    return jax.device_put(array, NamedSharding(mesh, spec))


def off(found: Any, right: Any) -> float:
    return float(np.abs(np.asarray(found) - np.asarray(right)).max() / np.abs(right).max())


# %% [markdown]
# ## Looking up
#
# A token becomes a row of the table: as a matrix product, a one-hot vector as long as the vocabulary times the table.
#
# **By vocabulary.** Device i holds the rows from 625 i on. It subtracts 625 i from every token, which moves its
# *window* of the vocabulary to 0 ... 624; `one_hot` gives zeros for what lies outside, below as above. So a token finds
# its row on one device and zeros on seven, and a `psum` brings the row to all. (No bias may stand in that sum: it would
# count eight times, as in [the tour before](07_tensor_parallel.md).)
#
# **By columns.** Device i holds an eighth of every row. Each device looks up every token, and an `all_gather` puts the
# eighths side by side. The table takes the same memory, but the one-hot vectors have full length.
#
# **By index.** An often-copied text weighs these two, and takes the first for its memory. But nobody needs one-hot
# vectors: subtract, read the row where it is held, and put zeros elsewhere. That is what the trainer does.


# %%
def window(tokens: Array, size: int) -> Array:
    return tokens - lax.axis_index("tensor") * size


def by_vocabulary(table: Array, tokens: Array) -> Any:
    return lax.psum(jax.nn.one_hot(window(tokens, len(table)), len(table)) @ table, "tensor")


def gather(part: Array) -> Any:
    return lax.all_gather(part, "tensor", axis=1, tiled=True, to="invarying")


def by_columns(table: Array, tokens: Array) -> Any:
    return gather(jax.nn.one_hot(tokens, len(table)) @ table)


def by_index(table: Array, tokens: Array) -> Any:
    row = window(tokens, len(table))
    here = (row >= 0) & (row < len(table))
    return lax.psum(jnp.where(here[:, None], table[row.clip(0, len(table) - 1)], 0), "tensor")


keys = jax.random.split(jax.random.key(8), 6)
tokens, others = jax.random.randint(keys[0], (2, TOKENS), 0, VOCAB)
shapes = {"table": (VOCAB, WIDTH), "position": (LONGEST, WIDTH), "head": (VOCAB, WIDTH)}
w = {name: jax.random.normal(key, shape) / 4 for key, (name, shape) in zip(keys[1:4], shapes.items(), strict=True)}
ways = {"by vocabulary": (by_vocabulary, ROWS), "by columns": (by_columns, COLUMNS), "by index": (by_index, ROWS)}
tables = {way: place(w["table"], spec) for way, (_, spec) in ways.items()}
lookups = {way: show.compiled(split(run, spec, P()), tables[way], tokens) for way, (run, spec) in ways.items()}
found = {way: program(tables[way], tokens) for way, program in lookups.items()}
memory, moved = ({way: of(program) for way, program in lookups.items()} for of in (show.temporaries, show.bytes_moved))
costs = [(way, f"{tables[way].nbytes // 8:,}", f"{memory[way]:,}", f"{moved[way]:,}") for way in ways]
show.table("Bytes on each device", ("way", "table", "temporary", "sent"), costs)
whole, row_bytes, one_hot_bytes = w["table"][tokens], 4 * TOKENS * WIDTH, 4 * TOKENS * VOCAB

assert all((found[way] == whole).all() for way in ways), "each way finds the rows of one device, bit for bit"
assert len({table.addressable_shards[0].data.nbytes for table in tables.values()}) == 1, "the tables take the same"
assert memory["by columns"] >= one_hot_bytes, "by columns, each device has one-hot vectors of full length"
assert memory["by vocabulary"] < one_hot_bytes / 8 + 2 * row_bytes, "by vocabulary they are an eighth as long"
assert memory["by index"] < 2 * row_bytes, "by index there are none"
assert 2 * moved["by columns"] == moved["by vocabulary"] == row_bytes * 7 // 4, "a gather moves half of what a sum does"

# %% [markdown]
# All three agree in every bit, because seven of the eight terms of each sum are zero. By columns takes the most memory
# here and moves the least, as a `psum` is a scatter and then a gather. Without one-hot vectors memory is no reason any
# more. One reason is left: the output layer below wants its words cut, and where both are one matrix, so is the table.
#
# ## Positions
#
# Positions need no lookup: all tokens want the first rows of the table, in order. That table is cut by columns and
# gathered. The often-copied version gathers the table and then takes the rows that the sequence needs. Take them first:
# a sequence of half the longest length moves half.


# %%
def positions(table: Array) -> Any:
    return gather(table[:TOKENS])


by_position = place(w["position"], COLUMNS)
early, late = split(positions, COLUMNS), split(lambda table: gather(table)[:TOKENS], COLUMNS)
sent = [show.bytes_moved(run, by_position) for run in (early, late)]
print(f"each device sends {sent[0]:,} bytes of positions; {sent[1]:,} if the whole table is gathered")
shown = {way: tables[way] for way in ("by vocabulary", "by columns")} | {"positions": by_position}
show.held(**shown)
show.picture(show.draw(**shown), "tables", "The token table by vocabulary or by columns, and positions by columns")

assert (early(by_position) == w["position"][:TOKENS]).all(), "the gathered columns are the positions"
assert 2 * sent[0] == sent[1], "rows first, then the gather: half the bytes for half the length"

# %% [markdown]
# ## Scoring
#
# The output layer makes a logit for each word, 10 MB for 512 tokens. Cross entropy needs of them three numbers per
# token, and each can be made where the logits are and then be put together: the largest (`pmax`), the sum of
# exponentials (`psum`), and the logit of the target, found through the window again (`psum`).
#
# The largest is subtracted first, so that no exponential overflows. It cancels in the cross entropy, so no gradient
# need go through it, and none could: JAX has no derivative of `pmax`.
#
# Accuracy comes free. After that subtraction the target's logit is exactly 0 where it is the largest, on whatever
# device that is. (Only that logit is 0, and not the loss, as the often-copied text has it: a right guess still costs
# the log of the sum.)
#
# Inference wants the logits themselves, and there they are gathered; training never does. `largest` reads the biggest
# array out of a compiled program.


# %%
class Terms(NamedTuple):
    """One number for each token."""

    entropy: Array
    log_z: Array  # the log of the sum of exponentials
    log_sum: Array  # the same, less the largest logit
    correct: Array


def split_terms(hidden: Array, head: Array, targets: Array, shift: float = 0.0) -> Terms:
    logits = hidden @ head.T + shift
    top = lax.pmax(lax.stop_gradient(logits).max(-1), "tensor")
    logits -= top[:, None]
    log_sum = jnp.log(lax.psum(jnp.exp(logits).sum(-1), "tensor"))
    one_hot = jax.nn.one_hot(window(targets, len(head)), len(head))
    target = lax.psum((one_hot * logits).sum(-1), "tensor")
    return Terms(log_sum - target, log_sum + top, log_sum, target == 0)


def plain_terms(hidden: Array, head: Array, targets: Array) -> Terms:
    logits = hidden @ head.T
    log_z = jax.nn.logsumexp(logits, -1)
    return Terms(log_z - logits[jnp.arange(TOKENS), targets], log_z, log_z, logits.argmax(-1) == targets)


def largest(program: Any) -> int:
    arrays = re.findall(r"f32\[([\d,]+)\]", program.as_text())
    return 4 * max(math.prod(map(int, dims.split(","))) for dims in arrays)


hidden = whole + w["position"][:TOKENS]
targets = jnp.where(jnp.arange(TOKENS) % 3 == 0, (hidden @ w["head"].T).argmax(-1), others)
asked = (hidden, place(w["head"], ROWS), targets, 0.0)
scored, inference = split(split_terms, P(), ROWS, P(), P()), split(lambda h, head: gather(h @ head.T), P(), ROWS)
programs = [show.compiled(scored, *asked), show.compiled(inference, *asked[:2])]
terms, plain = programs[0](*asked), plain_terms(hidden, w["head"], targets)
sent, most = [show.bytes_moved(program) for program in programs], [largest(program) for program in programs]
print(f"cross entropy {terms.entropy.mean():.4f}, {terms.correct.mean():.1%} right")
scores = [(name, f"{sent[i]:,}", f"{most[i]:,}") for i, name in enumerate(("loss and accuracy", "all logits"))]
show.table("Bytes on each device", ("for", "sent", "largest array"), scores)

assert off(programs[1](*asked[:2]), hidden @ w["head"].T) < 1e-5, "gathered, they are the logits of one device"
assert (terms.correct == plain.correct).all(), "the free accuracy is that of argmax, token by token"
assert terms.entropy[terms.correct].min() > 0, "a right guess has a logit of 0 and still a loss"
assert max(map(off, terms[:2], plain[:2])) < 1e-5, "cross entropy and log Z are those of one device"
assert most == [4 * TOKENS * VOCAB // 8, 4 * TOKENS * VOCAB], "the loss has no array above an eighth of the logits"
assert sent == [3 * 4 * TOKENS * 7 // 4, 4 * TOKENS * VOCAB * 7 // 8], "three numbers a token instead of every logit"

# %% [markdown]
# The sums are taken in another order than on one device, so floats agree to 1e-5 of the largest.
#
# ## z-loss, on the true Z
#
# Adding the same number to all logits of a token changes no probability, so nothing stops them from drifting away, and
# in bfloat16 large logits are coarse. **z-loss**, a small factor times the square of log Z (Z is the sum of
# exponentials), pulls log Z to 0 from either side: its slope along that shift is 2 log Z.
#
# The often-copied version squares the log of the sum that it has at hand, which is the one *after* the largest logit is
# subtracted. Its value is blind to the very thing: shift all logits, and it stays as it is. Its gradient is worse than
# none. As the largest logit is held constant there, the slope along a shift is twice that log, which is never negative:
# it pushes all logits down by the same force wherever they are, and goes on for ever. The true log Z has the largest
# logit added back.


# %%
def z_squared(shift: float, log: str) -> Any:
    return jnp.square(getattr(scored(*asked[:3], shift), log)).mean()


shifts, sloped = np.linspace(-20, 20, 9), jax.jit(jax.value_and_grad(z_squared), static_argnames="log")
true, copied = (np.array([sloped(float(shift), log=log) for shift in shifts]) for log in ("log_z", "log_sum"))
slope = 2 * (float(plain.log_z.mean()) + shifts)
figure = Figure(figsize=(7.5, 3.6), layout="constrained")
axes = figure.add_subplot(xlabel="added to every logit", ylabel="slope along that shift")
axes.axhline(0, color="0.7", lw=0.8)
axes.plot(shifts, slope, "-", color="0.6", label="2 log Z of one device: predicted")
axes.plot(shifts, true[:, 1], "o", label="square of the true log Z")
axes.plot(shifts, copied[:, 1], "s", label="without the largest logit")
axes.legend()
show.picture(figure, "z-loss", "The true z-loss pulls log Z to 0 from both sides; without the largest it never turns")

assert np.allclose(true[:, 1], slope, atol=1e-3), "the true z-loss has the slope 2 log Z, and turns where log Z is 0"
assert np.ptp(copied[:, 0]) < 1e-3 * copied[0, 0], "without the largest logit its value does not see the shift"
assert np.ptp(copied[:, 1]) < 1e-3 * copied[0, 1], "and it pushes down by the same force wherever the logits are"

# %% [markdown]
# ## A training step, and the trainer's
#
# Put together: look up, add positions, score, and take the gradients of all three tables. They are those of one device,
# each made where its part of the table is; and no array is larger than an eighth of the logits, forwards or backwards.


# %%
def split_loss(w: dict[str, Array], tokens: Array, targets: Array) -> Any:
    terms = split_terms(by_index(w["table"], tokens) + positions(w["position"]), w["head"], targets)
    return (terms.entropy + 1e-4 * jnp.square(terms.log_z)).mean()


def plain_loss(w: dict[str, Array], tokens: Array, targets: Array) -> Any:
    terms = plain_terms(w["table"][tokens] + w["position"][:TOKENS], w["head"], targets)
    return (terms.entropy + 1e-4 * jnp.square(terms.log_z)).mean()


def step(run: Any, w: Any) -> tuple[Any, Any, int]:
    program = show.compiled(jax.jit(jax.value_and_grad(run)), w, tokens, targets)
    return *program(w, tokens, targets), largest(program)


def worst(grads: Any) -> float:
    return max(off(grads[name], right[name]) for name in w)


SPECS = {"table": ROWS, "position": COLUMNS, "head": ROWS}
placed = {name: place(w[name], spec) for name, spec in SPECS.items()}
steps = {"one device": step(plain_loss, w), "by hand": step(split(split_loss, SPECS, P(), P()), placed)}
(loss, right, _), (by_hand, grads, most_by_hand) = steps.values()
assert abs(by_hand - loss) < 1e-5, "the loss over devices is the loss of one device"
assert worst(grads) < 1e-5, "the gradients of all three tables are those of one device"
assert most_by_hand == most[0], "no array of a training step is larger than an eighth of the logits"
assert all(grads[name].sharding.spec[:2] == SPECS[name][:2] for name in w), "each gradient stays with its part"

# %% [markdown]
# [The trainer](../../trainer/shardwise/train/embedding.py) does the same with four things more:
#
# - Its tables are [width, words], since [what FSDP cuts](../../trainer/shardwise/train/table.py) has to stand first.
# - What travels, travels in `shard_map`s with hand-written gradients.
# - Between lookup and loss each device has an eighth of the positions: the lookup's sum is scattered over them instead
#   of going to all, and the loss gathers them again.
# - It scores tokens in blocks, here 64 of them, so that even the eighth of the logits is never there at once.

# %%
settings = HeadLoss(VOCAB, block_tokens=64, z_loss=1e-4, by_position=True, compute=f32, wire=f32, logits=f32)
kept, asking = Table(fsdp=False, compute=f32, wire=f32), Lookup(VOCAB, by_position=True, compute=f32, wire=f32)


def trainer_loss(w: dict[str, Array], tokens: Array, targets: Array) -> Any:
    table, head = (copies(kept, w[name].T) for name in ("table", "head"))
    hidden = lookup(asking, table, tokens[None]) + w["position"][:TOKENS]
    return head_loss(settings, Head(head, None), Tokens(hidden, targets[None], jnp.ones((1, TOKENS)))).total / TOKENS


steps["the trainer"] = (by_trainer, grads, most_by_trainer) = step(trainer_loss, placed)
trained = [(who, f"{made[0]:.5f}", f"{worst(made[1]):.0e}", f"{made[2]:,}") for who, made in steps.items()]
show.table("A training step", ("by", "loss", "gradients off by", "largest array, bytes"), trained)
assert max(worst(grads), abs(by_trainer - by_hand)) < 1e-5, "the trainer agrees"
assert most_by_trainer < most[0] / 4, "in blocks of tokens it needs less than the eighth"
