"""Questions with a few choices: which of them the model finds likeliest, and how likely it finds the right one.

Each choice is a document of its own, after its question; several documents are a row where positions allow it. As
lm-evaluation-harness has it (Gao et al., 2024), the model's answer is the choice with the largest sum of log
probabilities, or with the largest sum for each character. `question_records` encodes them.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwise.protocol.errors import DataError
from shardwise.train.data.order import Int64Array
from shardwise.train.data.sequences import HELD_OUT_SEED, Batch

QUESTION, CHOICES, ANSWER = "prompt", "choices", "answer"
_EXPECTED = (
    f"expected a JSON object with {QUESTION}, a text, {CHOICES}, a list of at least two texts, and {ANSWER}, the place "
    "of the right one in the list, counted from 0"
)


def question_of(value: Any, where: str) -> bytes:
    """Return the question in a line's object as JSON: [prompt, choices, answer]. Raise DataError if it holds none."""
    if not isinstance(value, dict) or not {QUESTION, CHOICES, ANSWER} <= value.keys():
        raise DataError(f"{where}: no {QUESTION}, {CHOICES} and {ANSWER}; {_EXPECTED}. Take questions out for others.")
    prompt, choices, answer = value[QUESTION], value[CHOICES], value[ANSWER]
    if not isinstance(prompt, str):
        raise DataError(f"{where}: {QUESTION} is of type {type(prompt).__name__}; {_EXPECTED}")
    if not isinstance(choices, list) or len(choices) < 2:
        raise DataError(f"{where}: {CHOICES} is {json.dumps(choices)[:60]}; {_EXPECTED}")
    for number, choice in enumerate(choices):
        if not isinstance(choice, str) or not choice.strip():
            raise DataError(f"{where}: choice {number} is {json.dumps(choice)[:60]}; expected a text that is not blank")
    if not isinstance(answer, int) or isinstance(answer, bool) or not 0 <= answer < len(choices):
        raise DataError(f"{where}: {ANSWER} is {json.dumps(answer)[:60]}, of {len(choices)} choices; {_EXPECTED}")
    try:
        return json.dumps([prompt, choices, answer], ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: half a surrogate pair in a text; {_EXPECTED}, in UTF-8") from error


class Choice(NamedTuple):
    """A choice after its question, and where it is."""

    tokens: NDArray[np.int32]
    """[token]: those of the question, and of the choice."""
    first: int
    """The first token of the choice itself."""
    num_characters: int


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question's choices, at least two, and the number of the right one."""

    choices: tuple[Choice, ...]
    answer: int


class _Place(NamedTuple):
    """Where the targets are that a choice is scored by."""

    row: int
    start: int
    stop: int


class QuestionSet:
    """Questions as rows, in one fixed order that no seed changes; `num_sequences` is the number of rows."""

    def __init__(self, questions: Sequence[Question], seq_len: int, *, packed: bool) -> None:
        """Several choices are in a row if they are `packed`, or else each is in one of its own, from position 0."""
        order = np.random.default_rng(HELD_OUT_SEED).permutation(len(questions))
        self._questions = [questions[number] for number in order]
        self._seq_len = seq_len
        self._rows: list[list[Choice]] = []
        self._places: list[list[_Place]] = []
        at = seq_len
        for question in self._questions:
            places = []
            for choice in question.choices:
                size = len(choice.tokens) - 1
                if not packed or at + size > seq_len:
                    self._rows.append([])
                    at = 0
                self._rows[-1].append(choice)
                places.append(_Place(len(self._rows) - 1, at + choice.first - 1, at + size))
                at += size
            self._places.append(places)
        self.num_sequences = len(self._rows)

    @property
    def num_rows_of_first(self) -> int:
        """How many rows the first question needs."""
        return self._places[0][-1].row + 1

    @property
    def fingerprint(self) -> str:
        """A digest of all that is in the rows."""
        digest = hashlib.sha256()
        for question in self._questions:
            digest.update(f"{question.answer} {len(question.choices)}".encode())
            for choice in question.choices:
                digest.update(f" {choice.first} {choice.num_characters} {len(choice.tokens)} ".encode())
                digest.update(choice.tokens.astype("<i4").tobytes())
        return digest.hexdigest()

    def rows(self, sample_numbers: Int64Array) -> Batch:
        """Return the rows with these numbers [batch]; one past the last is empty."""
        shape = (len(sample_numbers), self._seq_len)
        tokens, targets, segments = (np.zeros(shape, np.int32) for _ in range(3))
        weights = np.zeros(shape, np.float32)
        for row, number in enumerate(np.asarray(sample_numbers).tolist()):
            at = count = 0
            for choice in self._rows[number] if number < self.num_sequences else ():
                stop = at + len(choice.tokens) - 1
                tokens[row, at:stop], targets[row, at:stop] = choice.tokens[:-1], choice.tokens[1:]
                weights[row, at + choice.first - 1 : stop] = 1
                segments[row, at:stop] = count
                at, count = stop, count + 1
            segments[row, at:] = count  # no choice is seen from the room that is left
        return Batch(tokens=tokens, targets=targets, weights=weights, segments=segments)

    def means(self, losses: NDArray[np.float32]) -> dict[str, float]:
        """Return the means over the questions that are whole in the first rows, by what each token of these costs.

        Args:
            losses: nats, [row, position], 0 where no choice is.

        Returns:
            `loss` is of the tokens of right choices, `tokens` of them. `accuracy` and `accuracyNorm` are shares of the
            `questions`: by the sum of log probabilities, and by that for each character. Of equals the first counts.

        """
        cost, tokens, right, right_for_each, count = 0.0, 0, 0, 0, 0
        for question, places in zip(self._questions, self._places, strict=True):
            if places[-1].row >= len(losses):
                break
            costs = np.array([losses[row, start:stop].sum(dtype=np.float64) for row, start, stop in places])
            characters = np.array([choice.num_characters for choice in question.choices])
            right += int(costs.argmin()) == question.answer
            right_for_each += int((costs / characters).argmin()) == question.answer
            cost, count = cost + float(costs[question.answer]), count + 1
            tokens += places[question.answer].stop - places[question.answer].start
        return {
            "loss": cost / tokens,
            "accuracy": right / count,
            "accuracyNorm": right_for_each / count,
            "tokens": float(tokens),
            "questions": float(count),
        }
