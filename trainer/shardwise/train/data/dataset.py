"""From the job's `data` section to batches of token arrays.

The trainer calls `prepare` once, then `Dataset.train.rows` each step and `Dataset.held_out.rows` at evaluations. No
model runs here.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from shardwise.job.batch_sizes import BatchSizes
from shardwise.job.spec import Training
from shardwise.job.spec.batch import RampUp
from shardwise.job.spec.data import Data, Source
from shardwise.protocol.errors import DataError
from shardwise.protocol.storage import in_words
from shardwise.train.data.cuts import Cut
from shardwise.train.data.mixture import mixture_of
from shardwise.train.data.opening import Opened, SourceSummary, Watch, cached_corpus, open_sources
from shardwise.train.data.order import Order
from shardwise.train.data.sequences import HeldOutSet, Sequences, TrainSet, cut_up
from shardwise.train.data.token_stream import TokenStream
from shardwise.train.data.tokenizer import Encoding, Tokenizer, tokenizer_of

_DATA_FOLDER = "data"
_ENTROPY_TOKENS = 1 << 21


class Reading(NamedTuple):
    """How a run reads its data: `sequences` of `seq_len` tokens in each of `steps`, in the order of `seed`.

    The first batches have as many sequences as `ramp_up` says.
    """

    seq_len: int
    sequences: int
    steps: int
    seed: int
    ramp_up: Sequence[RampUp] = ()

    @classmethod
    def of(cls, training: Training) -> Self:
        """Return that of a resolved job. Of prompts a sequence is one, as long as leaves room for its completion."""
        seq_len, batch, learning = training.model.seq_len, training.batch, training.reinforcement
        assert seq_len is not None, "the job is resolved"
        if learning is None:
            return cls(seq_len, batch.sequences, training.steps, training.seed, batch.ramp_up)
        longest, count = seq_len - learning.max_tokens, batch.sequences // learning.samples
        return cls(longest, count, training.steps, training.seed)

    @property
    def sizes(self) -> BatchSizes:
        """The sequences of each batch."""
        return BatchSizes.of(self.sequences, self.ramp_up)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A job's data, ready to be read.

    `fingerprint` is the same for the same content, tokenizer, split and mixture, wherever the files lie and whatever
    the sequence length; `num_tokens` counts the training part of all sources.
    """

    fingerprint: str
    tokenizer: Tokenizer
    num_tokens: int
    sources: tuple[SourceSummary, ...]
    train: TrainSet
    held_out: HeldOutSet | None

    def entropies(self) -> dict[str, float]:
        """Return the nats a token of two models that know counts alone, over at most 2 Mi tokens.

        `unigram` is of the best model that knows only how frequent tokens are, `bigram` of one that knows only the
        token before. They are estimates: too low if the vocabulary is large for so many tokens.
        """
        tokens, targets = self._counted()
        pairs = tokens.astype(np.int64) << 32 | targets
        return {"unigram": _entropy(targets), "bigram": _entropy(pairs) - _entropy(tokens)}

    def _counted(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return tokens [token] and their targets [token] of the first samples: a fair sample of the mixture."""
        first = self.train.rows(np.zeros(1, np.int64))
        count = min(self.train.num_sequences, max(1, _ENTROPY_TOKENS // first.tokens.size))
        batch = self.train.rows(np.arange(count))
        counted = batch.weights > 0
        return batch.tokens[counted], batch.targets[counted]


def prepare(data: Data, reading: Reading, *, cache_root: Path, watch: Watch) -> Dataset:
    """Find, tokenise (unless a cache or a store has it) and map the data of a job.

    Raise DataError for data that is missing, unreadable, malformed or too little, with what to change.
    """
    tokenizer = tokenizer_of(data)
    opened = open_all(data, tokenizer, cache_root, watch)
    summaries = tuple(each.summary for each in opened)
    seq_len = reading.seq_len
    train = cut_up(data.train, [each.train for each in opened], data, seq_len)
    held_out = cut_up(data.train, [each.held_out for each in opened], data, seq_len)
    for source, cut in zip(data.train, train.cuts, strict=True):
        _say_left_out(source, cut, seq_len, watch.report)
    _refuse_too_little(summaries, train, held_out, data.held_out)
    _refuse_left_out(data.train, train.count())
    mixture = mixture_of(data, train.count(), sizes=reading.sizes, steps=reading.steps)
    return Dataset(
        fingerprint=_fingerprint([each.identity for each in opened], data, tokenizer),
        tokenizer=tokenizer,
        num_tokens=sum(summary.num_tokens for summary in summaries),
        sources=summaries,
        train=TrainSet(
            train,
            Order(num_sequences=train.count(), mixture=mixture, seed=reading.seed),
            [source.leave_out for source in data.train],
        ),
        held_out=HeldOutSet(held_out) if data.held_out else None,
    )


def open_all(
    data: Data, tokenizer: Tokenizer, cache_root: Path, watch: Watch, *, of_any_split: bool = False
) -> list[Opened]:
    """Return the streams of each source, after tokenising what neither a cache nor a store has."""
    folder = cache_root / _DATA_FOLDER
    with _cache_errors(folder):
        return open_sources(data, tokenizer, folder, watch, of_any_split=of_any_split)


def open_cached(source: Source, text_field: str, encoding: Encoding, cache_root: Path, watch: Watch) -> TokenStream:
    """Return the documents of a source, encoded in another way than as text, from the cache or after making them."""
    folder = cache_root / _DATA_FOLDER
    with _cache_errors(folder):
        return cached_corpus(source, text_field, 0.0, encoding, folder, watch)[1].train


@contextmanager
def _cache_errors(folder: Path) -> Iterator[None]:
    """Name the cache's folder in an OSError: files of data that cannot be read have errors of their own."""
    try:
        yield
    except OSError as error:
        words = (
            f"cannot use the data cache {str(folder)!r}: {error.strerror or error}. Expected a folder on a local disk "
            "with room for 2 bytes a token (4 for vocabularies above 65,536): make room, or set SHARDWISE_CACHE to a "
            "folder elsewhere."
        )
        raise in_words(error, words, DataError) from error


def _refuse_too_little(
    summaries: Sequence[SourceSummary], train: Sequences, held_out: Sequences, fraction: float
) -> None:
    for summary, count in zip(summaries, train.count(), strict=True):
        if count == 0:
            raise DataError(_too_little(summary, train.seq_len, fraction))
    if fraction and sum(held_out.count()) == 0:
        num_documents = sum(summary.num_held_out_documents for summary in summaries)
        num_all = num_documents + sum(summary.num_documents for summary in summaries)
        num_tokens = sum(summary.num_held_out_tokens for summary in summaries)
        raise DataError(
            f"heldOut {fraction:g} kept {num_documents:,} of {num_all:,} documents with {num_tokens:,} tokens out of "
            f"training; expected at least {train.seq_len + 1:,} tokens (seqLen + 1) from one source. A document is "
            "kept out as a whole (a text file is one document): give more documents, raise heldOut, or set it to 0."
        )


def _say_left_out(source: Source, cut: Cut, seq_len: int, report: Callable[[str], None]) -> None:
    """Tell of answers, or of prompts, that are too long, and refuse a source that has no others."""
    if not cut.num_left_out:
        return
    many = f"{cut.num_left_out:,} {source.judged_words} are longer than {most_of(source, seq_len)}"
    if not cut.count():
        raise DataError(f"source {source.name!r}: all {many}; expected some that fit. Raise seqLen.")
    report(f"{source.name}: {many}, and are left out")


def most_of(source: Source, seq_len: int) -> str:
    """Return the words for how long an answer, or a prompt, may be."""
    if source.prompts:
        return f"the {seq_len:,} tokens that their completions leave"
    return f"the {seq_len + 1:,} tokens of a sequence"


def _refuse_left_out(sources: Sequence[Source], counts: Sequence[int]) -> None:
    """Refuse to leave out what is not there, and everything."""
    for source, count in zip(sources, counts, strict=True):
        others = [number for number in source.leave_out if number >= count]
        if others or len(set(source.leave_out)) == count:
            given = f"sequence {others[0]}" if others else f"all {count:,} sequences"
            raise DataError(
                f"source {source.name!r}, leaveOut: given {given}; expected some of the numbers 0 to {count - 1:,}, as "
                "`shardwise data` shows them"
            )


def _too_little(summary: SourceSummary, seq_len: int, fraction: float) -> str:
    expected = f"expected at least {seq_len + 1:,} (seqLen + 1)"
    if summary.num_held_out_documents:
        return (
            f"source {summary.name!r} has {summary.num_tokens:,} training tokens in {summary.num_documents:,} "
            f"documents; {expected}. heldOut {fraction:g} kept {summary.num_held_out_documents:,} documents with "
            f"{summary.num_held_out_tokens:,} tokens out of training, each as a whole (a text file is one document): "
            "give more documents, lower heldOut, or set it to 0."
        )
    return (
        f"source {summary.name!r} has {summary.num_tokens:,} tokens in {summary.num_documents:,} documents of "
        f"{summary.num_files:,} files; {expected}. Give more text or lower seqLen."
    )


def _entropy(values: NDArray[np.integer[Any]]) -> float:
    """Return H(value) in nats, from the counts of values [token]."""
    _, counts = np.unique(values, return_counts=True)
    shares = counts / counts.sum()
    return float(-np.sum(shares * np.log(shares)))


def _fingerprint(identities: Sequence[Mapping[str, object]], data: Data, tokenizer: Tokenizer) -> str:
    weights = [1.0 if source.weight is None else source.weight for source in data.train]
    epochs = [source.epochs for source in data.train]
    identity: dict[str, object] = {"tokenizer": tokenizer.fingerprint, "sources": list(identities)}
    if any(epochs) or data.phases:
        phases = [
            [phase.from_step, [phase.weights.get(source.name, 0.0) for source in data.train]] for phase in data.phases
        ]
        identity["mixture"] = {"weights": weights, "epochs": epochs, "phases": phases}
    else:
        identity["shares"] = [weight / sum(weights) for weight in weights]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
