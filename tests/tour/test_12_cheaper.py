"""Each central claim of the tour of cheaper steps fails when its idea is taken out."""

import pytest
from tests.tour.breaking import Broken, Outcomes

BROKEN = [
    Broken(
        idea="a policy that computes in float32",
        old="params=float32,compute=bfloat16,output=float32",
        new="params=float32,compute=float32,output=float32",
        claim="bfloat16 halves what the layers save",
    ),
    Broken(
        idea="no checkpoint around a layer",
        old="jax.checkpoint(layer, prevent_cse=recipe.unroll > 1) if recipe.remat else layer",
        new="layer",
        claim="a rematerialised layer saves its input and nothing else",
    ),
    Broken(
        idea="a state that is halved after all",
        old="    state = start(jnp.float32)\n",
        new="    state = start(jnp.bfloat16)\n",
        claim="parameters and moments are 12 bytes a parameter",
    ),
    Broken(
        idea="no donation",
        old="donate_argnums=(0,) if recipe.donate else ()",
        new="donate_argnums=()",
        claim="donation leaves one state alive and not two",
    ),
    Broken(
        idea="one block",
        old="replace(donation, block=32)",
        new="donation",
        claim="remat, donation and blocks each make the step smaller",
    ),
]


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through: none of its claims fails."""
    assert outcomes.as_it_stands == ""


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
