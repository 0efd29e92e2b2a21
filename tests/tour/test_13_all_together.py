"""All together: each claim of the tour falls when its idea is taken out."""

import pytest
from tests.tour.breaking import Broken, Outcomes

EQUAL = "by hand or by shardwise, the losses are equal"
BROKEN = [
    Broken(
        idea="the vocabulary's padding is counted",
        old="jnp.where(entry < VOCAB, normed",
        new="jnp.where(entry < 2 * VOCAB, normed",
        claim=EQUAL,
    ),
    Broken(
        idea="heads of one device only are added up",
        old='x = x + jax.lax.psum(out, "tensor")',
        new='x = x + jax.lax.psum(jnp.where(jax.lax.axis_index("tensor") == 0, out, 0), "tensor")',
        claim=EQUAL,
    ),
    Broken(
        idea="each piece is clipped by its own norm",
        old='jax.lax.psum((grads**2).sum(), "data") if stage else',
        new="(grads**2).sum() if stage else",
        claim=EQUAL,
    ),
    Broken(
        idea="stage 2 sums where it may scatter",
        old='jax.lax.psum_scatter(grads, "data", tiled=True) if stage >= 2 else',
        new='piece(jax.lax.psum(grads, "data")) if stage >= 2 else',
        claim="each stage sends what its row says",
    ),
]


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through: none of its claims fails."""
    assert outcomes.as_it_stands == ""


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
