"""What is asked over HTTP: what is taken, and how all else is refused."""

import json
from typing import Any

import pytest
from tests.cli.server.small import Small

from shardwise.cli.server.requests import ChatRequest, CompletionRequest, RefusedError, Request, read
from shardwise.cli.server.texts import Text

HALF = "half a surrogate pair"
NO_JSON = "the body is no JSON"
DIGITS = "9" * 80


def completion(**fields: Any) -> CompletionRequest:
    """Return the request of a body with these fields."""
    return read(CompletionRequest, json.dumps(fields).encode())


def texts(small: Small, body: bytes) -> list[Text]:
    """Return the texts that a body asks the model for."""
    return small.model.texts(read(CompletionRequest, body), lambda _: None)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", NO_JSON),
        (b"prompt=a", NO_JSON),
        (b'{"prompt": "caf\xe9"}', NO_JSON),
        (b"[" * 100_000, NO_JSON),
        (b'{"temperature": ' + b"9" * 5_000 + b"}", NO_JSON),
        (b"[]", "the body is a list, expected an object"),
        (b"3", "the body is a int, expected an object"),
        (b"null", "the body is a NoneType, expected an object"),
        (rb'{"prompt": "a\ud800"}', HALF),
        (b'{"prompt": "\xed\xa0\x80"}', HALF),
        (rb'{"\udfff": 1}', HALF),
    ],
)
def test_a_body_that_is_no_object(body: bytes, words: str) -> None:
    """It is refused as what it is; half a surrogate pair could be written in no answer."""
    with pytest.raises(RefusedError) as refused:
        read(CompletionRequest, body)
    assert (refused.value.status, refused.value.param) == (400, None)
    assert words in str(refused.value)


@pytest.mark.parametrize("key", ["prompt", "user", "logit_bias", "unknown"])
def test_a_body_of_many_levels(key: str, small: Small) -> None:
    """However deep it is, it is refused, also where an error would have to write it: nothing else comes of it."""
    for depth in (33, 100, *range(900, 1010)):
        body = f'{{"{key}": {"[" * depth}{"]" * depth}}}'.encode()
        with pytest.raises(RefusedError, match=f"nested too deep, expected at most 32 levels|{NO_JSON}"):
            texts(small, body)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": "1"}, 'max_tokens: given "1"; Input should be a valid integer'),
        ({"max_tokens": True}, "max_tokens: given true; Input should be a valid integer"),
        ({"max_tokens": 2.0}, "max_tokens: given 2.0; Input should be a valid integer"),
        ({"max_tokens": 0}, "max_tokens: given 0; Input should be greater than or equal to 1"),
        ({"max_tokens": 2**31}, f"max_tokens: given {2**31}; Input should be less than or equal to {2**31 - 1}"),
        ({"max_tokens": 10**400 - 1}, f"max_tokens: given {DIGITS} ...; Input should be less"),
        ({"n": 0}, "n: given 0; Input should be greater than or equal to 1"),
        ({"n": 129}, "n: given 129; Input should be less than or equal to 128"),
        ({"temperature": "1"}, 'temperature: given "1"; Input should be a valid number'),
        ({"temperature": False}, "temperature: given false; Input should be a valid number"),
        ({"temperature": 10**400 - 1}, f"temperature: given {DIGITS} ...; Input should be a valid number"),
        ({"top_p": [0.5]}, "top_p: given [0.5]; Input should be a valid number"),
        ({"top_k": 1.5}, "top_k: given 1.5; Input should be a valid integer"),
        ({"seed": -1}, "seed: given -1; Input should be greater than or equal to 0"),
        ({"seed": 2**64}, f"seed: given {2**64}; Input should be less than {2**64}"),
        ({"model": 3}, "model: given 3; Input should be a valid string"),
        ({"user": {}}, "user: given {}; Input should be a valid string"),
        ({"stream": "yes"}, 'stream: given "yes"; Input should be a valid boolean'),
        ({"stream_options": True}, "stream_options: given true; Input should be a valid dictionary"),
        ({"stream_options": {"x": 1}}, "stream_options.x: given 1; Extra inputs are not permitted"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage: given 1; Input should be a valid"),
        ({"stop": 5}, "stop: given 5; expected a text or a list of texts"),
        ({"stop": {"a": 1}}, 'stop: given {"a": 1}; expected a text or a list of texts'),
        ({"stop": ""}, 'stop.0: given ""; String should have at least 1 character'),
        ({"stop": ["a", ""]}, 'stop.1: given ""; String should have at least 1 character'),
        ({"stop": ["a", 3]}, "stop.1: given 3; Input should be a valid string"),
        ({"stop": ["a"] * 17}, "; List should have at most 16 items"),
        ({"stop": "a" * 1001}, "; String should have at most 1000 characters"),
        ({"unknown": 1}, "unknown: this server has no such field, expected some of echo, logprobs, max_tokens,"),
        ({"messages": []}, "messages: this server has no such field"),
        ({"max_completion_tokens": 1}, "max_completion_tokens: this server has no such field"),
        ({"echo": 1}, "echo: given 1; Input should be a valid boolean"),
        ({"logprobs": -1}, "logprobs: given -1; Input should be greater than or equal to 0"),
        ({"logprobs": True}, "logprobs: given true; Input should be a valid integer"),
        ({"logprobs": 6}, "logprobs: given 6; Input should be less than or equal to 5"),
        ({"logit_bias": 10**400 - 1}, f"logit_bias: given {DIGITS} ...; this server knows"),
        ({"top_logprobs": False}, "top_logprobs: given false; this server knows null or 0 alone"),
        ({"best_of": 2}, "best_of: given 2; this server knows null or 1 alone"),
        ({"best_of": True}, "best_of: given true; this server knows null or 1 alone"),
        ({"frequency_penalty": 0.1}, "frequency_penalty: given 0.1; this server knows null or 0 or 0.0 alone"),
        ({"presence_penalty": False}, "presence_penalty: given false; this server knows"),
        ({"logit_bias": {"50256": -100}}, 'logit_bias: given {"50256": -100}; this server knows null or {} alone'),
        ({"tools": [{"type": "function"}]}, 'tools: given [{"type": "function"}]; this server knows null or [] alone'),
        ({"tool_choice": "auto"}, 'tool_choice: given "auto"; this server knows null or "none" alone'),
        ({"response_format": {"type": "json_object"}}, 'response_format: given {"type": "json_object"}; this server'),
        ({"suffix": "é"}, 'suffix: given "é"; this server knows null or "" alone'),
        ({"store": True}, "store: given true; this server knows null or false alone"),
    ],
)
def test_a_field_that_is_refused(fields: dict[str, Any], words: str) -> None:
    """The field is named, what was given, which is cut where it is long, and what is expected."""
    with pytest.raises(RefusedError) as refused:
        completion(**fields)
    [name] = fields
    assert (refused.value.status, refused.value.param) == (400, name)
    assert words in str(refused.value)
    assert str(refused.value).startswith((f"{name}: ", f"{name}."))


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (b'{"temperature": -1}', "temperature", "temperature: given -1.0, expected 0 (the most likely token) or more"),
        (b'{"temperature": NaN}', "temperature", "temperature: given nan, expected 0"),
        (b'{"temperature": Infinity}', "temperature", "temperature: given inf, expected 0"),
        (b'{"temperature": 1e400}', "temperature", "temperature: given inf, expected 0"),
        (b'{"top_p": 0}', "top_p", "top-p: given 0.0, expected more than 0 and at most 1"),
        (b'{"top_p": NaN}', "top_p", "top-p: given nan, expected more than 0"),
        (b'{"top_p": 1.1}', "top_p", "top-p: given 1.1, expected more than 0"),
        (b'{"top_k": 0}', "top_k", "top-k: given 0, expected at least 1"),
        (b'{"prompt": []}', "prompt", "prompt: given [], expected a text, a list of tokens, or a list of such"),
        (b'{"prompt": 3}', "prompt", "prompt: given 3, expected a text"),
        (b'{"prompt": {"text": "a"}}', "prompt", 'prompt: given {"text": "a"}, expected a text'),
        (b'{"prompt": [1, "a"]}', "prompt", 'prompt: given [1, "a"], expected a text'),
        (b'{"prompt": [true]}', "prompt", "prompt: given [true], expected a text"),
        (b'{"prompt": [null]}', "prompt", "prompt: given [null], expected a text"),
        (b'{"prompt": [[]]}', "prompt", "prompt: given no token, expected at least one"),
        (b'{"prompt": [257]}', "prompt", "prompt: given token 257, expected 0 to 256"),
        (b'{"prompt": [[1], [-1]]}', "prompt", "prompt: given token -1, expected 0 to 256"),
        (b'{"prompt": [' + b"9" * 400 + b"]}", "prompt", "prompt: given token 999"),
        (b'{"prompt": ' + json.dumps(["a"] * 1025).encode() + b"}", None, "given 1025 prompts and n 1, 1025 texts"),
        (b'{"prompt": ' + json.dumps(["a"] * 9).encode() + b', "n": 128}', None, "9 prompts and n 128, 1152 texts"),
    ],
)
def test_a_setting_or_a_prompt_that_is_refused(body: bytes, param: str | None, words: str, small: Small) -> None:
    """What a model cannot do is refused by the field's name and with what it can."""
    with pytest.raises(RefusedError) as refused:
        texts(small, body)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert words in str(refused.value)


def test_another_model_is_not_found(small: Small) -> None:
    """The one that is there is named; without a name it is meant."""
    with pytest.raises(RefusedError, match="model: given 'large', expected 'small'") as refused:
        texts(small, b'{"model": "large"}')
    assert (refused.value.status, refused.value.code) == (404, "model_not_found")
    assert len(texts(small, b"{}")) == len(texts(small, b'{"model": "small"}')) == 1


@pytest.mark.parametrize("body", ['{"max_tokens": 3}', '{"messages": null}', '{"messages": "hi"}'])
def test_a_conversation_has_messages(body: str) -> None:
    """Without a list of them it is refused."""
    with pytest.raises(RefusedError, match="messages: ") as refused:
        read(ChatRequest, body.encode())
    assert refused.value.param == "messages"


@pytest.mark.parametrize(
    "fields",
    [
        {"store": False, "top_logprobs": 0, "best_of": 1},
        {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "suffix": "", "tools": []},
        {"frequency_penalty": 0.0, "presence_penalty": 0, "tool_choice": "none", "response_format": {"type": "text"}},
        {"parallel_tool_calls": True},
        {"parallel_tool_calls": False},
    ],
)
def test_what_changes_nothing_is_taken(fields: dict[str, Any]) -> None:
    """A field of the API that this server has not is taken at the value that leaves the answer as it is."""
    assert completion(**fields) == completion()


def test_null_is_what_is_not_given(small: Small) -> None:
    """Every field may be null, the prompt and the part of an option too, and then is as if it were not there."""
    api = ("best_of", "echo", "frequency_penalty", "logit_bias", "logprobs", "suffix", "tools", "top_logprobs")
    nulls = dict.fromkeys((*CompletionRequest.model_fields, *api))
    assert completion(**nulls) == completion()
    [text] = texts(small, json.dumps(nulls).encode())
    assert (text.prompt, text.wish.num_tokens) == ([256], 16)
    assert (text.wish.sampling.temperature, text.wish.sampling.top_k, text.wish.sampling.top_p) == (1, None, None)
    assert not completion(stream_options={"include_usage": None}).has_usage
    assert completion(stream_options={"include_usage": True}).has_usage
    assert read(ChatRequest, b'{"messages": [{}], "max_completion_tokens": null}').max_completion_tokens is None


@pytest.mark.parametrize(
    ("given", "stops"), [("a", ["a"]), (["a", "é" * 1000], ["a", "é" * 1000]), (["a"] * 16, ["a"] * 16), ([], [])]
)
def test_stop_texts(given: Any, stops: list[str]) -> None:
    """One may be given as it is, up to sixteen as a list."""
    assert completion(stop=given).stops == stops


def test_settings_at_their_limits_are_taken(small: Small) -> None:
    """The least and the most of each; whatever is larger than the model's vocabulary keeps all tokens."""
    most = {"temperature": 1e300, "top_p": 1, "top_k": 10**30, "seed": 2**64 - 1, "n": 128, "max_tokens": 2**31 - 1}
    least = {"temperature": 0, "top_p": 1e-300, "top_k": 1, "seed": 0, "n": 1, "max_tokens": 1}
    assert [len(texts(small, json.dumps(fields).encode())) for fields in (most, least)] == [128, 1]


def test_a_seed_that_is_not_given_is_another_each_time(small: Small) -> None:
    """Texts without a seed are drawn anew; those of one request have one seed, and each a draw of its own."""
    first, second = (texts(small, b'{"n": 2}') for _ in range(2))
    assert first[0].wish.seed != second[0].wish.seed
    assert first[0].wish.seed == first[1].wish.seed
    assert [text.wish.draw for text in first] == [0, 1]


def test_an_error_as_the_api_writes_it() -> None:
    """It has a message, whose mistake it is, the field, and a code."""
    wrong = RefusedError(400, "n: no", param="n", code="c").content
    assert wrong == {"error": {"message": "n: no", "type": "invalid_request_error", "param": "n", "code": "c"}}
    assert RefusedError(500, "no").content["error"]["type"] == "server_error"


def test_both_kinds_have_the_same_fields() -> None:
    """But for what is asked, likelihoods of completions, and the new name of how many tokens in conversations."""
    own = {kind: set(kind.model_fields) - set(Request.model_fields) for kind in (CompletionRequest, ChatRequest)}
    assert own == {
        CompletionRequest: {"prompt", "echo", "logprobs"},
        ChatRequest: {"messages", "max_completion_tokens"},
    }
