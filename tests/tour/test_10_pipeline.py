"""Each central claim of the tour of the pipeline fails when its idea is taken out."""

from pathlib import Path

import pytest
from tests.tour.breaking import Broken, assert_claim_fails

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


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_its_claim_fails(broken: Broken, tmp_path: Path) -> None:
    """Without the idea, the tour ends at the assertion that makes the claim."""
    assert_claim_fails("10_pipeline", tmp_path, broken)
