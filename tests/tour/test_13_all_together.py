"""All together: each claim of the tour falls when its idea is taken out."""

from pathlib import Path

import pytest
from tests.tour.breaking import Broken, assert_claim_fails

TOUR = "13_all_together"
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


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(broken: Broken, tmp_path: Path) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    assert_claim_fails(TOUR, tmp_path, broken)
