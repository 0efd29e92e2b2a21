"""The claims of the sharded transformer fail when their idea is taken out."""

import pytest
from tests.tour.breaking import Broken, Outcomes

BROKEN = (
    Broken(
        idea="a key for each shard",
        old='jax.lax.axis_index("tensor") * here + jnp.arange(here)',
        new='jax.lax.axis_index("tensor") * 1000 + jnp.arange(here)',
        claim="the weights made in parts are, bit for bit, those that one device makes",
    ),
    Broken(
        idea="spread at each use",
        old="h = spread(jax.nn.standardize(x) * (1 + p[",
        new="h = (jax.nn.standardize(x) * (1 + p[",
        claim="a step sends what was predicted, to the byte",
    ),
    Broken(
        idea="z-loss without the maximum",
        old="log_z = top + jnp.log(total(jnp.exp(logits - top[..., None]).sum(-1)))",
        new="log_z = jnp.log(total(jnp.exp(logits - top[..., None]).sum(-1)))\n    logits -= top[..., None]",
        claim="the sharded loss is the plain loss",
    ),
    Broken(
        idea="one window for all shards",
        old='own = ids - jax.lax.axis_index("tensor") * size',
        new='own = ids - 0 * jax.lax.axis_index("tensor") * size',
        claim="the sharded loss is the plain loss",
    ),
    Broken(
        idea="a device is given the wrong block",
        old="lambda index: file[index])",
        new="lambda index: np.roll(file, 1, axis=0)[index] if file.ndim else file[index])",
        claim="restored on any mesh, the state is the same bits",
    ),
)


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through: none of its claims fails."""
    assert outcomes.as_it_stands == ""


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
