"""FSDP by hand: each claim of the tour falls when its idea is taken out."""

import pytest
from tests.tour.breaking import Broken, Outcomes

BROKEN = [
    Broken(
        idea="the optimizer state is not split",
        old="jax.jit(start, out_shardings=placed(SPECS))(KEY)",
        new="jax.jit(start, out_shardings=placed((SPECS[0], jax.tree.map(lambda _: P(), SPECS[1]))))(KEY)",
        claim="a moment lives where its parameter lives",
    ),
    Broken(
        idea="every device cuts the same part",
        old='jax.lax.axis_index("data") * size',
        new='0 * jax.lax.axis_index("data")',
        claim="both ways give the same bits",
    ),
    Broken(
        idea="init makes the whole everywhere",
        old="jax.jit(init, out_shardings=placed(SPECS[0]))",
        new="jax.jit(cut_out)",
        claim="made in parts, the whole is never anywhere",
    ),
    Broken(
        idea="the scattered gradient is left a sum",
        old='g / N if "data" in specs[name]',
        new='g if "data" in specs[name]',
        claim="all three programs have one device's gradient",
    ),
    Broken(
        idea="what was gathered is kept",
        old='programs["FSDP, gathered again"] = (SPECS, jax.checkpoint)',
        new='programs["FSDP, gathered again"] = (SPECS, lambda x: x)',
        claim="the second gather adds half as much again",
    ),
]


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through: none of its claims fails."""
    assert outcomes.as_it_stands == ""


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
