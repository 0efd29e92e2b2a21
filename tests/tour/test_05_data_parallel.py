"""Data parallelism by hand: each claim of the tour falls when its idea is taken out."""

import pytest
from tests.tour.breaking import Broken, Outcomes

BROKEN = [
    Broken(
        idea="the devices' gradients are averaged, though they are gradients of sums",
        old='jax.lax.psum(own(params, batch), "data")',
        new='(lambda sums: (jax.lax.pmean(sums[0], "data"), jax.lax.psum(sums[1], "data")))(own(params, batch))',
        claim="the summed gradient is one device's gradient of the whole batch",
    ),
    Broken(
        idea="only device 0's gradient counts",
        old='jax.lax.psum(own(params, batch), "data")',
        new=(
            'jax.lax.psum(jax.tree.map(lambda x: jnp.where(jax.lax.axis_index("data") == 0, x, 0), '
            'own(params, batch)), "data")'
        ),
        claim="the summed gradient is one device's gradient of the whole batch",
    ),
    Broken(
        idea="the minibatches after the first are forgotten",
        old="(jax.tree.map(jnp.add, total, part(rows)), None), empty, parts)[0]",
        new="(jax.tree.map(jnp.add, total, part(rows)), None), empty, jax.tree.map(lambda x: x[:1], parts))[0]",
        claim="the summed gradient is one device's gradient of the whole batch",
    ),
    Broken(
        idea="padding is counted",
        old='real = batch["labels"] >= 0',
        new='real = batch["labels"] >= -1',
        claim="the devices count the real rows together",
    ),
    Broken(
        idea="the state is not donated",
        old="after = jax.jit(step, donate_argnums=0)(state, batch)",
        new="after = jax.jit(step)(state, batch)",
        claim="a donated state is gone after the step",
    ),
]


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through: none of its claims fails."""
    assert outcomes.as_it_stands == ""


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
