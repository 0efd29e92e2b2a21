"""What the tour of devices and arrays claims fails when the idea is taken out of it."""

import pytest
from tests.tour.breaking import Broken, Outcomes

BROKEN = [
    Broken(
        idea="every array is copied to all devices",
        old="NamedSharding(mesh, P(*spec))",
        new="NamedSharding(mesh, P())",
        claim="each device holds the bytes over the sizes of the named axes",
    ),
    Broken(
        idea="the matrix is split by columns where it should be by rows",
        old='(put(m, "i"), put(v))',
        new='(put(m, None, "i"), put(v, "i"))',
        claim="only a sum over a split dimension moves bytes",
    ),
    Broken(
        idea="what is halved is not split",
        old='(lambda x: x / 2, (put(x, "i"),))',
        new="(lambda x: x / 2, (put(x),))",
        claim="half of a sharded array stays where the array is",
    ),
    Broken(
        idea="the devices' sums are added up",
        old="jax.pmap(lambda matrix: jnp.sum(matrix @ matrix.T))",
        new='jax.pmap(lambda matrix: jax.lax.psum(jnp.sum(matrix @ matrix.T), "k"), axis_name="k")',
        claim="local products and sums move nothing",
    ),
]


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through: none of its claims fails."""
    assert outcomes.as_it_stands == ""


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
