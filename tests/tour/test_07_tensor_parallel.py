"""Each central claim of the tour of tensor parallelism fails when its idea is taken out."""

import pytest
from tests.tour.breaking import Broken, Outcomes

BROKEN = [
    Broken(
        idea="a matrix that is left whole",
        old='"proj": ROWS,',
        new='"proj": P(),',
        claim="an eighth on each device",
    ),
    Broken(
        idea="every device adds the same columns",
        old="add_up(mlp(x, w))))",
        new="jax.lax.pmean(mlp(x, w), 'tensor')))",
        claim="columns, then rows: the MLP of one device",
    ),
    Broken(
        idea="no f: nothing is summed backwards",
        old="f.defvjp(lambda x: (same(x), None), lambda _, grad: (add_up(grad),))",
        new="f.defvjp(lambda x: (same(x), None), lambda _, grad: (same(grad),))",
        claim="hand-made f and g are right under check_vma=False",
    ),
    Broken(
        idea="no g: the gradient of the sum is a sum",
        old="g.defvjp(lambda x: (add_up(x), None), lambda _, grad: (same(grad),))",
        new="g.defvjp(lambda x: (add_up(x), None), lambda _, grad: (add_up(grad),))",
        claim="hand-made f and g are right under check_vma=False",
    ),
    Broken(
        idea="all heads on every device",
        old="partial(layer, heads=1, leave=add_up)",
        new="partial(layer, heads=8, leave=add_up)",
        claim="every way gives the layer of one device",
    ),
    Broken(
        idea="a sum for each of the two terms",
        old='leave(attention(h, w, heads) + mlp(h, w)) + w["bias"]',
        new='leave(attention(h, w, heads)) + leave(jnp.tanh(mlp(h, w))) + w["bias"]',
        claim="half the bytes are sent, forwards and with gradients",
    ),
    Broken(
        idea="f left to every use",
        old='"side by side": on_grid(beside, vary)',
        new='"side by side": on_grid(beside, same)',
        claim="half the bytes are sent, forwards and with gradients",
    ),
    Broken(
        idea="the bias in the sum",
        old='leave(attention(h, w, heads) + mlp(h, w)) + w["bias"]',
        new='leave(attention(h, w, heads) + mlp(h, w) + w["bias"])',
        claim="side by side on the grid is side by side on one device",
    ),
]


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through: none of its claims fails."""
    assert outcomes.as_it_stands == ""


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
