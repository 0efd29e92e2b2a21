"""GPT-2 and GPT-J in plain numpy, straight from the published tensors: what the trainer's model is compared with.

Written from the papers' definitions, without JAX and without the trainer's code, so that a mistake is not made twice:
Radford et al. (2019) and Vaswani et al. (2017) for GPT-2; Wang and Komatsuzaki (2021) and Su et al. (2021) for GPT-J.
All in float64. Names are those of the published files, without the "transformer." prefix.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Weights = Mapping[str, Array]


def gpt2_logits(
    weights: Weights, tokens: Array, *, num_heads: int, epsilon: float = 1e-5, scale_by_inverse_layer: bool = False
) -> Array:
    """[position, vocab] for int [position]."""
    x = weights["wte.weight"][tokens] + weights["wpe.weight"][: len(tokens)]
    for layer in range(num_layers(weights)):
        h = part(weights, f"h.{layer}.")
        normed = layer_norm(x, h["ln_1.weight"], h["ln_1.bias"], epsilon)
        q, k, v = np.split(normed @ h["attn.c_attn.weight"] + h["attn.c_attn.bias"], 3, axis=-1)
        divisor = layer + 1 if scale_by_inverse_layer else 1
        mixed = attention(heads(q, num_heads), heads(k, num_heads), heads(v, num_heads), divisor)
        x = x + mixed @ h["attn.c_proj.weight"] + h["attn.c_proj.bias"]
        normed = layer_norm(x, h["ln_2.weight"], h["ln_2.bias"], epsilon)
        x = x + gelu(normed @ h["mlp.c_fc.weight"] + h["mlp.c_fc.bias"]) @ h["mlp.c_proj.weight"] + h["mlp.c_proj.bias"]
    return layer_norm(x, weights["ln_f.weight"], weights["ln_f.bias"], epsilon) @ weights["wte.weight"].T


def gptj_logits(weights: Weights, tokens: Array, *, num_heads: int, rotary_dim: int, epsilon: float = 1e-5) -> Array:
    """[position, vocab] for int [position]."""
    x = weights["wte.weight"][tokens]
    for layer in range(num_layers(weights)):
        h = part(weights, f"h.{layer}.")
        normed = layer_norm(x, h["ln_1.weight"], h["ln_1.bias"], epsilon)
        q, k, v = (heads(normed @ h[f"attn.{name}_proj.weight"].T, num_heads) for name in "qkv")
        mixed = attention(turn(q, rotary_dim), turn(k, rotary_dim), v, 1)
        hidden = gelu(normed @ h["mlp.fc_in.weight"].T + h["mlp.fc_in.bias"])
        x = x + mixed @ h["attn.out_proj.weight"].T + hidden @ h["mlp.fc_out.weight"].T + h["mlp.fc_out.bias"]
    normed = layer_norm(x, weights["ln_f.weight"], weights["ln_f.bias"], epsilon)
    return normed @ weights["lm_head.weight"].T + weights["lm_head.bias"]


def num_layers(weights: Weights) -> int:
    """Layers that the names speak of."""
    return 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("h."))


def part(weights: Weights, prefix: str) -> dict[str, Array]:
    """The tensors under a prefix."""
    return {name.removeprefix(prefix): array for name, array in weights.items() if name.startswith(prefix)}


def layer_norm(x: Array, gain: Array, bias: Array, epsilon: float) -> Array:
    """Mean 0 and variance 1 over the last axis, then an affine map."""
    centred = x - x.mean(-1, keepdims=True)
    normed: Array = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    return normed * gain + bias


def gelu(x: Array) -> Array:
    """Hendrycks and Gimpel (2016), the tanh form."""
    gate: Array = 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return x * gate


def heads(x: Array, num_heads: int) -> Array:
    """[position, embed] as [head, position, features]."""
    return x.reshape(len(x), num_heads, -1).swapaxes(0, 1)


def attention(q: Array, k: Array, v: Array, divisor: float) -> Array:
    """[head, position, features] three times -> [position, embed]: a position sees itself and what is before it."""
    scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]) / divisor
    scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    mixed: Array = powers / powers.sum(-1, keepdims=True) @ v
    return mixed.swapaxes(0, 1).reshape(q.shape[1], -1)


def turn(x: Array, rotary_dim: int) -> Array:
    """Every neighbouring pair of the first features, as a complex number, times e^(i position frequency)."""
    pairs = x[..., 0:rotary_dim:2] + 1j * x[..., 1:rotary_dim:2]
    frequency = 10000.0 ** (-2 * np.arange(rotary_dim // 2) / rotary_dim)
    pairs = pairs * np.exp(1j * np.outer(np.arange(x.shape[1]), frequency))
    turned = x.copy()
    turned[..., 0:rotary_dim:2], turned[..., 1:rotary_dim:2] = pairs.real, pairs.imag
    return turned
