"""Preferences: two answers to the same messages, one that was chosen and one that was rejected, of a line's object.

Given as `trl` and most published sets have them: `chosen` and `rejected` are texts or lists of messages, after those of
`prompt`, or with them at their beginning. An answer by itself is `completion`, likewise, with a `label`, true for a
good one: half a pair.
"""

import json
from typing import Any

from shardwise.protocol.errors import DataError
from shardwise.train.data.chat import ANSWER, CHOSEN, PROMPT, REJECTED_ANSWER, Message, messages_of

_EXPECTED = (
    f"expected a JSON object with {CHOSEN} and {REJECTED_ANSWER}, each a text or a list of objects with role and "
    f"content, and {PROMPT}, the same"
)
_COMPLETION, _LABEL = "completion", "label"
_EXPECTED_LABEL = (
    f"expected a JSON object with {PROMPT} and {_COMPLETION}, each a text or a list of objects with role and content, "
    f"and {_LABEL}, true for a good answer. Take labels out for others."
)


def pair_of(value: Any, where: str) -> bytes:
    """Return the pair in a line's object as JSON: the messages before both answers, and those of each.

    Raise DataError if it holds none.
    """
    if not isinstance(value, dict) or not {CHOSEN, REJECTED_ANSWER} <= value.keys():
        raise DataError(f"{where}: no {CHOSEN} and {REJECTED_ANSWER}; {_EXPECTED}. Take preferences out for others.")
    prompt = _messages(value.get(PROMPT) or [], PROMPT, "user", where)
    chosen, rejected = (
        _after(prompt, _messages(value[key], key, ANSWER, where), key, where) for key in (CHOSEN, REJECTED_ANSWER)
    )
    # What both begin with is no part of either answer: nothing is learned of it.
    same = _num_same(chosen, rejected)
    pair = {PROMPT: chosen[:same], CHOSEN: chosen[same:], REJECTED_ANSWER: rejected[same:]}
    return json.dumps(pair, ensure_ascii=False, separators=(",", ":")).encode()


def labelled_of(value: Any, where: str) -> bytes:
    """Return the answer in a line's object as JSON: the messages before it, and its own by what it is of a pair.

    The answer is what the assistant says last. Raise DataError if it holds none.
    """
    if not isinstance(value, dict) or not isinstance(value.get(_LABEL), bool) or _COMPLETION not in value:
        raise DataError(f"{where}: no {_COMPLETION}, or no true or false as {_LABEL}; {_EXPECTED_LABEL}")
    prompt = _messages(value.get(PROMPT) or [], PROMPT, "user", where)
    whole = _after(prompt, _messages(value[_COMPLETION], _COMPLETION, ANSWER, where), _COMPLETION, where)
    asked = 1 + max(number for number, each in enumerate(whole) if each.role != ANSWER)
    answer = {CHOSEN if value[_LABEL] else REJECTED_ANSWER: whole[asked:]}
    return json.dumps({PROMPT: whole[:asked], **answer}, ensure_ascii=False, separators=(",", ":")).encode()


def _messages(given: Any, key: str, role: str, where: str) -> list[Message]:
    """Return messages, or the one that a text is."""
    if isinstance(given, str):
        given = [{"role": role, "content": given}]
    if given == [] and key == PROMPT:
        return []
    if not isinstance(given, list) or not given:
        raise DataError(f"{where}: {key} is of type {type(given).__name__}, or empty; {_EXPECTED}")
    return messages_of({"messages": given}, f"{where}, {key}")


def _after(prompt: list[Message], messages: list[Message], key: str, where: str) -> list[Message]:
    """Return the whole conversation that ends in an answer; in many sets it repeats its prompt."""
    if messages[-1].role != ANSWER:
        raise DataError(f"{where}: {key} ends with a message of role {messages[-1].role!r}; expected {ANSWER!r}")
    whole = messages if _repeats(prompt, messages) else [*prompt, *messages]
    if whole is not messages and not _follows(prompt[-1].role, messages[0].role):
        raise DataError(
            f"{where}: {key} begins with a message of role {messages[0].role!r} that neither repeats {PROMPT} nor "
            f"follows its last one, of role {prompt[-1].role!r}; give {PROMPT} as {key} begins, or take it out"
        )
    if whole[0].role == ANSWER:
        raise DataError(f"{where}: {key} answers nothing; expected {PROMPT}, or messages before the answer")
    return whole


def _repeats(prompt: list[Message], messages: list[Message]) -> bool:
    """Return whether messages begin with those of the prompt, be it after messages of the system."""
    said = [(each.role, each.content.strip()) for each in messages]
    asked = [(each.role, each.content.strip()) for each in prompt]
    first = next((i for i, (role, _) in enumerate(said) if role != "system"), 0)
    return asked in (said[: len(asked)], said[first : first + len(asked)])


def _follows(last: str, role: str) -> bool:
    """Return whether a message of this role goes on after the last one of a prompt."""
    return role == ANSWER or (role == "user" and last != "user")


def _num_same(one: list[Message], other: list[Message]) -> int:
    """Count the messages that both begin with, but for the last of each."""
    most = min(len(one), len(other)) - 1
    return next((i for i in range(most) if one[i] != other[i]), most)
