"""What the primer claims fails when the idea is taken out of it."""

from pathlib import Path

import pytest
from tests.tour.breaking import Broken, assert_claim_fails

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


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_the_claim_fails_without_the_idea(broken: Broken, tmp_path: Path) -> None:
    """With the idea broken, the tour ends at the assertion that makes the claim."""
    assert_claim_fails("00_primer", tmp_path, broken)
