"""The tokenizer of a model that is exported: whether it is there, and whether it is this model's."""

from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.job.presets import BYTE_TOKENIZER, padded_vocab_size
from shardwise.job.spec.data import Data
from shardwise.job.spec.training import Training
from shardwise.protocol.errors import DataError, ShardwiseError, UsageError

if TYPE_CHECKING:
    from shardwise.train.data.tokenizer import Tokenizer


def tokenizer_of_model(data: Data, training: Training, *, given: bool) -> "Tokenizer | None":
    """Return the tokenizer of `data`; None without one, where none is needed.

    Raises:
        UsageError: it is not there, and is given or needed.
        DataError: it is another model's, by its size.

    """
    from shardwise.train.data.tokenizer import tokenizer_of
    from shardwise.train.data.vocabulary import least_vocab_size

    size_of_job = training.model.vocab_size
    if not _is_there(data.tokenizer):
        # The weights alone need no tokenizer where the job names the size of their vocabulary.
        if not given and size_of_job is not None:
            return None
        raise UsageError(
            f"{data.tokenizer}: no such file here; give the model's tokenizer.json, or its folder, by --tokenizer"
        )
    found = tokenizer_of(data)
    if size_of_job is not None and found.vocab_size > size_of_job and least_vocab_size(data) > size_of_job:
        raise _other_model(data.tokenizer, found.vocab_size, f"more than the {size_of_job} of the model")
    if given and size_of_job is None and (own := _own(training.data)) and found.vocab_size != own.vocab_size:
        raise _other_model(data.tokenizer, found.vocab_size, f"where the job's own has {own.vocab_size}")
    return found


def _own(data: Data) -> "Tokenizer | None":
    """Return the job's own tokenizer, to compare another with it; None if it cannot be read here."""
    from shardwise.train.data.tokenizer import tokenizer_of

    if not _is_there(data.tokenizer):
        return None
    try:
        return tokenizer_of(data)
    except ShardwiseError:  # which may be why another is given
        return None


def _is_there(tokenizer: str) -> bool:
    return tokenizer == BYTE_TOKENIZER or "://" in tokenizer or Path(tokenizer).is_file()


def check_table(root: str, step: int, tokenizer: str, num_tokens: int) -> None:
    """Raise DataError if the weights of a step are of another number of tokens, and CheckpointError without them."""
    from shardwise.train.checkpoint import read_manifest
    from shardwise.train.origin import PARAMS

    _, num_rows = read_manifest(root, step).arrays[f"{PARAMS}token_embedding"].shape  # it lies [embed, vocab]
    if (wanted := padded_vocab_size(num_tokens)) != num_rows:
        raise _other_model(
            tokenizer, num_tokens, f"for which the table of tokens would have {wanted} rows; the run's has {num_rows}"
        )


def _other_model(tokenizer: str, num_tokens: int, why: str) -> DataError:
    return DataError(
        f"{tokenizer}: has {num_tokens} tokens, {why}: it is another model's; give the run's own by --tokenizer"
    )
