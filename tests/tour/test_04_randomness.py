"""What the tour of randomness claims fails when the idea is taken out of it."""

from pathlib import Path

import pytest
from tests.tour.breaking import Broken, assert_claim_fails

BROKEN = [
    Broken(
        idea="the key is not folded",
        old="jax.random.fold_in(key, jax.lax.axis_index(name))",
        new="key",
        claim="there are as many masks as the axes have places",
    ),
    Broken(
        idea="each device counts its sequences from zero",
        old='jax.lax.axis_index("i") * len(x) + jnp.arange(len(x))',
        new="jnp.arange(len(x))",
        claim="folded by sequence, the mask is the same on any mesh",
    ),
    Broken(
        idea="a block is counted as if it were the whole matrix",
        old="row * C + column",
        new="row * c + column",
        claim="any block of the bits can be made alone",
    ),
    Broken(
        idea="the old counters",
        old='"today, by rows": (True,',
        new='"today, by rows": (False,',
        claim="today's counters need three shards",
    ),
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_the_claim_fails_without_the_idea(broken: Broken, tmp_path: Path) -> None:
    """With the idea broken, the tour ends at the assertion that makes the claim."""
    assert_claim_fails("04_randomness", tmp_path, broken)
