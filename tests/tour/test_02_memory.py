"""Each central claim of the tour of memory fails when its idea is taken out."""

from pathlib import Path

import pytest
from tests.tour.breaking import Broken, assert_claim_fails

BROKEN = [
    Broken(
        idea="weights made without a sharding",
        old="w = jax.jit(make_weights, out_shardings=everywhere)()",
        new="w = jax.jit(make_weights)()",
        claim="weights born in place take one weight on every device and nothing more",
    ),
    Broken(
        idea="the stack kept by a name",
        old="del first, stack\n",
        new="del first\n",
        claim="the stack stays on device 0 until the last name for it is gone",
    ),
    Broken(
        idea="one key for all devices",
        old="jax.vmap(lambda key: jax.random.normal(key, (E, H)))",
        new="jax.vmap(lambda _: make_weights())",
        claim="a key per device makes eight different models",
    ),
    Broken(
        idea="only the first argument differentiated",
        old="jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))",
        new="jax.jit(jax.value_and_grad(loss))",
        claim="the results take what their shapes say",
    ),
    Broken(
        idea="only the vector differentiated, seen in resident memory",
        old="jax.jit(jax.grad(total, argnums=(0, 1)))",
        new="jax.jit(jax.grad(total))",
        claim="the gradient by both adds a second matrix",
    ),
    Broken(
        idea="the list of results not cleared",
        old="HISTORY.clear()\n",
        new="",
        claim="without the list, only what train returned is alive",
    ),
]


@pytest.mark.parametrize("broken", BROKEN, ids=[broken.idea for broken in BROKEN])
def test_its_claims_fail_when_broken(broken: Broken, tmp_path: Path) -> None:
    """The assertion that makes the claim fails, and nothing else."""
    assert_claim_fails("02_memory", tmp_path, broken)
