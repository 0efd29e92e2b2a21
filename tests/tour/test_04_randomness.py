"""What the tour of randomness claims fails when the idea is taken out of it."""

import pytest
from tests.tour.breaking import Broken, Outcomes

BROKEN = [
    Broken(
        idea="the key is folded over j besides",
        old='masks(("i",), P("i")), masks',
        new='masks(("i", "j"), P("i"), check=False), masks',
        claim="over i, copies along j stay copies",
    ),
    Broken(
        idea="the key is not folded",
        old="jax.random.fold_in(key, jax.lax.axis_index(name))",
        new="key",
        claim="there are as many masks as the axes have places over which the key is folded",
    ),
    Broken(
        idea="the refused key is folded over i only",
        old='refusal(masks, ("i", "j"), P("i"))',
        new='refusal(masks, ("i",), P("i"))',
        claim="shard_map refuses copies that would differ",
    ),
    Broken(
        idea="the unchecked key is folded over i only",
        old='broken = masks(("i", "j"), P("i"), check=False)',
        new='broken = masks(("i",), P("i"), check=False)',
        claim="unchecked, two copies of one array are different",
    ),
    Broken(
        idea="both masks belong to the sequence",
        old="for drop in (by_place, by_sequence)]",
        new="for drop in (by_sequence, by_sequence)]",
        claim="folded over i, the mask changes with the number of devices",
    ),
    Broken(
        idea="each device counts its sequences from zero",
        old='jax.lax.axis_index("i") * len(x) + jnp.arange(len(x))',
        new="jnp.arange(len(x))",
        claim="folded by sequence, the mask is the same on any mesh",
    ),
    Broken(
        idea="the key of another place in the layer",
        old="3 * LAYER + 2",
        new="3 * LAYER + 1",
        claim="the trainer drops the same",
    ),
    Broken(
        idea="a block is counted as if it were the whole matrix",
        old="row * C + column",
        new="row * c + column",
        claim="any block of the bits can be made alone",
    ),
    Broken(
        idea="every device wants the whole matrix",
        old='out_specs=P("i", "j")))',
        new='out_specs=P("i", "j")), out_shardings=NamedSharding(mesh, P()))',
        claim="blocks made from their counters need no message",
    ),
    Broken(
        idea="the key is folded by the number of devices",
        old='made(function, 4, None, "i"))]',
        new='made(lambda key: function(jax.random.fold_in(key, 4)), 4, None, "i"))]',
        claim="each way gives the same bits on any mesh",
    ),
    Broken(
        idea="today's counters, by rows",
        old='cost(normal, "i", None, partitionable=False)',
        new='cost(normal, "i", None, partitionable=True)',
        claim="the old counters by rows need a whole matrix on each device",
    ),
    Broken(
        idea="the old counters by columns where they should be by rows",
        old='cost(normal, "i", None, partitionable=False)',
        new='cost(normal, None, "i", partitionable=False)',
        claim="the old counters by rows send more than a whole matrix",
    ),
    Broken(
        idea="the old counters by rows where they should be by columns",
        old='cost(normal, None, "i", partitionable=False)',
        new='cost(normal, "i", None, partitionable=False)',
        claim="the old counters by columns have each device compute the bits of all",
    ),
    Broken(
        idea="every device keeps the whole matrix",
        old='cost(normal, None, "i", partitionable=False)',
        new="cost(normal, partitionable=False)",
        claim="the old counters by columns need two matrices on each device",
    ),
    Broken(
        idea="one key for all rows",
        old='cost(key_per_row, "i"',
        new='cost(normal, "i"',
        claim="a key for each row needs no whole matrix",
    ),
    Broken(
        idea="a function that Haliax still has",
        old='refusal(getattr, hax.random, "generate_sharded")',
        new='refusal(getattr, hax.random, "normal")',
        claim="Haliax's generate_sharded is gone",
    ),
    Broken(
        idea="the old counters",
        old="cost(normal, *spec, partitionable=True)",
        new="cost(normal, *spec, partitionable=False)",
        claim="today's counters need three shards",
    ),
    Broken(
        idea="the weights are scaled by the largest of all",
        old="cost(normal, *spec, partitionable=True)",
        new="cost(lambda key: (lambda w: w / jnp.abs(w).max())(normal(key)), *spec, partitionable=True)",
        claim="today's counters need no message",
    ),
    Broken(
        idea="every device draws a scale for all columns",
        old="cost(normal, *spec, partitionable=True)",
        new=(
            "cost(lambda key: normal(key) * jax.random.uniform(jax.random.fold_in(key, 1), (C,)), "
            "*spec, partitionable=True)"
        ),
        claim="today each device does an eighth of the work",
    ),
    Broken(
        idea="the weights are not split",
        old='weights = made(normal, 8, "i", None)(key)',
        new="weights = made(normal, 8)(key)",
        claim="each device keeps an eighth of the weights",
    ),
    Broken(
        idea="the key is drawn, not folded",
        old="jax.random.fold_in(key, 1), jax",
        new="jax.random.split(key)[1], jax",
        claim="fold_in gives the same key under both ways to count",
    ),
    Broken(
        idea="the keys are folded, not drawn",
        old="1), jax.random.split(key))]",
        new="1), jax.random.fold_in(key, 2))]",
        claim="split gives other keys",
    ),
]


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through, so that none of its claims fails, and saves a picture."""
    outcomes.assert_it_holds()


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
