"""What the tour of randomness claims fails when the idea is taken out of it."""

import pytest
from tests.tour.breaking import Broken, Outcomes

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


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through: none of its claims fails."""
    assert outcomes.as_it_stands == ""


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
