"""Each central claim of the tour of moving data fails when its idea is taken out."""

import pytest
from tests.tour.breaking import Broken, Outcomes

BROKEN = [
    Broken(
        idea="a permute to the wrong neighbour",
        old="[(d, (d + 1) % n) for d in range(n)]",
        new="[(d, (d - 1) % n) for d in range(n)]",
        claim="ppermute is what NumPy makes of it",
    ),
    Broken(
        idea="the second half left out",
        old='"then gather": (in_halves, P())',
        new='"then gather": (scattered, columns)',
        claim="and as many bytes, half of them in each half",
    ),
    Broken(
        idea="the normalisation without the local mean",
        old='lax.pmean(x.mean(axis=1, keepdims=True), "hidden")',
        new='lax.pmean(x, "hidden")',
        claim="the mended one is the plain normalisation",
    ),
    Broken(
        idea="the normalisation without the sum over devices",
        old='lax.pmean(x.mean(axis=1, keepdims=True), "hidden")',
        new="x.mean(axis=1, keepdims=True)",
        claim="the mended one is the plain normalisation",
    ),
    Broken(
        idea="K without the sum over devices",
        old='lax.psum(x @ w, "i"), columns, rows, P()',
        new='lax.pmax(x @ w, "i"), columns, rows, P()',
        claim="split by K, summed, it is the same matmul",
    ),
    Broken(
        idea="the mean over the batch without the sum over devices",
        old='lax.psum(jnp.sum(x @ w, axis=0), "batch") / 1024',
        new='lax.pmean(jnp.sum(x @ w, axis=0), "batch") / 1024',
        claim="the sum over the named axis is the mean over the batch",
    ),
]


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through: none of its claims fails."""
    assert outcomes.as_it_stands == ""


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
