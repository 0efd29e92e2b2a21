"""How many tokens a model has at least, for the documents and conversations of a tokenizer."""

from contextlib import suppress

from shardwise.job.spec.data import Data
from shardwise.protocol.errors import DataError
from shardwise.train.data.chat import TEMPLATES, ChatTokenizer
from shardwise.train.data.tokenizer import tokenizer_of


def least_vocab_size(data: Data) -> int:
    """Return one more than the greatest id that a document or conversation of a job's tokenizer has.

    That may be less than its size: a tokenizer that is shared with models of images has special tokens for them, which
    a model of text need not have, as Gemma 3 1B has not. Raise DataError if it cannot be read.
    """
    tokenizer = tokenizer_of(data)
    least = tokenizer.text_vocab_size
    for template in TEMPLATES:
        with suppress(DataError):  # it lacks a marker of this one
            least = max(least, ChatTokenizer(tokenizer, template).text_vocab_size)
    return least
