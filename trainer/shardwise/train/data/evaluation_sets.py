"""What is evaluated on: the held-out documents, and sets of text or of questions that are never trained on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.job.rounding import num_parts
from shardwise.job.spec.data import Data, EvaluationSet, Source
from shardwise.protocol.errors import DataError
from shardwise.protocol.evaluated import HELD_OUT
from shardwise.train.data.dataset import most_of, open_all, open_cached
from shardwise.train.data.encodings import in_template
from shardwise.train.data.opening import Opened, Watch
from shardwise.train.data.question_records import QuestionEncoding, questions_in
from shardwise.train.data.questions import Question, QuestionSet
from shardwise.train.data.sequences import HeldOutSet, Sequences, cut_up
from shardwise.train.data.sources import QUESTIONS
from shardwise.train.data.tokenizer import tokenizer_of


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """A set to evaluate on, in one fixed order. `batches` is how many of it are evaluated; None: all."""

    name: str
    sequences: HeldOutSet | QuestionSet
    batches: int | None
    is_judged: bool = False
    """Whether it is of answers that are good or bad."""
    has_prompts: bool = False
    """Whether it is of prompts, which have no loss."""
    identity: dict[str, Any] | None = None
    """What the set's content is; None of documents that are part of the training data's fingerprint."""

    def num_batches(self, size: int) -> int:
        """Return how many batches of so many sequences are evaluated; the last one may be partly empty."""
        whole = num_parts(self.sequences.num_sequences, size)
        if self.batches is None:
            return whole
        least = num_parts(self.sequences.num_rows_of_first, size) if isinstance(self.sequences, QuestionSet) else 1
        return min(max(self.batches, least), whole)


def open_sets(
    sets: Sequence[EvaluationSet],
    data: Data,
    *,
    seq_len: int,
    cache_root: Path,
    watch: Watch,
    most: int | None,
    packs: bool = True,
    completion_tokens: int = 0,
) -> list[Evaluated]:
    """Find and tokenise sets, each to its last token.

    `most` is how many batches are evaluated of those that do not say it themselves; without it all of each set are.
    `packs` is whether answers to questions may share a row, where each does not begin at its first position. Of a
    sequence prompts leave `completion_tokens`.
    Raise DataError for text that is missing, unreadable, malformed or too little.
    """
    texts = [one for one in sets if not one.questions]
    # Each host reads them by itself: they are small, and repeat nothing of what is trained on that would be left out.
    own = data.model_copy(update={"train": tuple(map(_source, texts)), "held_out": 0.0, "store": None, "dedup": None})
    opened = zip(own.train, _opened(own, cache_root, watch, sets=True), strict=True)
    found = []
    for one in sets:
        batches = one.batches if most is not None and one.batches is not None else most
        if one.questions:
            questions = QuestionSet(_questions(one, data, seq_len, cache_root, watch), seq_len, packed=packs)
            identity = {"name": one.name, "fingerprint": questions.fingerprint}
            found.append(Evaluated(name=one.name, sequences=questions, batches=batches, identity=identity))
        else:
            sequences, content = _text(*next(opened), own, seq_len - completion_tokens * one.prompts)
            found.append(
                Evaluated(
                    name=one.name,
                    sequences=sequences,
                    batches=batches,
                    is_judged=one.is_judged,
                    has_prompts=one.prompts,
                    identity={"name": one.name, **content},
                )
            )
    return found


def _text(source: Source, opened: Opened, own: Data, seq_len: int) -> tuple[HeldOutSet, dict[str, Any]]:
    """Return the sequences of a set of text, and what its content is."""
    if share := opened.identity["held_out"]:
        raise DataError(
            f"evaluation set {source.name!r}: its token store holds out {share:g} of its documents; expected one with "
            "all of them. Tokenize the set's text again with heldOut: 0, or name the text itself."
        )
    sequences = cut_up([source], [opened.train], own, seq_len, keeps_rest=True)
    if not sum(sequences.count()):
        raise DataError(_too_little(source, opened.train.num_tokens, sequences))
    return HeldOutSet(sequences), opened.identity


def _questions(one: EvaluationSet, data: Data, seq_len: int, cache_root: Path, watch: Watch) -> list[Question]:
    """Read and encode a set's questions, or have them from the cache."""
    encoding = QuestionEncoding(in_template(tokenizer_of(data), one.chat_template), seq_len)
    cached = open_cached(_source(one), QUESTIONS, encoding, cache_root, watch)
    questions, num_left_out = questions_in(cached.read(0, cached.num_tokens))
    if not questions:
        told = f"all {num_left_out:,} have" if num_left_out else "no question is there, or has"
        raise DataError(
            f"evaluation set {one.name!r}: {told} a choice that is longer than a sequence of {seq_len:,} tokens"
        )
    left_out = f"; {num_left_out:,} have a choice that is longer than a sequence, and are left out"
    watch.report(f"evaluation set {one.name}: {len(questions):,} questions{left_out if num_left_out else ''}")
    return questions


def open_held_out(data: Data, *, seq_len: int, cache_root: Path, watch: Watch, completion_tokens: int = 0) -> Evaluated:
    """Return all held-out documents of the training sources, to the last token; DataError if there are none.

    Of a sequence prompts leave `completion_tokens`.
    """
    streams = [opened.held_out for opened in _opened(data, cache_root, watch)]
    has_prompts = any(source.prompts for source in data.train)
    sequences = cut_up(data.train, streams, data, seq_len - completion_tokens * has_prompts, keeps_rest=True)
    if not sum(sequences.count()):
        raise DataError(f"data.heldOut {data.held_out:g} has kept no document out of training; there is none to read")
    is_judged = any(source.is_judged for source in data.train)
    held_out = HeldOutSet(sequences)
    return Evaluated(name=HELD_OUT, sequences=held_out, batches=None, is_judged=is_judged, has_prompts=has_prompts)


def _too_little(source: Source, num_tokens: int, sequences: Sequences) -> str:
    if num_left_out := sum(cut.num_left_out for cut in sequences.cuts):
        return (
            f"evaluation set {source.name!r}: all {num_left_out:,} {source.judged_words} are longer than "
            f"{most_of(source, sequences.seq_len)}; expected some that fit. Raise seqLen, or take the set out."
        )
    has = f"evaluation set {source.name!r} has {num_tokens} tokens"
    return f"{has}; expected at least 2. Give more text, or take the set out."


def _source(one: EvaluationSet) -> Source:
    return Source(**one.model_dump(exclude={"batches", "questions"}))


def _opened(data: Data, cache_root: Path, watch: Watch, *, sets: bool = False) -> list[Opened]:
    if not data.train:
        return []
    tokenizer = tokenizer_of(data)
    return open_all(data, tokenizer, cache_root, watch, of_any_split=sets)
