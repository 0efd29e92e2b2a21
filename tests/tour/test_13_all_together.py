"""All together: each claim of the tour falls when its idea is taken out."""

import pytest
from tests.tour.breaking import Broken, Outcomes

BROKEN = [
    Broken(
        idea="heads of one device only are added up",
        old='x = x + jax.lax.psum(out, "tensor")',
        new='x = x + jax.lax.psum(jnp.where(jax.lax.axis_index("tensor") == 0, out, 0), "tensor")',
        claim="by hand or by shardwise, the losses are equal",
    ),
    Broken(
        idea="the vocabulary's padding is counted",
        old="jnp.where(entry < VOCAB, normed",
        new="jnp.where(entry < 2 * VOCAB, normed",
        claim="by hand or by shardwise, the losses are equal",
    ),
    Broken(
        idea="stage 1 keeps all of the moments",
        old='zero(summed, own, (P(), P("data"), P()),',
        new="zero(summed, whole, (P(), P(), P()),",
        claim="ZeRO-1 holds on each device what its row says",
    ),
    Broken(
        idea="stage 1 clips each piece by its own norm",
        old='jax.lax.psum((piece(grads) ** 2).sum(), "data")',
        new="(piece(grads) ** 2).sum()",
        claim="ZeRO-1 has the losses of shardwise",
    ),
    Broken(
        idea="stage 2 keeps all of the gradient",
        old='zero(scattered, own, (P(), P("data"), P("data")),',
        new='zero(summed, own, (P(), P("data"), P()),',
        claim="ZeRO-2 holds on each device what its row says",
    ),
    Broken(
        idea="stage 2 sums where it may scatter",
        old='jax.lax.psum_scatter(ravel_pytree(g)[0], "data", tiled=True)',
        new='piece(jax.lax.psum(ravel_pytree(g)[0], "data"))',
        claim="ZeRO-2 sends what its row says",
    ),
    Broken(
        idea="stage 3 keeps all of the parameters",
        old='zero(gathered, own, (P("data"), P("data"), P("data")),',
        new='zero(scattered, own, (P(), P("data"), P("data")),',
        claim="ZeRO-3 holds on each device what its row says",
    ),
    Broken(
        idea="stage 3 repeats the mean of the pieces where it should gather them",
        old='jax.lax.all_gather(params, "data", tiled=True, to="invarying")',
        new='jnp.tile(jax.lax.pmean(params, "data"), N)',
        claim="ZeRO-3 has the losses of shardwise",
    ),
]


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through, so that none of its claims fails, and saves a picture."""
    outcomes.assert_it_holds()


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
