"""Questions with choices as the numbers that the cache of tokens keeps of them, one document for each.

    [answer, choices, (tokens, first token of the choice, characters) of each choice, the tokens of all choices]

A question of which some choice is longer than a sequence has no choices there. A question and a choice are encoded as
one text, and what is too long loses its beginning, as lm-evaluation-harness has it (Gao et al., 2024).
"""

import json
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from shardwise.train.data.chat import MARKED_DTYPE, ChatTokenizer, Message
from shardwise.train.data.questions import Choice, Question
from shardwise.train.data.tokenizer import TokenArray, Tokenizer

_VERSION = 1


class QuestionEncoding:
    """Encodes questions for sequences of so many tokens, each the content that `question_of` makes of a line."""

    end_of_text = 0
    stored_dtype = MARKED_DTYPE

    def __init__(self, tokenizer: Tokenizer, seq_len: int) -> None:
        """`tokenizer` is the job's, or that of a chat template, in which a choice is the answer to a message."""
        self._tokenizer, self._room = tokenizer, seq_len + 1
        self.fingerprint = f"{tokenizer.fingerprint}-questions-{_VERSION}-{seq_len}"

    def split(self, parts: Iterable[bytes], where: str) -> Iterator[bytes]:  # noqa: ARG002
        """Return a question in one piece."""
        return iter((b"".join(parts),))

    def encode_batch(self, pieces: Sequence[bytes]) -> list[TokenArray]:
        """Return the numbers of each question, uint32."""
        return [self._record(*json.loads(piece)) for piece in pieces]

    def _record(self, prompt: str, texts: list[str], answer: int) -> TokenArray:
        asked = self._asked(prompt)
        choices = [self._choice(asked, prompt, text) for text in texts]
        if any(choice.first < 1 for choice in choices):
            return np.array([answer, 0], MARKED_DTYPE)
        numbers = [answer, len(choices)]
        for choice in choices:
            numbers += [len(choice.tokens), choice.first, choice.num_characters]
        return np.concatenate([numbers, *(choice.tokens for choice in choices)]).astype(MARKED_DTYPE)

    def _asked(self, prompt: str) -> list[int]:
        if isinstance(self._tokenizer, ChatTokenizer):
            return self._tokenizer.asked([Message("user", prompt)])
        return self._tokenizer.prompt(prompt)

    def _choice(self, asked: list[int], prompt: str, text: str) -> Choice:
        """Return a choice with as much of its question as fits; its first token is below 1 if it alone does not."""
        if isinstance(self._tokenizer, ChatTokenizer):
            tokens, first = [*asked, *self._tokenizer.encode(text).tolist()], len(asked)
        else:
            tokens, first = self._of_text(asked, prompt, text)
        over = max(0, len(tokens) - self._room)
        return Choice(np.array(tokens[over:], np.int32), first - over, len(text.strip()))

    def _of_text(self, asked: list[int], prompt: str, text: str) -> tuple[list[int], int]:
        """Encode both as one text: from where that differs from the question alone, it is the choice."""
        whole = self._tokenizer.prompt(prompt + text)
        differs = (i for i, (one, other) in enumerate(zip(asked, whole, strict=False)) if one != other)
        first = next(differs, min(len(asked), len(whole) - 1))
        return (whole, first) if first else ([self._tokenizer.end_of_text, *whole], 1)


def questions_in(numbers: NDArray[np.int32]) -> tuple[list[Question], int]:
    """Return the questions in these documents, each before the token that ends it, and how many have no choices."""
    questions, num_left_out, at = [], 0, 0
    while at < len(numbers):
        answer, count = numbers[at : at + 2].tolist()
        table = numbers[at + 2 : at + 2 + 3 * count].reshape(count, 3).tolist()
        at += 2 + 3 * count
        choices = []
        for size, first, num_characters in table:
            choices.append(Choice(numbers[at : at + size], first, num_characters))
            at += size
        at += 1
        if choices:
            questions.append(Question(choices=tuple(choices), answer=answer))
        else:
            num_left_out += 1
    return questions, num_left_out
