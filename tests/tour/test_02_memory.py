"""Each central claim of the tour of memory fails when its idea is taken out."""

import pytest
from tests.tour.breaking import Broken, Outcomes

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


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through: none of its claims fails."""
    assert outcomes.as_it_stands == ""


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
