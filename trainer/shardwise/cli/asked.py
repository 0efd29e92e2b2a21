"""What a model is asked: texts that it goes on with, or conversations that it answers, as tokens.

Reads files of conversations. Imports the tokenizers, and so is imported when the command has said what it does.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shardwise.cli.prompts import lines_of
from shardwise.job.spec import TrainingJob
from shardwise.protocol.errors import DataError, UsageError
from shardwise.train.data.chat import TEMPLATES, ChatTokenizer, Message, messages_of
from shardwise.train.data.tokenizer import Tokenizer

_HINT = f"expected one of {', '.join(TEMPLATES)}"


class Asked(NamedTuple):
    """One text in the making."""

    tokens: list[int]
    """What the model goes on from."""
    text: str
    """Text that is written before the generated text."""
    line: Mapping[str, Any]
    """What its line of JSON begins with."""
    before: Sequence[int] = ()
    """The tokens that the generated text goes on from; none before an answer, which is a text of its own."""


class Task(NamedTuple):
    """All that is asked, and what ends each text: a token, or one of the stop texts or of the other tokens."""

    asked: Sequence[Asked]
    end: int
    stops: Sequence[str]
    ends: frozenset[int] = frozenset()
    """Special tokens that were given as stop texts; they have no text."""


def to_go_on(tokenizer: Tokenizer, texts: Iterable[str], stops: Sequence[str]) -> Task:
    """Return the task of going on with texts, up to the end of the document."""
    asked = [Asked(tokens, text, {"prompt": text}, tokens) for text in texts for tokens in [tokenizer.prompt(text)]]
    return Task(asked, tokenizer.end_of_text, *_apart(tokenizer, stops))


def to_answer(tokenizer: ChatTokenizer, conversations: Iterable[Sequence[Message]], stops: Sequence[str]) -> Task:
    """Return the task of answering conversations, up to the marker that ends an answer."""
    asked = [
        Asked(tokenizer.asked(messages), "", {"messages": [message._asdict() for message in messages]})
        for messages in conversations
    ]
    marker = tokenizer.marker(tokenizer.end_of_answer)
    if len(marker) == 1:
        return Task(asked, int(marker[0]), *_apart(tokenizer, stops))
    return Task(asked, tokenizer.end_of_text, [*stops, tokenizer.end_of_answer])  # bytes, of which none is a marker


def _apart(tokenizer: Tokenizer | ChatTokenizer, stops: Sequence[str]) -> tuple[list[str], frozenset[int]]:
    """Return the stop texts that a text can have, and the special tokens that the others name."""
    special = {stop: token for stop in stops if (token := _special(tokenizer, stop)) is not None}
    return [stop for stop in stops if stop not in special], frozenset(special.values())


def _special(tokenizer: Tokenizer | ChatTokenizer, name: str) -> int | None:
    """Return the special token of this name, if there is one."""
    try:
        tokens = tokenizer.marker(name).tolist()
    except DataError:
        return None
    # What is no special token has a text, though a decoder may take the space off the first one.
    return int(tokens[0]) if len(tokens) == 1 and not tokenizer.decode(tokens * 2) else None


def chat_tokenizer(job: TrainingJob, tokenizer: Tokenizer, given: str | None) -> ChatTokenizer:
    """Return the tokenizer of conversations in the given template, or in the one that the job was trained with.

    Raises:
        UsageError: there is no such template, or the job has none or several.
        DataError: the tokenizer lacks a marker of the template.

    """
    if given is not None and given not in TEMPLATES:
        raise UsageError(f"--chat-template: given {given!r}, {_HINT}")
    found = {source.chat_template for source in job.spec.training.data.train if source.chat_template}
    if given is None and len(found) != 1:
        has = f"several: {', '.join(sorted(found))}" if found else "none"
        raise UsageError(f"the run's job has {has} in its chatTemplates; add --chat-template, {_HINT}")
    return ChatTokenizer(tokenizer, given or found.pop())


def read_conversations(path: Path) -> list[list[Message]]:
    """Return the conversations of a .jsonl file, of objects with messages; a line of any other file is a user's.

    Raises:
        UsageError: the file cannot be read, is no UTF-8, is empty, or a line holds no messages.

    """
    lines = lines_of(path)
    if path.suffix != ".jsonl":
        return [by_user(line) for line in lines]
    return [_conversation(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def by_user(text: str) -> list[Message]:
    """Return a conversation of one message."""
    return [Message("user", text)]


def _conversation(path: Path, number: int, line: str) -> list[Message]:
    try:
        return messages_of(json.loads(line), f"--prompts: {path}, line {number}")
    except (ValueError, RecursionError) as error:
        expected = '{"messages": [{"role": "user", "content": "TEXT"}]}'
        raise UsageError(f"--prompts: {path}, line {number} is no JSON; expected {expected}") from error
    except DataError as error:
        raise UsageError(str(error)) from error
