"""The limit: one train step by hand in plain JAX, as fast as we can make it. Trainers are measured against it.

The same arithmetic as the peers. GPT-2: layer norms, one product for query, key and value, tanh GELU, tied head. Llama:
RMS norms, rotary positions, keys and values for several heads, SwiGLU, a head of its own, no biases. Both: plain causal
attention, clipping to norm 1, AdamW; activations recomputed from each layer's input. Parameters are split over data
(FSDP) and tensor; each layer gathers its own and scatters its gradients. Cross entropy goes by blocks of tokens with
the vocabulary over tensor, gradients made in the same pass.
"""

import sys
from functools import partial
from typing import Any

from benchmarks.sizes import Case
from benchmarks.workers.serve import compiled_memory, rate_of, serve, simulate

case = Case.loads(sys.argv[1])
simulate(case.num_devices)

import jax  # noqa: E402  reads the environment that `simulate` sets
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from benchmarks.workers.tokens import tokens_and_targets  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

P = PartitionSpec
Array = jax.Array
Params = dict[str, Array]
BLOCK_TOKENS = 2048

size = case.size
L, E, H, S, V, M = size.layers, size.embed, size.heads, size.seq_len, size.vocab, size.mlp
D = E // H
K = size.kv_heads
mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(case.data, case.tensor), ("data", "tensor"))
rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-4, b2=0.95, weight_decay=0.1))

# name: (shape, standard deviation or None for ones, partition while stored)
GPT2 = {
    "gain1": ((L, E), None, P(None, "data")),
    "shift1": ((L, E), 0.0, P(None, "data")),
    "qkv": ((L, E, 3, H, D), 0.02, P(None, "data", None, "tensor", None)),
    "qkv_bias": ((L, 3, H, D), 0.0, P(None, None, "tensor", None)),
    "out": ((L, H, D, E), 0.02, P(None, "tensor", None, "data")),
    "out_bias": ((L, E), 0.0, P(None, "data")),
    "gain2": ((L, E), None, P(None, "data")),
    "shift2": ((L, E), 0.0, P(None, "data")),
    "up": ((L, E, M), 0.02, P(None, "data", "tensor")),
    "up_bias": ((L, M), 0.0, P(None, "tensor")),
    "down": ((L, M, E), 0.02, P(None, "tensor", "data")),
    "down_bias": ((L, E), 0.0, P(None, "data")),
}
LLAMA = {
    "gain1": ((L, E), None, P(None, "data")),
    "q": ((L, E, H, D), 0.02, P(None, "data", "tensor", None)),
    "kv": ((L, E, 2, K or H, D), 0.02, P(None, "data", None, "tensor", None)),
    "out": ((L, H, D, E), 0.02, P(None, "tensor", None, "data")),
    "gain2": ((L, E), None, P(None, "data")),
    "gate": ((L, E, M), 0.02, P(None, "data", "tensor")),
    "up": ((L, E, M), 0.02, P(None, "data", "tensor")),
    "down": ((L, M, E), 0.02, P(None, "tensor", "data")),
}
TOP = {"tokens": ((V, E), 0.02, P("tensor", "data")), "gain": ((E,), None, P("data"))}
GPT2_TOP = {"positions": ((S, E), 0.02, P(None, "data")), "shift": ((E,), 0.0, P("data"))}
LAYER = LLAMA if K else GPT2
TOP |= {"head": TOP["tokens"]} if K else GPT2_TOP
TABLE: dict[str, tuple[tuple[int, ...], float | None, PartitionSpec]] = {**LAYER, **TOP}
ROWS, RESIDUAL = P("data"), P("data", None, None)


def main() -> None:
    """Compile, then take turns."""
    shardings = state_shardings()
    rows = NamedSharding(mesh, ROWS)
    tokens, targets = (jax.device_put(x, rows) for x in tokens_and_targets(size))
    state = jax.jit(init, out_shardings=shardings)()
    jitted = jax.jit(step, in_shardings=(shardings, rows, rows), out_shardings=(shardings, None), donate_argnums=0)
    compiled = jitted.lower(state, tokens, targets).compile()

    def once() -> None:
        nonlocal state
        state, loss = compiled(state, tokens, targets)
        jax.block_until_ready(loss)

    serve(partial(rate_of, once, steps=size.steps, work=size.tokens), compiled_memory(compiled))


def init() -> tuple[Params, Any]:
    """Fresh parameters and moments."""
    keys = jax.random.split(jax.random.key(0), len(TABLE))
    params = {
        name: jnp.ones(shape) if std is None else std * jax.random.normal(key, shape)
        for key, (name, (shape, std, _)) in zip(keys, TABLE.items(), strict=True)
    }
    return params, rule.init(params)


def state_shardings() -> Any:
    """A moment lies where its parameter lies; counters are everywhere."""

    def place(path: tuple[Any, ...], _: object) -> NamedSharding:
        names = [name for key in path if (name := getattr(key, "key", None)) in TABLE]
        return NamedSharding(mesh, TABLE[names[0]][2] if names else P())

    return jax.tree_util.tree_map_with_path(place, jax.eval_shape(init))


def step(state: tuple[Params, Any], tokens: Array, targets: Array) -> tuple[tuple[Params, Any], Array]:
    """Forward, backward, update."""
    params, moments = state
    loss, grads = jax.value_and_grad(loss_of)(params, tokens, targets)
    updates, moments = rule.update(grads, moments, params)
    return (optax.apply_updates(params, updates), moments), loss


def loss_of(params: Params, tokens: Array, targets: Array) -> Array:
    """The mean cross entropy."""
    top = {name: whole(params[name], TOP[name][2]) for name in TOP if name not in ("tokens", "head")}
    x = put(rows_of(params["tokens"], tokens), RESIDUAL)
    layers = {name: params[name] for name in LAYER}
    if K:
        x, _ = jax.lax.scan(jax.checkpoint(llama_block, prevent_cse=False), x, layers)
        return cross_entropy(targets, rms_norm(x, top["gain"]), params["head"])
    x = put(x + top["positions"], RESIDUAL)
    x, _ = jax.lax.scan(jax.checkpoint(block, prevent_cse=False), x, layers)
    return cross_entropy(targets, norm(x, top["gain"], top["shift"]), params["tokens"])


def block(x: Array, stored: Params) -> tuple[Array, None]:
    """One layer of GPT-2 on the residual stream [batch, position, embed]."""
    w = {name: whole(a, P(*LAYER[name][2][1:])) for name, a in stored.items()}
    h = norm(x, w["gain1"], w["shift1"])
    qkv = jnp.einsum("bse,ethd->tbhsd", h, w["qkv"]) + w["qkv_bias"][:, None, :, None, :]
    q, k, v = put(qkv, P(None, "data", "tensor"))
    x = x + put(jnp.einsum("bhsd,hde->bse", attend(q, k, v), w["out"]), RESIDUAL) + w["out_bias"]
    h = norm(x, w["gain2"], w["shift2"])
    h = jax.nn.gelu(put(h @ w["up"] + w["up_bias"], P("data", None, "tensor")), approximate=True)
    return x + put(h @ w["down"], RESIDUAL) + w["down_bias"], None


def llama_block(x: Array, stored: Params) -> tuple[Array, None]:
    """One layer of Llama on the residual stream [batch, position, embed]."""
    w = {name: whole(a, P(*LAYER[name][2][1:])) for name, a in stored.items()}
    h = rms_norm(x, w["gain1"])
    q = rotated(put(jnp.einsum("bse,ehd->bhsd", h, w["q"]), P("data", "tensor")))
    k, v = put(jnp.einsum("bse,etkd->tbksd", h, w["kv"]), P(None, "data", "tensor"))
    x = x + put(jnp.einsum("bhsd,hde->bse", attend_grouped(q, rotated(k), v), w["out"]), RESIDUAL)
    h = rms_norm(x, w["gain2"])
    h = jax.nn.silu(put(h @ w["gate"], P("data", None, "tensor"))) * put(h @ w["up"], P("data", None, "tensor"))
    return x + put(h @ w["down"], RESIDUAL), None


def rms_norm(x: Array, gain: Array) -> Array:
    """RMS norm over the last axis."""
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * gain


def rotated(x: Array) -> Array:
    """Rotary positions on [batch, heads, position, head_size]; values half a head apart are turned together."""
    angles = np.arange(S)[:, None] * 10000.0 ** -(np.arange(0, D, 2) / D)
    cos, sin = (jnp.asarray(np.tile(wave(angles), 2), jnp.float32) for wave in (np.cos, np.sin))
    return x * cos + jnp.concatenate([-x[..., D // 2 :], x[..., : D // 2]], -1) * sin


def norm(x: Array, gain: Array, shift: Array) -> Array:
    """Layer norm over the last axis."""
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * gain + shift


def attend(q: Array, k: Array, v: Array) -> Array:
    """Plain causal attention over [batch, heads, position, head_size]."""
    scores = jnp.einsum("bhqd,bhkd->bhqk", q * D**-0.5, k)
    scores = jnp.where(jnp.tril(jnp.ones((S, S), bool)), scores, -1e9)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), v)


def attend_grouped(q: Array, k: Array, v: Array) -> Array:
    """The same where each head of keys and values is for several neighbouring heads of queries."""
    q = (q * D**-0.5).reshape(q.shape[0], K, -1, S, D)
    scores = jnp.einsum("bkgqd,bksd->bkgqs", q, k)
    scores = jnp.where(jnp.tril(jnp.ones((S, S), bool)), scores, -1e9)
    return jnp.einsum("bkgqs,bksd->bkgqd", jax.nn.softmax(scores, axis=-1), v).reshape(-1, H, S, D)


def put(x: Array, spec: PartitionSpec) -> Array:
    """An activation laid out."""
    placed: Array = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))
    return placed


def whole(w: Array, stored: PartitionSpec) -> Array:
    """A parameter whole over data; its gradient goes back split, so that it is scattered and not summed everywhere."""
    gathered = P(*(None if axis == "data" else axis for axis in stored))

    @jax.custom_vjp
    def gather(w: Array) -> Array:
        return put(w, gathered)

    gather.defvjp(lambda w: (gather(w), None), lambda _, grad: (put(grad, stored),))
    result: Array = gather(w)
    return result


def rows_of(table: Array, tokens: Array) -> Array:
    """The table's rows of these tokens; each device looks up those it holds."""

    @partial(jax.shard_map, mesh=mesh, in_specs=(TOP["tokens"][2], ROWS), out_specs=RESIDUAL)
    def local(table: Array, tokens: Array) -> Array:
        table = jax.lax.all_gather(table, "data", axis=1, tiled=True)
        row = tokens - jax.lax.axis_index("tensor") * table.shape[0]
        held = (row >= 0) & (row < table.shape[0])
        found = jnp.where(held[..., None], table[jnp.clip(row, 0, table.shape[0] - 1)], 0)
        added: Array = jax.lax.psum(found, "tensor")
        return added

    rows: Array = local(table, tokens)
    return rows


def cross_entropy(targets: Array, x: Array, table: Array) -> Array:
    """The mean loss; its gradients are made in the same pass: three products a block, never the whole logits."""

    @jax.custom_vjp
    def mean(x: Array, table: Array) -> Array:
        loss: Array = sums(x, table, targets)[0]
        return loss

    def forward(x: Array, table: Array) -> tuple[Array, tuple[Array, Array]]:
        loss, x_grad, table_grad = sums(x, table, targets)
        return loss, (x_grad, table_grad)

    mean.defvjp(forward, lambda grads, slope: tuple(slope * grad for grad in grads))
    result: Array = mean(x, table)
    return result


@partial(
    jax.shard_map,
    mesh=mesh,
    in_specs=(RESIDUAL, TOP["tokens"][2], ROWS),
    out_specs=(P(), RESIDUAL, TOP["tokens"][2]),
    check_vma=False,
)
def sums(x: Array, table: Array, targets: Array) -> tuple[Array, Array, Array]:
    """One device's part of the mean loss, of its gradient in x, and of its gradient in the table."""
    table = jax.lax.all_gather(table, "data", axis=1, tiled=True)
    first = jax.lax.axis_index("tensor") * table.shape[0]
    entries = first + jnp.arange(table.shape[0])

    def visit(table_grad: Array, inputs: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        x, targets = inputs
        logits = x @ table.T
        hot = targets[:, None] == entries
        top = jax.lax.pmax(logits.max(-1), "tensor")
        powers = jnp.exp(logits - top[:, None])
        total, right = jax.lax.psum(jnp.stack([powers.sum(-1), jnp.where(hot, logits, 0).sum(-1)]), "tensor")
        slope = (powers / total[:, None] - hot) / size.tokens
        return table_grad + slope.T @ x, ((jnp.log(total) + top - right).sum(), slope @ table)

    block_tokens = min(BLOCK_TOKENS, targets.size)
    blocks = x.reshape(-1, block_tokens, E), targets.reshape(-1, block_tokens)
    table_grad, (loss, x_grad) = jax.lax.scan(visit, jnp.zeros_like(table), blocks)
    x_grad = jax.lax.psum(x_grad.reshape(x.shape), "tensor")
    table_grad = jax.lax.psum_scatter(table_grad, "data", scatter_dimension=1, tiled=True)
    return jax.lax.psum(loss.sum(), "data") / size.tokens, x_grad, table_grad


if __name__ == "__main__":
    main()
