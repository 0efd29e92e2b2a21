"""Generation: the cache against the whole forward pass, sampling, and what happens at the window's end."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from tests.train.small_gpt import Forward, forward_of, gpt2_config, gptj_config, program_of, random_params

from shardwise.protocol.errors import NonFiniteError, ShardwiseError, UsageError
from shardwise.train.config import GptConfig
from shardwise.train.generate import Decoder, Sampling, _num_rows, generate
from shardwise.train.state import Program

Params = dict[str, jax.Array]
PROMPT = [5, 1, 69, 3]
MODELS = [
    (gpt2_config, {}, 4, {"tensor": 2}),
    (gpt2_config, {"position": "rotary", "rotary_dim": 8, "scale_by_inverse_layer": True}, 1, {}),
    (gptj_config, {}, 1, {}),
]


@pytest.fixture(scope="module")
def small() -> tuple[Program, Params]:
    """A GPT-2 on one device with random parameters."""
    program = program_of(gpt2_config())
    return program, random_params(program)


@pytest.fixture(scope="module")
def forward(small: tuple[Program, Params]) -> Forward:
    """Its whole forward pass."""
    return forward_of(small[0])


@pytest.fixture(scope="module")
def decoder(small: tuple[Program, Params]) -> Decoder:
    """Its compiled programs."""
    return Decoder.of(small[0])


@pytest.fixture(autouse=True)
def _compiled_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that share the small model share its compiled programs too."""
    if "small" in request.fixturenames:
        compiled = request.getfixturevalue("decoder")
        monkeypatch.setattr(Decoder, "of", lambda _: compiled)


def greedy_by_forward(forward: Forward, params: Params, tokens: list[int], num_tokens: int) -> list[int]:
    """What follows within one window, each token from a whole forward pass without a cache."""
    row = np.zeros((1, 16), np.int32)
    row[0, : len(tokens)] = tokens
    for at in range(len(tokens), len(tokens) + num_tokens):
        row[0, at] = forward(params, row)[0, at - 1].argmax()
    return [int(token) for token in row[0, len(tokens) : len(tokens) + num_tokens]]


@pytest.mark.parametrize(("make", "fields", "devices", "mesh"), MODELS)
def test_cached_logits_are_the_whole_forward_pass(
    make: Callable[..., GptConfig], fields: dict[str, Any], devices: int, mesh: dict[str, Any]
) -> None:
    """A prompt and then one token at a time give the logits of every position, for all kinds of block and position."""
    program = program_of(make(**fields), devices=devices, mesh=mesh)
    params = random_params(program)
    tokens = np.random.default_rng(2).integers(0, 70, (1, 16)).astype(np.int32)
    num_rows = _num_rows(program)
    whole = forward_of(program)(params, np.repeat(tokens, num_rows, 0))[0, :, :70]
    decoder = Decoder.of(program)
    logits, cache = decoder.start(params, tokens[0, :5].tolist())
    found = [logits]
    for position in range(5, 16):
        logits, cache = decoder.go_on(params, int(tokens[0, position]), position, cache)
        found.append(logits)
    assert np.abs(np.stack(found) - whole[4:]).max() < 1e-5 * np.abs(whole).max()


def test_greedy_takes_the_most_likely_token(small: tuple[Program, Params], forward: Forward) -> None:
    """At temperature 0 every token is the argmax of the whole forward pass, and the seed plays no part."""
    program, params = small
    expected = greedy_by_forward(forward, params, PROMPT, 6)
    assert list(generate(program, params, PROMPT, num_tokens=6, temperature=0, seed=0)) == expected
    assert list(generate(program, params, PROMPT, num_tokens=6, temperature=0, seed=1)) == expected


def test_a_full_window_starts_anew_with_its_last_half(small: tuple[Program, Params], forward: Forward) -> None:
    """Past the last position the model sees the last half window and fills it up again; a long prompt is cut."""
    program, params = small
    prompt = np.random.default_rng(4).integers(0, 70, 40).tolist()
    made = list(generate(program, params, prompt, num_tokens=11, temperature=0))
    whole_window = forward(params, np.array([prompt[-16:]], np.int32))[0, -1].argmax()
    assert made[0] == whole_window
    half = [*prompt, made[0]][-8:]
    assert made[1:9] == greedy_by_forward(forward, params, half, 8)
    logits = forward(params, np.array([[*half, *made[1:9]]], np.int32))[0, -1]
    assert made[9] == logits.argmax()
    assert made[10] == greedy_by_forward(forward, params, [*half, *made[1:10]][-8:], 1)[0]


def test_the_seed_decides(small: tuple[Program, Params]) -> None:
    """The same seed gives the same tokens, another seed others, and none is of the vocabulary's padding."""
    program, params = small

    def run(seed: int) -> list[int]:
        return list(generate(program, params, PROMPT, num_tokens=30, temperature=3.0, seed=seed))

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert max(run(1)) < 70


def test_generation_ends_before_the_stop_token(small: tuple[Program, Params]) -> None:
    """The stop token ends the text and is no part of it; without it the count does."""
    program, params = small
    free = list(generate(program, params, PROMPT, num_tokens=8, temperature=2.0, seed=5))
    stop = free[4]
    stopped = list(generate(program, params, PROMPT, num_tokens=8, temperature=2.0, seed=5, stop=stop))
    assert stopped == free[: free.index(stop)]
    assert list(generate(program, params, PROMPT, num_tokens=0)) == []


@pytest.mark.parametrize("top_k", [1, 3, None])
def test_sampling_follows_the_distribution_of_the_kept_tokens(top_k: int | None) -> None:
    """Only the top k are chosen, each as often as the softmax at the temperature says (ties cut to k)."""
    logits = np.array([1.0, 3.0, 2.0, 3.0, -1.0, 0.0], np.float32)
    rng = np.random.default_rng(0)
    sampling = Sampling(temperature=2.0, top_k=top_k)
    num_draws = 4000
    counts = Counter(sampling.choose(logits, rng) for _ in range(num_draws))
    kept = np.argsort(-logits)[: top_k or len(logits)]
    assert len(counts) == len(kept)
    powers = np.exp(np.sort(logits[kept]) / 2.0)
    shares = np.sort([count / num_draws for count in counts.values()])
    assert np.abs(shares - np.sort(powers / powers.sum())).max() < 0.03


REFUSED: list[tuple[dict[str, Any], type[ShardwiseError], str]] = [
    ({"prompt": []}, UsageError, "expected at least one"),
    ({"prompt": [3, 70]}, UsageError, "given token 70, expected 0 to 69"),
    ({"temperature": -1.0}, UsageError, r"temperature: given -1\.0"),
    ({"temperature": float("nan")}, UsageError, "temperature: given nan"),
    ({"top_k": 0}, UsageError, "top-k: given 0, expected at least 1"),
    ({"num_tokens": -1}, UsageError, "given -1 tokens"),
    ({"seed": -1}, UsageError, "seed -1"),
]


@pytest.mark.parametrize(("wrong", "kind", "words"), REFUSED)
def test_wrong_wishes_are_refused_at_once(
    wrong: dict[str, Any], kind: type[ShardwiseError], words: str, small: tuple[Program, Params]
) -> None:
    """The call itself says what was given and expected, before anything is compiled."""
    program, params = small
    wishes: dict[str, Any] = {"prompt": PROMPT, "num_tokens": 3, **wrong}
    with pytest.raises(kind, match=words):
        generate(program, params, wishes.pop("prompt"), **wishes)


def test_broken_parameters_are_said(small: tuple[Program, Params]) -> None:
    """Logits that are not numbers end generation with their own error, greedy or not."""
    program, params = small
    broken = {**params, "norm.bias": params["norm.bias"] * np.nan}
    with pytest.raises(NonFiniteError, match="use another checkpoint"):
        next(generate(program, broken, PROMPT, num_tokens=1, temperature=0))


def test_filling_is_never_seen(small: tuple[Program, Params], decoder: Decoder) -> None:
    """What fills a short prompt up to the window changes no logits: a longer prompt's prefix gives the same cache."""
    _, params = small
    _, cache = decoder.start(params, PROMPT)
    extended, _ = decoder.go_on(params, 9, len(PROMPT), cache)
    again, _ = decoder.start(params, [*PROMPT, 9])
    assert np.abs(extended - again).max() < 1e-5 * np.abs(again).max()
