"""Texts over HTTP: completions and answers, whole and as a stream, are what the model makes by itself."""

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from tests.cli.server.small import Server, Small

from shardwise.cli.asked import by_user
from shardwise.cli.server.requests import ChatRequest, RefusedError, read
from shardwise.train.data.chat import Message

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
WILD: Mapping[str, Any] = {"temperature": 1.5, "top_p": 0.9, "top_k": 50, "seed": 11}


def texts_of(answer: dict[str, Any]) -> list[str]:
    """Return the texts of an answer, whose choices are in their order."""
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))
    return [choice["message"]["content"] if "message" in choice else choice["text"] for choice in answer["choices"]]


def joined(events: list[dict[str, Any]]) -> dict[int, tuple[str, str]]:
    """Return each text of a stream and why it is over, which its last part says."""
    parts: dict[int, list[tuple[str, str | None]]] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        text = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
        parts.setdefault(choice["index"], []).append((text, choice["finish_reason"]))
    assert all(finish is None for some in parts.values() for _, finish in some[:-1])
    return {index: ("".join(text for text, _ in some), str(some[-1][1])) for index, some in parts.items()}


def test_a_completion(server: Server, small: Small) -> None:
    """It is what the model makes of the prompt, with how many tokens there were."""
    answer = server.complete(model="small", prompt="hi", max_tokens=40, **WILD)
    assert texts_of(answer) == small.texts([*b"hi"], num_tokens=40, **WILD)
    assert (answer["object"], answer["model"]) == ("text_completion", "small")
    assert answer["id"].startswith("cmpl-")
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length"]
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 40, "total_tokens": 42}


def test_what_is_not_given_has_a_value(server: Server, small: Small) -> None:
    """Without a prompt a document begins, without a number there are sixteen tokens, and the temperature is 1."""
    answer = server.complete(seed=5)
    assert texts_of(answer) == small.texts([256], num_tokens=16, temperature=1.0, seed=5)
    assert answer["usage"]["completion_tokens"] == 16


def test_several_texts_of_a_prompt(server: Server, small: Small) -> None:
    """Each is drawn apart, and the prompt counts once; more of them than rows are made."""
    answer = server.complete(prompt="hi", n=6, max_tokens=20, **WILD)
    assert texts_of(answer) == small.texts([*b"hi"], 6, num_tokens=20, **WILD)
    assert len(set(texts_of(answer))) == 6
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 120, "total_tokens": 122}


def test_several_prompts(server: Server, small: Small) -> None:
    """The texts of each are together, in the order of the prompts, and each prompt counts."""
    answer = server.complete(prompt=["hi", "there"], n=2, max_tokens=20, temperature=0)
    hi, there = (small.texts([*prompt], num_tokens=20, temperature=0) for prompt in (b"hi", b"there"))
    assert texts_of(answer) == [*hi, *hi, *there, *there]
    assert answer["usage"] == {"prompt_tokens": 7, "completion_tokens": 80, "total_tokens": 87}


def test_settings_at_their_limits(server: Server, small: Small) -> None:
    """The hottest draws from all tokens, and the least part of them is the likeliest; no number is too large."""
    [likeliest] = small.texts([*b"hi"], num_tokens=20, temperature=0)
    for limits in ({"top_p": 1e-300}, {"temperature": 1e-300, "top_k": 10**30}):
        assert texts_of(server.complete(prompt="hi", max_tokens=20, **limits)) == [likeliest]
    hottest = texts_of(server.complete(prompt="hi", n=2, max_tokens=40, temperature=1e300, top_p=1, seed=2**64 - 1))
    assert len(set(hottest)) == 2


@pytest.mark.parametrize("prompt", [[104, 105], [[104, 105]], ["hi"], "hi"])
def test_a_prompt_of_tokens(prompt: Any, server: Server, small: Small) -> None:
    """Tokens are taken as they are: a text and its tokens give the same."""
    answer = server.complete(prompt=prompt, max_tokens=20, temperature=0)
    assert texts_of(answer) == small.texts([104, 105], num_tokens=20, temperature=0)


def test_a_prompt_that_is_longer_than_the_window(server: Server, small: Small) -> None:
    """The model sees its end; all of it counts."""
    answer = server.complete(prompt="a" * 90 + "b" * 60, max_tokens=20, temperature=0)
    assert texts_of(answer) == small.texts([*b"a" * 4, *b"b" * 60], num_tokens=20, temperature=0)
    assert answer["usage"]["prompt_tokens"] == 150


def test_a_text_is_the_same_beside_others(server: Server, small: Small) -> None:
    """The same seed gives the same text whoever else asks, and another seed another."""
    wished: list[dict[str, Any]] = [
        {**WILD, "seed": number % 4, "max_tokens": 25 + 9 * (number // 4)} for number in range(12)
    ]
    with ThreadPoolExecutor(len(wished)) as pool:
        answers = list(pool.map(lambda wish: server.complete(prompt="hi", **wish), wished))
    alone = [
        small.texts([*b"hi"], num_tokens=wish["max_tokens"], **{key: wish[key] for key in WILD}) for wish in wished
    ]
    assert [texts_of(answer) for answer in answers] == alone
    assert len({text for [text] in alone}) == 12


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_text(stream: bool, server: Server, small: Small) -> None:  # noqa: FBT001
    """The text ends before it, and says so; what was made behind it does not count."""
    [text] = small.texts([*b"hi"], num_tokens=60, temperature=0)
    stop = re.findall("[ -~]{2}", text[10:])[0]
    asked: dict[str, Any] = {"prompt": "hi", "max_tokens": 60, "temperature": 0, "stop": ["never", stop]}
    answer = server.stream(COMPLETIONS, **asked) if stream else [server.complete(**asked)]
    assert joined(answer) == {0: (text[: text.index(stop)], "stop")}
    usage = server.complete(**asked)["usage"]["completion_tokens"]
    assert len(text[: text.index(stop)]) < usage < 60


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_stream_is_the_whole_in_parts(path: str, server: Server) -> None:
    """Its parts together are the texts of the answer, with the same ends; they come block by block."""
    what = {"prompt": ["hi", "there"]} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "hi"}]}
    asked: dict[str, Any] = {**what, "n": 3, "max_tokens": 70, **WILD}
    whole, events = server.post(path, **asked).json(), server.stream(path, **asked)
    assert joined(events) == {
        choice["index"]: (text, choice["finish_reason"])
        for choice, text in zip(whole["choices"], texts_of(whole), strict=True)
    }
    assert len(events) > 4 * len(whole["choices"])
    kind = "text_completion" if path == COMPLETIONS else "chat.completion.chunk"
    heads = {(event["id"], event["object"], event["created"], event["model"]) for event in events}
    assert [(each[1], each[3]) for each in heads] == [(kind, "small")]
    assert not any("usage" in event for event in events)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_stream_with_usage(path: str, server: Server) -> None:
    """Where it is asked for, the last event has it and no text; in those before it is null."""
    what = {"prompt": "hi"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "hi"}]}
    asked: dict[str, Any] = {**what, "n": 2, "max_tokens": 20, "temperature": 0}
    events = server.stream(path, **asked, stream_options={"include_usage": True})
    last = events.pop()
    assert last["choices"] == []
    assert last["usage"] == server.post(path, **asked).json()["usage"]
    assert last["usage"]["completion_tokens"] == 40
    assert all(event["usage"] is None and event["choices"] for event in events)
    without = server.stream(path, **asked, stream_options={"include_usage": False})
    assert all("usage" not in event and event["choices"] for event in without)


def test_an_answer(server: Server, small: Small) -> None:
    """The model is asked in the words of the template, and its text is the assistant's message."""
    assert small.model.chat is not None
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    asked = small.model.chat.asked([Message("system", "be brief"), Message("user", "hi")])
    answer = server.post(CHAT, messages=messages, max_tokens=30, **WILD).json()
    assert texts_of(answer) == small.texts(asked, num_tokens=30, **WILD)
    assert (answer["object"], answer["choices"][0]["message"]["role"]) == ("chat.completion", "assistant")
    assert answer["usage"] == {"prompt_tokens": len(asked), "completion_tokens": 30, "total_tokens": len(asked) + 30}


def test_how_long_an_answer_is(server: Server) -> None:
    """As long as is asked for, by either name, of which the newer counts; else as long as the model's window."""
    message: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0}
    for limits, count in (
        ({}, 64),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 7}, 7),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7),
    ):
        assert server.post(CHAT, **message, **limits).json()["usage"]["completion_tokens"] == count


def test_the_first_part_of_an_answer_says_whose_it_is(server: Server) -> None:
    """Of each text; later parts have new text alone, and the last one no empty text."""
    events = server.stream(CHAT, messages=[{"role": "user", "content": "hi"}], n=2, max_tokens=64, temperature=0)
    for index in (0, 1):
        deltas = [choice["delta"] for event in events for choice in event["choices"] if choice["index"] == index]
        assert (deltas[0]["role"], deltas[0]["content"] != "") == ("assistant", True)
        assert all(list(delta) in (["content"], []) for delta in deltas[1:])
        assert all(delta.get("content") != "" for delta in deltas)


def test_a_message_of_parts(server: Server, small: Small) -> None:
    """Parts that are text are one text; others are refused, since the model has seen none."""
    assert small.model.chat is not None
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    answer = server.post(CHAT, messages=[{"role": "user", "content": parts}], max_tokens=9, temperature=0).json()
    asked = small.model.chat.asked(by_user("hi"))
    assert texts_of(answer) == small.texts(asked, num_tokens=9, temperature=0)
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    for content in ([*parts, image], [{"type": "text"}], [{"type": "text", "text": 3}], ["hi"], 3, None):
        response = server.post(CHAT, messages=[{"role": "user", "content": content}])
        assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")
        assert "text as content" in response.json()["error"]["message"]


def test_a_message_of_the_developer(server: Server) -> None:
    """It is the system's, by the name that newer clients give it."""
    texts = [
        texts_of(server.post(CHAT, messages=[{"role": role, "content": "hi"}], max_tokens=9, seed=3).json())
        for role in ("developer", "system", "user")
    ]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("messages", [[], [3], [{"role": "tool", "content": "a"}], [{"content": "a"}]])
def test_messages_that_are_none(messages: list[Any], server: Server) -> None:
    """No message, and what is no message of a known role, are refused."""
    response = server.post(CHAT, messages=messages)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")
    assert "chatTemplate" not in response.json()["error"]["message"], "that is a field of job files"


def test_a_model_without_conversations(small: Small) -> None:
    """It answers none, and says where it can be asked and what would change that."""
    model, request = replace(small.model, chat=None), read(ChatRequest, b'{"messages": [{}]}')
    with pytest.raises(RefusedError, match="ask /v1/completions, or serve with --chat-template") as refused:
        model.texts(request, lambda _: None)
    assert refused.value.status == 400
