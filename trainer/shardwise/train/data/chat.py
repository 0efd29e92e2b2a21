"""Conversations as tokens: a template writes each message, and the tokens of the assistant's answers are marked.

Messages are encoded apart from the template's own words, as they are when a model is asked: no token spans the two, and
a marker that is written out in a message is plain text.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from shardwise.protocol.errors import DataError
from shardwise.train.data.tokenizer import TokenArray, Tokenizer

ROLES = ("system", "user", "assistant")
ANSWER = "assistant"
MARK = np.uint32(1 << 31)
"""The bit that marks a token as a target that counts; as a signed number it is below 0."""
REJECTED = np.uint32(1 << 30)
"""The bit of the tokens of a rejected answer and of what it answers; no vocabulary is so large."""
PROMPT, CHOSEN, REJECTED_ANSWER = "prompt", "chosen", "rejected"
"""The keys of a pair of answers (`shardwise.train.data.pairs`)."""
_SIDES = {CHOSEN: np.uint32(0), REJECTED_ANSWER: REJECTED}
MARKED_DTYPE = np.dtype("<u4")

_EXPECTED = "expected a JSON object with messages, a list of objects with role and content"


class Part(NamedTuple):
    """A text of a conversation, or a marker: one token, where the tokenizer has such."""

    text: str
    is_marker: bool
    counts: bool


class Message(NamedTuple):
    """One message of a conversation."""

    role: str
    content: str


def _chatml(message: Message) -> Iterator[Part]:
    is_answer = message.role == ANSWER
    yield Part("<|im_start|>", True, False)
    yield Part(f"{message.role}\n", False, False)
    yield Part(message.content, False, is_answer)
    yield Part("<|im_end|>", True, is_answer)
    yield Part("\n", False, False)


def _llama3(message: Message) -> Iterator[Part]:
    is_answer = message.role == ANSWER
    yield Part("<|start_header_id|>", True, False)
    yield Part(message.role, False, False)
    yield Part("<|end_header_id|>", True, False)
    yield Part("\n\n", False, False)
    yield Part(message.content.strip(), False, is_answer)
    yield Part("<|eot_id|>", True, is_answer)


TEMPLATES: Mapping[str, Callable[[Message], Iterator[Part]]] = {"chatml": _chatml, "llama3": _llama3}


class ChatTokenizer:
    """A tokenizer of conversations and pairs, each what `conversation_of`, `pair_of` or `labelled_of` makes of a line.

    The tokens of answers, and of the marker that ends each, have MARK; the token that ends the document has not. A pair
    is the conversation with the chosen answer, a token that ends it, and the one with the rejected answer, whose tokens
    have REJECTED too. Of a pair only what differs is an answer. An answer with a label is one side of a pair, whole.
    """

    def __init__(self, tokenizer: Tokenizer, template: str) -> None:
        """Raise DataError if the tokenizer lacks a marker of the template."""
        self._tokenizer, self._parts = tokenizer, TEMPLATES[template]
        markers = [part.text for part in self._parts(Message(ANSWER, "")) if part.is_marker]
        self._markers = {marker: tokenizer.marker(marker).astype(np.uint32) for marker in markers}
        begin = tokenizer.begin_of_text
        self._begin = np.array([] if begin is None else [begin], np.uint32)
        self.vocab_size, self.begin_of_text, self.end_of_text = tokenizer.vocab_size, begin, tokenizer.end_of_text
        self.end_token = tokenizer.end_token
        self.stored_dtype = MARKED_DTYPE
        self.fingerprint = f"{tokenizer.fingerprint}-{template}"

    @property
    def text_vocab_size(self) -> int:
        """Count the markers too."""
        return max(self._tokenizer.text_vocab_size, *(int(max(ids)) + 1 for ids in self._markers.values()))

    def split(self, parts: Iterable[bytes], where: str) -> Iterator[bytes]:  # noqa: ARG002
        """Return a conversation in one piece."""
        return iter((b"".join(parts),))

    def encode_batch(self, pieces: Sequence[bytes]) -> list[TokenArray]:
        """Return the tokens of each conversation or pair, uint32 with marks [token]."""
        contents = [json.loads(piece) for piece in pieces]
        encoded = iter(self._encoded([side for content in contents for side in self._sides(content)]))
        end = np.array([self.end_of_text], np.uint32)
        return [self._joined(content, encoded, end) for content in contents]

    def asked(self, messages: Iterable[Message]) -> list[int]:
        """Return the tokens that a model is given to answer these messages: theirs, and what every answer begins with.

        They are those that training has put before the tokens of an answer, without marks.
        """
        header = takewhile(lambda part: not part.counts, self._parts(Message(ANSWER, "")))
        [tokens] = self._encoded([[*self._rendered(messages), *header]])
        return [int(token) for token in tokens & ~MARK]

    @property
    def end_of_answer(self) -> str:
        """The marker that ends an answer."""
        return next(part.text for part in self._parts(Message(ANSWER, "")) if part.is_marker and part.counts)

    def _encoded(self, rendered: Sequence[Sequence[Part]]) -> list[TokenArray]:
        texts = [part.text.encode() for parts in rendered for part in parts if not part.is_marker]
        encoded = iter(self._tokenizer.encode_batch(texts))
        return [
            np.concatenate([self._begin, *(self._tokens(part, encoded) for part in parts)], dtype=np.uint32)
            for parts in rendered
        ]

    def encode(self, text: str) -> TokenArray:
        """Return the tokens of a text that is no conversation."""
        return self._tokenizer.encode(text)

    def prompt(self, text: str) -> list[int]:
        """Return the tokens that a model is given to go on from."""
        return self._tokenizer.prompt(text)

    def marker(self, name: str) -> TokenArray:
        """Return the tokens of a marker."""
        return self._tokenizer.marker(name)

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens without marks."""
        return self._tokenizer.decode(tokens)

    def _rendered(self, messages: Iterable[Message]) -> list[Part]:
        return [part for message in messages for part in self._parts(message)]

    def _sides(self, content: Any) -> Iterator[list[Part]]:
        """Yield a conversation, or both of a pair: of what comes before their answers nothing counts."""
        if not isinstance(content, dict):
            yield self._rendered(Message(*each) for each in content)
            return
        prompt = [part._replace(counts=False) for part in self._rendered(Message(*each) for each in content[PROMPT])]
        for side in _SIDES:
            if side in content:
                yield [*prompt, *self._rendered(Message(*each) for each in content[side])]

    @staticmethod
    def _joined(content: Any, encoded: Iterator[TokenArray], end: TokenArray) -> TokenArray:
        """Return the tokens of a conversation, of both sides of a pair, or of the one side that is there."""
        if not isinstance(content, dict):
            return next(encoded)
        sides = [next(encoded) | mark for side, mark in _SIDES.items() if side in content]
        return np.concatenate([sides[0], *(part for side in sides[1:] for part in (end, side))])

    def _tokens(self, part: Part, encoded: Iterator[TokenArray]) -> TokenArray:
        tokens = self._markers[part.text] if part.is_marker else next(encoded).astype(np.uint32)
        return tokens | MARK if part.counts else tokens


def conversation_of(value: Any, where: str) -> bytes:
    """Return the conversation in a line's object as JSON: [[role, content], ...]. Raise DataError if it holds none."""
    found = messages_of(value, where)
    if all(message.role != ANSWER for message in found):
        raise DataError(
            f"{where}: no message has the role {ANSWER!r}, so there is no answer to learn; take the line out"
        )
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()


def messages_of(value: Any, where: str) -> list[Message]:
    """Return the messages in a line's object. Raise DataError if it holds none."""
    messages = value.get("messages") if isinstance(value, dict) else None
    if not isinstance(messages, list) or not messages:
        raise DataError(f"{where}: no list of messages; {_EXPECTED}. Take chatTemplate out for plain text.")
    found = []
    for number, message in enumerate(messages):
        role, content = (message.get(key) if isinstance(message, dict) else None for key in ("role", "content"))
        if role not in ROLES or not isinstance(content, str):
            given = f"role {role!r} and content of type {type(content).__name__}"
            raise DataError(
                f"{where}: message {number} has {given}; expected a role of {', '.join(ROLES)}, and text as content"
            )
        try:
            content.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"{where}: half a surrogate pair in the messages; {_EXPECTED} in UTF-8.") from error
        found.append(Message(role, content))
    return found
