"""What the tour of devices and arrays claims fails when the idea is taken out of it."""

from pathlib import Path

import pytest
from tests.tour.breaking import Broken, assert_claim_fails

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


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_the_claim_fails_without_the_idea(broken: Broken, tmp_path: Path) -> None:
    """With the idea broken, the tour ends at the assertion that makes the claim."""
    assert_claim_fails("01_devices_and_arrays", tmp_path, broken)
