"""The tour of named axes notices when what it is about is taken out."""

from pathlib import Path

import pytest
from tests.tour.breaking import Broken, assert_claim_fails

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


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_broken_idea_fails_its_claim(broken: Broken, tmp_path: Path) -> None:
    """With the idea taken out, the tour ends at the assertion that claims it."""
    assert_claim_fails("11_named_axes", tmp_path, broken)
