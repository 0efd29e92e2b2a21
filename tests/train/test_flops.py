"""The model FLOPs of a token are those of the products in the traced program, for every kind of block."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from tests.train.small_gpt import gpt2_config, program_of, training_of

from shardwise.plan.flops import traced_flops
from shardwise.train.config import GptConfig
from shardwise.train.dropout import Dropout
from shardwise.train.flops import flops_per_token, num_matrix_parameters
from shardwise.train.model import whole_table

_LLAMA: dict[str, Any] = {
    "norm": "rms",
    "activation": "swiglu",
    "position": "rotary",
    "rotary_dim": 8,
    "rotary_pairs": "half",
    "tied_head": False,
    "attention_bias": False,
    "mlp_bias": False,
}
KINDS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "parallel": {"block": "parallel", "tied_head": False, "head_bias": True},
    "gated": _LLAMA,
    "shared heads": {**_LLAMA, "num_kv_heads": 2},
    "latent": {**_LLAMA, "head_size": 12, "rotary_dim": 4, "kv_rank": 10, "value_size": 5},
    "latent, queries too": {**_LLAMA, "head_size": 12, "rotary_dim": 4, "kv_rank": 10, "q_rank": 7, "value_size": 16},
    "one head of keys, wider heads": {**_LLAMA, "num_kv_heads": 1, "head_size": 16},
}


@pytest.mark.parametrize("kind", KINDS)
def test_flops_are_those_of_the_traced_products(kind: str) -> None:
    """A forward pass has a third of them, but for the upper half of the attention, which one block does not skip."""
    # A vocabulary without padding, and positions of one block of attention.
    config = gpt2_config(vocab_size=128, seq_len=64, **KINDS[kind])
    masked = config.num_layers * config.num_heads * (config.head_size + config.value_size) * config.seq_len
    assert _traced_a_token(config) == flops_per_token(config, training_of()) / 3 + masked


def test_a_token_goes_through_the_shared_expert_and_its_picks() -> None:
    """Of the matrices that the model has, all but the experts that it does not pick."""
    shared = {"activation": "swiglu", "mlp_bias": False, "shared_size": 24, "shared_gate": True}
    config = gpt2_config(**shared, num_experts=6, experts_per_token=2)
    program = program_of(config)
    held = {path: x.size for path, x in program.abstract()["params"].items() if path.startswith("blocks.")}
    experts = sum(held[f"blocks.mlp.{name}.weight"] for name in ("gate", "up", "down"))
    matrices = sum(size for path, size in held.items() if path.endswith("weight") and "norm" not in path)
    expected = matrices - experts * 4 // 6 + config.vocab_size * config.embed_size
    assert num_matrix_parameters(config) == expected


@pytest.mark.parametrize(("window", "pattern"), [(16, None), (16, 3), (1, 2), (128, None)])
def test_a_window_costs_the_keys_in_it(window: int, pattern: int | None) -> None:
    """Beside a model without one it saves what its layers' masks take away, within one key a layer."""
    config = gpt2_config(num_layers=6, vocab_size=128, seq_len=64)
    windowed = gpt2_config(
        num_layers=6, vocab_size=128, seq_len=64, sliding_window=window, sliding_window_pattern=pattern
    )
    local = [layer for layer in range(6) if pattern is None or (layer + 1) % pattern]
    hidden = len(local) * sum(max(0, at + 1 - window) for at in range(64)) / 64
    values = 12 * config.num_heads * config.head_size
    saved = (flops_per_token(config, training_of()) - flops_per_token(windowed, training_of())) / values
    assert abs(saved - hidden) <= len(local)


def _traced_a_token(config: GptConfig) -> float:
    """Count the products of a forward pass with all logits."""
    program = program_of(config)

    def forward(params: dict[str, jax.Array], tokens: jax.Array) -> jax.Array:
        model = program.model(params)
        table = whole_table(model.token_embedding, program.layout)
        hidden = model.hidden(table, tokens, None, Dropout.none(), program.layout)
        logits: jax.Array = model.logits(hidden, program.layout).array
        return logits

    tokens = jax.ShapeDtypeStruct((2, config.seq_len), jnp.int32)
    with jax.set_mesh(program.layout.mesh):
        traced = jax.make_jaxpr(forward)(program.abstract()["params"], tokens)
    products: int = traced_flops(traced.jaxpr, dict(program.layout.mesh.shape))
    return products / (2 * config.seq_len)
