"""Sampling: which tokens are kept, and how often each is chosen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwise.protocol.errors import UsageError
from shardwise.train.sampling import Sampling, Settings, choose

LOGITS = np.array([1.0, 3.0, 2.0, 3.0, -1.0, 0.0], np.float32)
NUM_DRAWS = 4000


def drawn(sampling: Sampling, logits: np.ndarray, num_draws: int = NUM_DRAWS) -> np.ndarray:
    """How often each token is chosen."""
    random = jax.random.uniform(jax.random.key(0), (num_draws,))
    rows = jnp.broadcast_to(logits, (num_draws, logits.size))
    settings = Settings.of([sampling] * num_draws)
    return np.bincount(np.asarray(jax.jit(choose)(rows, random, settings)), minlength=logits.size)


@pytest.mark.parametrize("top_k", [1, 3, 6, 100, None])
def test_the_kept_tokens_are_chosen_as_often_as_their_probabilities_say(top_k: int | None) -> None:
    """Only the top k are chosen, each as often as the softmax at the temperature says (ties cut to k)."""
    counts = drawn(Sampling(temperature=2.0, top_k=top_k), LOGITS)
    kept = np.argsort(-LOGITS)[: top_k or len(LOGITS)]
    assert (counts > 0).sum() == len(kept)
    powers = np.exp(np.sort(LOGITS[kept]) / 2.0)
    shares = np.sort(counts[counts > 0] / NUM_DRAWS)
    assert np.abs(shares - np.sort(powers / powers.sum())).max() < 0.03


@pytest.mark.parametrize(
    ("top_p", "top_k", "kept"),
    [
        (0.01, None, {4}),
        (0.5, None, {4}),  # 0.5 alone has it
        (0.51, None, {1, 4}),
        (0.86, None, {0, 1, 2, 4}),  # equal ones stay together
        (0.86, 3, {1, 4}),  # of what the three have together, which is 0.85, these two have 0.88
        (1.0, None, {0, 1, 2, 3, 4}),
    ],
)
def test_top_p_keeps_the_fewest_likeliest_that_have_it(top_p: float, top_k: int | None, kept: set[int]) -> None:
    """They are counted down from the likeliest until their probabilities reach top-p."""
    logits = np.log(np.array([0.1, 0.25, 0.1, 0.05, 0.5], np.float32))
    counts = drawn(Sampling(top_p=top_p, top_k=top_k), logits)
    assert set(np.flatnonzero(counts).tolist()) == kept


def test_a_large_vocabulary() -> None:
    """Over many parts every token has its share, and impossible ones are never chosen."""
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 1, 1000).astype(np.float32)
    logits[rng.random(1000) < 0.5] = -200
    powers = np.exp(logits.astype(np.float64))
    counts = drawn(Sampling(), logits, 50_000)
    assert counts[logits == -200].sum() == 0
    assert np.abs(counts / 50_000 - powers / powers.sum()).max() < 3e-3


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-6])
def test_the_coldest(temperature: float) -> None:
    """At temperature 0, or next to it, the first of the likeliest is chosen, or any of those that are equal."""
    counts = drawn(Sampling(temperature=temperature), LOGITS, 100)
    assert set(np.flatnonzero(counts).tolist()) == ({1} if temperature == 0 else {1, 3})


def test_each_row_has_settings_of_its_own() -> None:
    """Rows that ask for different things get what each would get in a batch of its own."""
    asked = [
        Sampling(temperature=0),
        Sampling(temperature=2.0),
        Sampling(temperature=2.0, top_k=2),
        Sampling(top_p=0.5),
        Sampling(temperature=0.5, top_k=4, top_p=0.9),
    ]
    logits = jax.random.normal(jax.random.key(1), (len(asked), 300)) * 3
    random = jax.random.uniform(jax.random.key(2), (len(asked),))
    together = choose(logits, random, Settings.of(asked))
    alone = [choose(logits[n : n + 1], random[n : n + 1], Settings.of([one]))[0].item() for n, one in enumerate(asked)]
    assert together.tolist() == alone
    assert len(set(alone)) > 1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"temperature": -1.0}, r"temperature: given -1\.0"),
        ({"temperature": float("nan")}, "temperature: given nan"),
        ({"top_k": 0}, "top-k: given 0, expected at least 1"),
        ({"top_p": 0.0}, r"top-p: given 0\.0, expected more than 0"),
        ({"top_p": 1.1}, r"top-p: given 1\.1, expected more than 0"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, float], words: str) -> None:
    """The settings themselves say what was given and expected."""
    with pytest.raises(UsageError, match=words):
        Sampling(**wrong)  # type: ignore[arg-type]
