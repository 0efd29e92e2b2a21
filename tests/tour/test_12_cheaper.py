"""Each claim of the tour of cheaper steps fails when its idea is taken out."""

import pytest
from tests.tour.breaking import Broken, Outcomes

BROKEN = [
    Broken(
        idea="a ReLU in place of the GELU",
        old="jax.nn.gelu(x * scale @ up)",
        new="jax.nn.relu(x * scale @ up)",
        claim="a plain layer saves 6 M + 2 E + 2 numbers a token",
    ),
    Broken(
        idea="a policy that computes in float32",
        old="params=float32,compute=bfloat16,output=float32",
        new="params=float32,compute=float32,output=float32",
        claim="bfloat16 halves what the layers save",
    ),
    Broken(
        idea="no checkpoint around a layer",
        old="jax.checkpoint(layer, prevent_cse=recipe.unroll > 1) if recipe.remat else layer",
        new="layer",
        claim="a rematerialised layer saves its input and nothing else",
    ),
    Broken(
        idea="a state that is halved after all",
        old="state = by_device()[0], start(jnp.float32)",
        new="state = by_device()[0], start(jnp.bfloat16)",
        claim="plain: parameters and moments are 12 bytes a parameter",
    ),
    Broken(
        idea="blocks in every recipe",
        old="make_step(recipe).lower",
        new="make_step(replace(recipe, block=32)).lower",
        claim="plain: only by blocks no array has all logits",
    ),
    Broken(
        idea="a new state that is not kept",
        old="        state, loss = jax.block_until_ready(program(old, tokens))",
        new="        loss = jax.block_until_ready(program(old, tokens))[1]",
        claim="plain: donation leaves one state alive, not two",
    ),
    Broken(
        idea="no donation",
        old="donate_argnums=(0,) if recipe.donate else ()",
        new="donate_argnums=()",
        claim="+ donation: donation leaves one state alive, not two",
    ),
    Broken(
        idea="a loss in bfloat16 too",
        old="compute=bfloat16,output=float32",
        new="compute=bfloat16,output=bfloat16",
        claim="+ bfloat16: the loss changes by no more than 0.01",
    ),
    Broken(
        idea="the mean of the blocks",
        old="return jnp.sum(lax.map(",
        new="return jnp.mean(lax.map(",
        claim="+ blocks: the loss changes by no more than 0.001",
    ),
    Broken(
        idea="results counted that are written over the old state",
        old="sizes[:3] - [0, 0, sizes[3]]",
        new="sizes[:3]",
        claim="remat, donation and blocks each make the step smaller",
    ),
    Broken(
        idea="gradients of half the bytes",
        old='make_step(recipes["+ blocks"]), start(jnp.float32)',
        new='make_step(recipes["+ blocks"]), start(jnp.float16)',
        claim="what moves is the sum of float32 gradients and of the loss",
    ),
    Broken(
        idea="the policy spelt right",
        old="compute=bfloat16,parameter=f32,output=f32",
        new="compute=bfloat16,params=f32,output=f32",
        claim="the copied policy is refused",
    ),
    Broken(
        idea="a float32 state for both",
        old="    first = start(dtype)\n",
        new="    first = start(jnp.float32)\n",
        claim="the state is as large as the parameters' type makes it",
    ),
    Broken(
        idea="small weights too",
        old='[jnp.abs(first[0]["up"]) > 0.0512]',
        new='[jnp.abs(first[0]["up"]) > 0]',
        claim="in bfloat16 no large weight moves, in float32 all do",
    ),
    Broken(
        idea="nothing rematerialised",
        old="scratch(replace(base, remat=True))",
        new="scratch(base)",
        claim="in a scan, remat more than halves the temporaries",
    ),
    Broken(
        idea="a scan in both",
        old='"unrolled": replace(plain, unroll=L)',
        new='"unrolled": plain',
        claim="unrolled, remat saves next to nothing",
    ),
]


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through, so that none of its claims fails, and saves a picture."""
    outcomes.assert_it_holds()


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
