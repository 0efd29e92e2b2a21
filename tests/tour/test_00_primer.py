"""What the primer claims fails when the idea is taken out of it."""

import pytest
from tests.tour.breaking import Broken, Outcomes

BROKEN = [
    Broken(
        idea="the scan never counts the present element",
        old="total + value if inclusive else total",
        new="total",
        claim="both kinds of sum are the same by hand and by scan",
    ),
    Broken(
        idea="the second stack is mapped too",
        old="((0, None),)]",
        new="((0, 0),)]",
        claim="what is not mapped meets every example",
    ),
    Broken(
        idea="both layers are made from one key",
        old="for key in (first, second))",
        new="for key in (first, first))",
        claim="two layers made from split keys share no number",
    ),
    Broken(
        idea="an optimizer without moments",
        old="optax.adam(0.01)",
        new="optax.sgd(0.01)",
        claim="a model with Adam takes 12 bytes for each parameter",
    ),
    Broken(
        idea="the sum is over the other name",
        old="named / hax.sum(named, Column)",
        new="named / hax.sum(named, Row)",
        claim="by name each row sums to one",
    ),
]


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through: none of its claims fails."""
    assert outcomes.as_it_stands == ""


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
