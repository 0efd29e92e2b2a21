"""A process that prepares data for the cache tests: `builder.py CACHE FILE [pause]`.

Prints each report as a line "report ..."; with `pause` it prints "paused" once part of the tokens is on disk and goes
on when it reads a line. The last line is "tokens N DIGEST" of the first training samples.
"""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from shardwise.job.spec.data import Data
from shardwise.train.data import dataset
from shardwise.train.data.opening import Watch
from shardwise.train.data.tokenizer import ByteTokenizer, TokenArray


class PausingTokenizer(ByteTokenizer):
    """Stops before its second batch until told to go on."""

    batches = 0

    def encode_batch(self, pieces: Sequence[bytes]) -> list[TokenArray]:
        """Encodes as bytes."""
        self.batches += 1
        if self.batches == 2:
            say("paused")
            sys.stdin.readline()
        return super().encode_batch(pieces)


def say(line: str) -> None:
    """Prints at once."""
    print(line, flush=True)  # noqa: T201  its reader is a test


def main(cache: str, path: str, *options: str) -> None:
    """Prepares the file's data and says what it holds."""
    if "pause" in options:
        setattr(dataset, "tokenizer_of", lambda _: PausingTokenizer())  # noqa: B010  it is not an export
    data = Data.model_validate({"train": [{"name": "text", "paths": [path]}], "heldOut": 0.2})
    made = dataset.prepare(
        data,
        dataset.Reading(seq_len=64, sequences=8, steps=32, seed=0),
        cache_root=Path(cache),
        watch=Watch(report=lambda line: say(f"report {line}")),
    )
    tokens = made.train.rows(np.arange(256)).tokens
    say(f"tokens {made.num_tokens} {hashlib.sha256(tokens.tobytes()).hexdigest()}")


main(*sys.argv[1:])
