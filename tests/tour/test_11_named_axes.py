"""The tour of named axes notices when what it is about is taken out."""

import pytest
from tests.tour.breaking import Broken, Outcomes

BROKEN = [
    Broken(
        idea="the layers called one by one",
        old="x = by_scan(x) if scanned else",
        new="x = by_scan(x) if scanned is None else",
        claim="a scan has as many lines for eight layers as for one",
    ),
    Broken(
        idea="a mapping to an axis that the model does not have",
        old='{"batch": "data"}, {"embed": "data"}, {"heads"',
        new='{"batch": "data"}, {"embd": "data"}, {"heads"',
        claim="FSDP stores an eighth",
    ),
    Broken(
        idea="no auto_sharded",
        old="nullcontext() if compute is None else",
        new="nullcontext() if compute is not None else",
        claim="no gather of FSDP makes more than one matrix",
    ),
    Broken(
        idea="attention that sees the future",
        old="hax.where(seen, scores, -1e9)",
        new="scores",
        claim="the trainer's losses are those of the tour",
    ),
]


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through: none of its claims fails."""
    assert outcomes.as_it_stands == ""


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
