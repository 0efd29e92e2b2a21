"""How likely a model finds the tokens of sequences, beside its whole forward pass and NumPy's softmax of that."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tests.train.small_gpt import forward_of, gpt2_config, program_of, random_params

from shardwise.train.decoder import Decoder
from shardwise.train.decoding_arrays import BLOCK
from shardwise.train.scoring import MOST_LIKELY

SEQUENCES = ([5, 1, 69, 3, 3, 12, 40], [7], [(7 * i) % 70 for i in range(2 * BLOCK + 1)], [8, 0])
"""One is a token longer than the model sees, and one has nothing to be scored."""


@pytest.mark.parametrize(
    "mesh", [{}, {"replica": 2, "tensor": 2}, {"fsdp": True}], ids=["one device", "two replicas", "data"]
)
def test_each_token_has_its_likelihood(mesh: Mapping[str, Any]) -> None:
    """Each token but the first has the logarithm of its probability after those before it, and so have the likeliest.

    They are those of the whole forward pass, whatever is in the other rows; none is of the vocabulary's padding.
    """
    program = program_of(gpt2_config(seq_len=2 * BLOCK), devices=4 if mesh else 1, mesh=mesh)
    params = random_params(program)
    found = Decoder.of(program, params, len(SEQUENCES)).score(SEQUENCES)

    rows = np.zeros((len(SEQUENCES), 2 * BLOCK), np.int32)
    for row, sequence in enumerate(SEQUENCES):
        rows[row, : len(sequence) - 1] = sequence[:-1]
    logits = forward_of(program)(params, jnp.asarray(rows))[..., : program.config.vocab_size].astype(np.float64)
    logs = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
    logs -= logits.max(-1, keepdims=True)
    for sequence, expected, scores in zip(SEQUENCES, logs, found, strict=True):
        count = len(sequence) - 1
        assert scores.own.shape == (count,)
        np.testing.assert_allclose(scores.own, expected[range(count), sequence[1:]], rtol=0, atol=2e-5)
        likeliest = np.argsort(-expected[:count], axis=-1)[:, :MOST_LIKELY]
        np.testing.assert_array_equal(scores.top_tokens, likeliest)
        np.testing.assert_allclose(scores.top, np.take_along_axis(expected[:count], likeliest, -1), rtol=0, atol=2e-5)
