"""Prompts that a model completes itself: a line's object as the numbers that the cache of tokens keeps of it.

    [tokens of the prompt, the prompt's tokens, the bytes of the line's object as JSON]

So what a reward needs of the line goes the way of the prompt: through mixtures, stores and the order of the seed.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwise.protocol.errors import DataError
from shardwise.train.data.chat import ANSWER, MARKED_DTYPE, PROMPT, ChatTokenizer, Message, messages_of
from shardwise.train.data.cuts import AtEnds, Documents
from shardwise.train.data.tokenizer import TokenArray, Tokenizer

_VERSION = 1
_EXPECTED = f"expected a JSON object with {PROMPT}, a text, and whatever its reward needs"
_EXPECTED_CHAT = f"expected a JSON object with {PROMPT}, a text or a list of objects with role and content"


class Prompt(NamedTuple):
    """A prompt's tokens, and the whole line that it is from."""

    tokens: list[int]
    line: dict[str, Any]


def text_prompt_of(value: Any, where: str) -> bytes:
    """Return a line's object with a text to go on from, as JSON. Raise DataError if it holds none."""
    prompt = value.get(PROMPT) if isinstance(value, dict) else None
    if not isinstance(prompt, str):
        hint = " Set chatTemplate for messages." if isinstance(prompt, list) else ""
        raise DataError(f"{where}: no text in {PROMPT}; {_EXPECTED}.{hint}")
    return _as_json(value, where)


def chat_prompt_of(value: Any, where: str) -> bytes:
    """Return a line's object with messages to answer, or the text of one, as JSON. Raise DataError if it holds none."""
    prompt = value.get(PROMPT) if isinstance(value, dict) else None
    if not isinstance(prompt, (str, list)):
        raise DataError(f"{where}: no {PROMPT}; {_EXPECTED_CHAT}.")
    messages = _messages(prompt, where)
    if messages[-1].role == ANSWER:
        raise DataError(
            f"{where}: {PROMPT} ends with a message of role {ANSWER!r}; expected one that is to be answered"
        )
    return _as_json(value, where)


def _messages(prompt: Any, where: str) -> list[Message]:
    return [Message("user", prompt)] if isinstance(prompt, str) else messages_of({"messages": prompt}, where)


def _as_json(value: Any, where: str) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: half a surrogate pair in a text; {_EXPECTED}, in UTF-8.") from error


class PromptEncoding:
    """Encodes prompts, each the content that `text_prompt_of` or `chat_prompt_of` makes of a line."""

    end_of_text = 0
    stored_dtype = MARKED_DTYPE

    def __init__(self, tokenizer: Tokenizer) -> None:
        """`tokenizer` is the job's, or that of a chat template, in which the completion answers the messages."""
        self._tokenizer = tokenizer
        self.fingerprint = f"{tokenizer.fingerprint}-prompts-{_VERSION}"

    def split(self, parts: Iterable[bytes], where: str) -> Iterator[bytes]:  # noqa: ARG002
        """Return a prompt in one piece."""
        return iter((b"".join(parts),))

    def encode_batch(self, pieces: Sequence[bytes]) -> list[TokenArray]:
        """Return the numbers of each prompt, uint32."""
        return [self._record(piece) for piece in pieces]

    def _record(self, piece: bytes) -> TokenArray:
        tokens = self._asked(json.loads(piece)[PROMPT])
        return np.concatenate([[len(tokens)], tokens, np.frombuffer(piece, np.uint8)]).astype(MARKED_DTYPE)

    def _asked(self, prompt: Any) -> list[int]:
        if isinstance(self._tokenizer, ChatTokenizer):
            return self._tokenizer.asked(_messages(prompt, PROMPT))
        return self._tokenizer.prompt(prompt)


class EachPrompt(AtEnds):
    """A prompt is a sequence: its tokens alone, none of which is a target. One that is too long is left out."""

    def __init__(self, stream: Documents, seq_len: int) -> None:
        ends = stream.ends_within(0, stream.num_tokens + 1).tolist()
        bounds, self._stops = [], []
        for start, stop in zip([0, *ends], ends, strict=False):
            size = int(stream.read(start, start + 1)[0])
            if size <= seq_len:
                bounds.append((start + 1, start + 1 + size))
                self._stops.append(stop)
        super().__init__(bounds, len(ends) - len(bounds))

    def read(self, stream: Documents, number: int) -> Prompt:
        """Return one prompt and its line."""
        start, stop = self._bounds[number].tolist()
        numbers: NDArray[np.int32] = stream.read(start, self._stops[number] - 1)  # the last one ends the document
        line = json.loads(numbers[stop - start :].astype(np.uint8).tobytes())
        return Prompt(numbers[: stop - start].tolist(), line)
