"""The limit of generation: one loop by hand in plain JAX for a GPT-2, a batch of sequences that begin and end together.

The same arithmetic as Shardwise's: float32, a cache of keys and values over all positions, each token drawn at a
temperature from the whole vocabulary. Nothing stops a sequence, and all tokens come at the end.
"""

import sys
from functools import partial

from benchmarks.sizes import Case
from benchmarks.workers.serve import compiled_memory, rate_of, serve, simulate

case, batch = Case.loads(sys.argv[1]), int(sys.argv[2])
simulate(1)

import jax  # noqa: E402  reads the environment that `simulate` sets
import jax.numpy as jnp  # noqa: E402
from benchmarks.workers.prompt import PROMPT, TEMPERATURE, num_tokens  # noqa: E402

Array = jax.Array
Layer = dict[str, Array]
Caches = list[tuple[Array, Array]]

size = case.size
L, E, H, S, V, M = size.layers, size.embed, size.heads, size.seq_len, size.vocab, 4 * size.embed
D = E // H
COUNT = num_tokens(S)


def main() -> None:
    """Compile, then take turns."""
    params = jax.jit(init)()
    compiled = jax.jit(run).lower(params, jax.random.key(0)).compile()
    work = partial(compiled, params, jax.random.key(1))
    serve(
        partial(rate_of, lambda: jax.block_until_ready(work()), steps=3, work=batch * COUNT), compiled_memory(compiled)
    )


def init() -> tuple[dict[str, Array], list[Layer]]:
    """Fresh parameters."""
    keys = iter(jax.random.split(jax.random.key(0), 6 * L + 2))

    def weight(*shape: int) -> Array:
        return 0.02 * jax.random.normal(next(keys), shape)

    layers = [
        {
            "gain1": jnp.ones(E), "shift1": jnp.zeros(E), "gain2": jnp.ones(E), "shift2": jnp.zeros(E),
            "qkv": weight(E, 3 * E), "qkv_bias": jnp.zeros(3 * E), "out": weight(E, E), "out_bias": jnp.zeros(E),
            "up": weight(E, M), "up_bias": jnp.zeros(M), "down": weight(M, E), "down_bias": jnp.zeros(E),
        }
        for _ in range(L)
    ]  # fmt: skip
    top = {"tokens": weight(E, V), "positions": weight(S, E), "gain": jnp.ones(E), "shift": jnp.zeros(E)}
    return top, layers


def run(params: tuple[dict[str, Array], list[Layer]], key: Array) -> Array:
    """The prompt, then token after token: int32 [batch, tokens]."""
    top, layers = params
    caches = [(jnp.zeros((batch, H, S, D)),) * 2 for _ in layers]
    tokens = jnp.broadcast_to(jnp.array(PROMPT), (batch, len(PROMPT)))
    logits, caches = logits_of(top, layers, tokens, jnp.int32(0), caches)

    def one(i: Array, carry: tuple[Array, Caches, Array]) -> tuple[Array, Caches, Array]:
        logits, caches, made = carry
        token = jax.random.categorical(jax.random.fold_in(key, i), logits / TEMPERATURE)
        made = jax.lax.dynamic_update_slice(made, token[:, None], (0, i))
        logits, caches = logits_of(top, layers, token[:, None], len(PROMPT) + i, caches)
        return logits, caches, made

    made = jnp.zeros((batch, COUNT), jnp.int32)
    result: Array = jax.lax.fori_loop(0, COUNT, one, (logits, caches, made))[2]
    return result


def logits_of(
    top: dict[str, Array], layers: list[Layer], tokens: Array, start: Array, caches: Caches
) -> tuple[Array, Caches]:
    """The logits [batch, vocab] after these tokens, of positions from `start` on."""
    at = start + jnp.arange(tokens.shape[1])
    x = jnp.moveaxis(jnp.take(top["tokens"], tokens, axis=1), 0, -1) + top["positions"][at]
    longer = []
    for w, cache in zip(layers, caches, strict=True):
        qkv = norm(x, w["gain1"], w["shift1"]) @ w["qkv"] + w["qkv_bias"]
        q, k, v = jnp.moveaxis(qkv.reshape(*x.shape[:2], 3, H, D), (2, 3), (0, 2))
        keys, values = (
            jax.lax.dynamic_update_slice_in_dim(old, new, start, 2) for old, new in zip(cache, (k, v), strict=True)
        )
        scores = jnp.einsum("bhqd,bhkd->bhqk", q * D**-0.5, keys)
        seen = jax.nn.softmax(jnp.where(at[:, None] >= jnp.arange(S), scores, -1e9), axis=-1)
        mixed = jnp.einsum("bhqk,bhkd->bhqd", seen, values).swapaxes(1, 2).reshape(x.shape)
        x = x + mixed @ w["out"] + w["out_bias"]
        h = norm(x, w["gain2"], w["shift2"])
        x = x + jax.nn.gelu(h @ w["up"] + w["up_bias"], approximate=True) @ w["down"] + w["down_bias"]
        longer.append((keys, values))
    return norm(x[:, -1], top["gain"], top["shift"]) @ top["tokens"], longer


def norm(x: Array, gain: Array, shift: Array) -> Array:
    """Layer norm over the last axis."""
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * gain + shift


if __name__ == "__main__":
    main()
