"""shardwise.train.start: what is refused once the tokenizer is known."""

import jax
import pytest
from tests.job.test_load import quickstart

from shardwise.job.resolve import resolve
from shardwise.protocol.errors import DataError
from shardwise.train.start import build


def test_a_tensor_that_does_not_divide_the_vocabulary_is_answered_with_those_that_fit() -> None:
    """With what divides heads, kvHeads, mlp and devices as well: 4 would divide the heads and the vocabulary alone."""
    job = quickstart(
        "hardware.topology=1x6",
        "training.model={layers: 2, heads: 12, kvHeads: 6, embed: 96, mlp: 192, seqLen: 32, position: rotary}",
        "training.mesh={tensor: 3, fsdp: false}",
        "training.data.tokenizer=tokenizer.json",
    )
    with pytest.raises(DataError, match=r"given 3, .* vocabulary of 128 entries .*: 1, 2$"):
        build(resolve(job), jax.devices()[:6], tokenizer_size=100)
