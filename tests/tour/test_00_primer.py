"""What the primer claims fails when the idea is taken out of it."""

import pytest
from tests.tour.breaking import Broken, Outcomes

BROKEN = [
    Broken(
        idea="all examples meet one right matrix",
        old="batched = jax.vmap(jnp.matmul)",
        new="batched = jax.vmap(lambda left, right: left @ right[0], in_axes=(0, None))",
        claim="vmap gives the bits that a loop over the examples gives",
    ),
    Broken(
        idea="a loop over the examples instead of vmap",
        old="batched = jax.vmap(jnp.matmul)",
        new="batched = in_a_loop",
        claim="vmap of a matrix product is one equation, however large the batch",
    ),
    Broken(
        idea="the scan never counts the present element",
        old="total + value if inclusive else total",
        new="total",
        claim="both kinds of sum are the same by hand and by scan",
    ),
    Broken(
        idea="the two kinds of sum are exchanged",
        old="for inclusive in (0, 1)]) for way",
        new="for inclusive in (1, 0)]) for way",
        claim="jnp.cumsum is the inclusive sum",
    ),
    Broken(
        idea="both sums count the present element",
        old="for inclusive in (0, 1)]) for way",
        new="for inclusive in (1, 1)]) for way",
        claim="the exclusive loop and the inclusive scan are different sums",
    ),
    Broken(
        idea="the compiled loop counts the present element",
        old="static_argnums=1)(values, 0)",
        new="static_argnums=1)(values, 1)",
        claim="the Python loop compiles, and its sums are right",
    ),
    Broken(
        idea="a scan stands where the loop should",
        old="for f in (by_hand, by_scan))\npredicted",
        new="for f in (by_scan, by_scan))\npredicted",
        claim="the unrolled loop has n + 3n(n-1)/2 equations",
    ),
    Broken(
        idea="a loop stands where the scan should",
        old="for f in (by_hand, by_scan))\npredicted",
        new="for f in (by_hand, by_hand))\npredicted",
        claim="the program of a scan does not grow with the length",
    ),
    Broken(
        idea="the right matrices stand in each other's place",
        old='{"one": b[0], "two": [b[1]]}',
        new='{"one": b[1], "two": [b[0]]}',
        claim="tree.map applies a function to leaves of equal places",
    ),
    Broken(
        idea="the full tree does not map the second stack",
        old="[0, ((0, 0),), ((0, None),)]",
        new="[0, ((0, None),), ((0, None),)]",
        claim="a prefix counts for all leaves below it",
    ),
    Broken(
        idea="the second stack is mapped too",
        old="[0, ((0, 0),), ((0, None),)]",
        new="[0, ((0, 0),), ((0, 0),)]",
        claim="what is not mapped meets every example",
    ),
    Broken(
        idea="jnp.sum is given an array",
        old="refusal(jnp.sum, [a, b])",
        new="refusal(jnp.sum, a)",
        claim="the functions of jax.numpy take arrays, not pytrees",
    ),
    Broken(
        idea="each layer has a key of its own",
        old="for key in (first, second))",
        new="for key in (second, second))",
        claim="two layers made from one key begin with the same numbers",
    ),
    Broken(
        idea="all layers are made from one key",
        old="for key in (first, second))",
        new="for key in (first, first))",
        claim="two layers made from split keys share no number",
    ),
    Broken(
        idea="the field is declared",
        old='no field is declared."""\n',
        new='no field is declared."""\n\n    weights: Array\n',
        claim="the fields of a module must be declared",
    ),
    Broken(
        idea="an optimizer without moments",
        old="optax.adam(0.01)",
        new="optax.sgd(0.01)",
        claim="a model with Adam takes 12 bytes for each parameter, all on device 0",
    ),
    Broken(
        idea="an epsilon as large as the gradients",
        old="optax.adam(0.01)",
        new="optax.adam(0.01, eps=1.0)",
        claim="Adam's first step moves every weight by the learning rate",
    ),
    Broken(
        idea="the steps go up the gradient",
        old="optax.adam(0.01)",
        new="optax.adam(-0.01)",
        claim="the loss falls",
    ),
    Broken(
        idea="the sum is over the other name",
        old="named / hax.sum(named, Column)",
        new="named / hax.sum(named, Row)",
        claim="by name each row sums to one, up to float32's rounding",
    ),
    Broken(
        idea="the sums stay a column",
        old="square / square.sum(axis=1)",
        new="square / square.sum(axis=1, keepdims=True)",
        claim="by position no row sums to one",
    ),
    Broken(
        idea="the transposed array has its old names",
        old="turned = named.rearrange((Column, Row))",
        new="turned = hax.named(square.T, (Row, Column))",
        claim="the order of named axes does not matter",
    ),
    Broken(
        idea="both ranges have one name",
        old="refusal(lambda: hax.arange(Position) >= hax.arange(Key))",
        new="refusal(lambda: hax.arange(Position) >= hax.arange(Position))",
        claim="broadcasting by name adds no axis unasked",
    ),
    Broken(
        idea="no position sees itself",
        old=".broadcast_axis(Key) >= hax",
        new=".broadcast_axis(Key) > hax",
        claim="comparing two named ranges gives the causal mask",
    ),
    Broken(
        idea="the sum is not mapped",
        old="hax.vmap(lambda image: hax.sum(image, (Row, Column)), Batch)(images)",
        new="hax.sum(images)",
        claim="vmap over a name maps that axis",
    ),
]


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through, so that none of its claims fails, and saves a picture."""
    outcomes.assert_it_holds()


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
