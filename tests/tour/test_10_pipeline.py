"""Each central claim of the tour of the pipeline fails when its idea is taken out."""

import pytest
from tests.tour.breaking import Broken, Outcomes

BROKEN = [
    Broken(
        idea="a row of stages that is no ring",
        old="[(s, (s + 1) % S) for s in range(S)]",
        new="[(s, s + 1) for s in range(S - 1)]",
        claim="the last stage's results are those of one device, bit for bit",
    ),
    Broken(
        idea="a stage that never stops",
        old="busy = (item >= 0) & (item < M * rounds)",
        new="busy = item >= 0",
        claim="the idle part of what the stages logged",
    ),
    Broken(
        idea="every stage says its loss",
        old="jnp.where(last, jnp.mean((outputs[0] - targets) ** 2), 0)",
        new="jnp.where(last | True, jnp.mean((outputs[0] - targets) ** 2), 0)",
        claim="the loss is that of one device",
    ),
    Broken(
        idea="nothing recomputed",
        old="recomputed = gradient(jax.checkpoint(visit))",
        new="recomputed = gradient(visit)",
        claim="a microbatch more costs less than three activations",
    ),
]


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through: none of its claims fails."""
    assert outcomes.as_it_stands == ""


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
