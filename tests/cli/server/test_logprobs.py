"""How likely tokens are, over HTTP: what the model says of them by itself, in the form that harnesses read."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.cli.server.small import Server, Small, found

from shardwise.cli.asked import Asked
from shardwise.cli.server.logprobs import logprobs_of
from shardwise.cli.server.requests import CompletionRequest, RefusedError, read
from shardwise.cli.server.texts import Text
from shardwise.train.data.tokenizer import ByteTokenizer
from shardwise.train.generation import Wish
from shardwise.train.sampling import Sampling
from shardwise.train.scoring import Scores

PROMPT = "how likely is this?"
SEQ_LEN = 64


def choices(server: Server, **asked: Any) -> list[dict[str, Any]]:
    """Return the choices of an answer."""
    answer: list[dict[str, Any]] = server.complete(temperature=0, **asked)["choices"]
    return answer


def test_what_was_made(server: Server, small: Small) -> None:
    """Each token that was made has its likelihood and the likeliest; at temperature 0 it is the first of them."""
    [choice] = choices(server, prompt=PROMPT, max_tokens=9, logprobs=3)
    made = [*choice["text"].encode("latin-1", "replace")]
    [scores] = small.decoder.score([small.tokens(PROMPT, 9)])
    of_made = slice(len(PROMPT) - 1, None)
    told = choice["logprobs"]
    assert told["tokens"] == [small.model.tokenizer.decode([token]) for token in small.tokens(PROMPT, 9)[len(PROMPT) :]]
    assert len(made) == len(told["tokens"])
    np.testing.assert_array_equal(np.float32(told["token_logprobs"]), scores.own[of_made])
    for named, own, top in zip(told["top_logprobs"], told["token_logprobs"], scores.top[of_made], strict=True):
        assert max(named.values()) == own == top[0]
        assert len(named) <= 3
    assert told["text_offset"] == list(range(9))


def test_an_echo_has_the_prompt(server: Server, small: Small) -> None:
    """Its text comes before, and its tokens before those that were made; nothing comes before the first of them."""
    [with_prompt] = choices(server, prompt=PROMPT, max_tokens=2, logprobs=5, echo=True)
    [without] = choices(server, prompt=PROMPT, max_tokens=2, logprobs=5)
    [text_alone] = choices(server, prompt=PROMPT, max_tokens=2, echo=True)
    assert with_prompt["text"] == text_alone["text"] == PROMPT + without["text"]
    assert text_alone["logprobs"] is None
    told = with_prompt["logprobs"]
    assert told["tokens"][: len(PROMPT)] == [*PROMPT]
    assert told["token_logprobs"][0] is told["top_logprobs"][0] is None
    [scores] = small.decoder.score([small.tokens(PROMPT, 2)])
    np.testing.assert_array_equal(np.float32(told["token_logprobs"][1:]), scores.own)
    for key in ("tokens", "token_logprobs", "top_logprobs"):
        assert told[key][len(PROMPT) :] == without["logprobs"][key]
    for log, named in zip(told["token_logprobs"][1:], told["top_logprobs"][1:], strict=True):
        assert len(named) + 1 >= 5 or "\N{REPLACEMENT CHARACTER}" in named, "unless some have one name"
        assert log in named.values() or "\N{REPLACEMENT CHARACTER}" in named


def test_the_likelihood_of_given_answers(server: Server, small: Small) -> None:
    """A harness asks of tokens of many lengths, more of them than rows, with one more token, and leaves that out."""
    asked = [[*f"{PROMPT} {'no, ' * number}".encode()][:SEQ_LEN] for number in range(12)]
    told = choices(server, prompt=asked, max_tokens=1, logprobs=1, echo=True)
    assert len(told) == len(asked)
    for tokens, choice in zip(asked, told, strict=True):
        [alone] = small.decoder.score([tokens])
        np.testing.assert_allclose(choice["logprobs"]["token_logprobs"][1:-1], alone.own, rtol=0, atol=1e-5)


def test_tokens_with_one_name() -> None:
    """Of tokens whose texts are the same, halves of characters, the likeliest has the name."""
    asked = Asked([65, 200], "", {}, [65, 200])
    text = Text(0, asked, Wish(num_tokens=1, sampling=Sampling()), (), frozenset(), ByteTokenizer().decode, print)
    scores = Scores(np.array([-3.0]), np.array([[-0.5, -1.0, -1.5]]), np.array([[201, 66, 202]]))
    told = logprobs_of(text, scores, 3, with_prompt=True)
    assert told["tokens"] == ["A", "\N{REPLACEMENT CHARACTER}"]
    assert told["token_logprobs"] == [None, -3.0]
    assert told["top_logprobs"] == [None, {"\N{REPLACEMENT CHARACTER}": -0.5, "B": -1.0}]


def test_none_of_the_likeliest(server: Server) -> None:
    """With 0 there are the tokens' own alone."""
    [choice] = choices(server, prompt=PROMPT, max_tokens=2, logprobs=0)
    assert choice["logprobs"]["top_logprobs"] is None
    assert len(choice["logprobs"]["token_logprobs"]) == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"logprobs": 1, "stream": True}, "stream: given true with echo or logprobs"),
        ({"echo": True, "stream": True}, "stream: given true with echo or logprobs"),
        (
            {"logprobs": 0, "prompt": "a" * 50},
            "logprobs: given a prompt of 50 tokens and 16 to make, expected 65 at most",
        ),
    ],
)
def test_what_is_refused(fields: dict[str, Any], words: str, server: Server) -> None:
    """The answer says which field, what was given, and what is expected."""
    response = server.post("/v1/completions", **fields)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(words)
    assert response.json()["error"]["param"] == words.partition(":")[0]
    assert found(server.post("/v1/completions", logprobs=0, prompt="a" * 50, max_tokens=15))


def test_a_server_that_was_not_told_to(small: Small) -> None:
    """Without its option it says so, and an echo needs none."""
    model = replace(small.model, has_scores=False)
    with pytest.raises(RefusedError, match="started without --logprobs"):
        model.texts(read(CompletionRequest, b'{"logprobs": 0}'), lambda _: None)
    assert model.texts(read(CompletionRequest, b'{"echo": true}'), lambda _: None)
