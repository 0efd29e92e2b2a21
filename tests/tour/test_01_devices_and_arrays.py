"""What the tour of devices and arrays claims fails when the idea is taken out of it."""

import pytest
from tests.tour.breaking import Broken, Outcomes

BROKEN = [
    Broken(
        idea="no device was asked for before",
        old="print(*jax.devices())\n",
        new="",
        claim="the number of devices is set before the first array is made",
    ),
    Broken(
        idea="every array is copied to all devices",
        old="NamedSharding(mesh, P(*spec))",
        new="NamedSharding(mesh, P())",
        claim="each device holds the bytes over the sizes of the named axes",
    ),
    Broken(
        idea="the shard's data in the shard's place",
        old="refused, sine = refusal(jnp.sin, shard)",
        new="refused, sine = refusal(jnp.sin, shard.data)",
        claim="jax.numpy takes arrays and no shards",
    ),
    Broken(
        idea="the shard's data is fetched first",
        old="jnp.sin(shard.data)\n",
        new="jnp.sin(jax.device_get(shard.data))\n",
        claim="what is made of a shard's data stays on the shard's device",
    ),
    Broken(
        idea="the matrix is split by columns where it should be by rows",
        old='(put(m, "i"), put(v))',
        new='(put(m, None, "i"), put(v, "i"))',
        claim="only a sum over a split dimension moves bytes, 3/2 of its result",
    ),
    Broken(
        idea="the numbers are not whole",
        old="whole_numbers(jax.random.key(i), shape).astype(jnp.float32)",
        new="jax.random.normal(jax.random.key(i), shape)",
        claim="each result has the bits of one device",
    ),
    Broken(
        idea="what is halved is not split",
        old='(lambda x: x / 2, (put(x, "i"),))',
        new="(lambda x: x / 2, (put(x),))",
        claim="half of a sharded array stays where the array is",
    ),
    Broken(
        idea="the columns are not split",
        old='(put(x, "i"), put(w, None, "j"), put(b, "j"))',
        new='(put(x, "i"), put(w), put(b))',
        claim="rows times columns is split over both axes",
    ),
    Broken(
        idea="the blocks of rows are no blocks",
        old='(put(m, "i"), put(v))',
        new="(put(m), put(v))",
        claim="blocks of rows are parts of the result, nothing is added",
    ),
    Broken(
        idea="the blocks of columns are of some rows only",
        old='(put(m, None, "i"), put(v, "i"))',
        new='(put(m, "j", "i"), put(v, "i"))',
        claim="blocks of columns are added, on every device",
    ),
    Broken(
        idea="the placed array is fetched first",
        old="followed, mixed = placed + jnp.ones(8)",
        new="followed, mixed = jax.device_get(placed) + jnp.ones(8)",
        claim="what nobody placed follows",
    ),
    Broken(
        idea="nobody placed the other one",
        old="jax.device_put(jnp.ones(8), jax.devices()[0])",
        new="jnp.ones(8)",
        claim="arrays that were placed on different devices do not mix",
    ),
    Broken(
        idea="it is said where the result lives",
        old="unsaid = refusal(jnp.dot, left, right)",
        new="unsaid = refusal(partial(jnp.dot, out_sharding=NamedSharding(explicit, P())), left, right)",
        claim="with explicit axes a sum over a split dimension must say where to",
    ),
    Broken(
        idea="the parts are not added up",
        old="jnp.dot(left, right, out_sharding=NamedSharding(explicit, spec))",
        new=(
            'jax.shard_map(jnp.dot, in_specs=(P(None, "i"), P("i")), out_specs=spec, mesh=explicit, '
            "check_vma=False)(left, right)"
        ),
        claim="wherever the result lives, it is the same",
    ),
    Broken(
        idea="the blocks of the second array are in another order",
        old="in_specs=P(each), out_specs=P(each)",
        new='in_specs=(P(each), P(("j", "i"))), out_specs=P(each)',
        claim="vmap, jit, shard_map and pmap compute the same bits",
    ),
    Broken(
        idea="the two matrices of a pair are on different devices",
        old="shape), each) for i, shape",
        new='shape), (each, ("j", "i"))[i]) for i, shape',
        claim="a function of each pair moves nothing",
    ),
    Broken(
        idea="pmap is a vmap in a jit",
        old='"pmap": jax.pmap(f)',
        new='"pmap": jax.jit(jax.vmap(f))',
        claim="today's pmap is a shard_map in a jit",
    ),
    Broken(
        idea="the result is fetched before it is halved",
        old='halved, gone = outs["pmap"] / 2',
        new='halved, gone = jnp.asarray(jax.device_get(outs["pmap"])) / 2',
        claim="a result of pmap stays sharded when it is halved",
    ),
    Broken(
        idea="the sharding that is still there",
        old='refusal(getattr, jax.sharding, "PmapSharding")',
        new='refusal(getattr, jax.sharding, "NamedSharding")',
        claim="PmapSharding is gone",
    ),
    Broken(
        idea="all matrices are made on device 0",
        old="jax.pmap(partial(jax.random.normal, shape=(128, 256)))",
        new="jax.vmap(partial(jax.random.normal, shape=(128, 256)))",
        claim="each device makes its own matrix and no other",
    ),
    Broken(
        idea="the devices' sums are added up",
        old="jax.pmap(lambda matrix: jnp.sum(matrix @ matrix.T))",
        new='jax.pmap(lambda matrix: jax.lax.psum(jnp.sum(matrix @ matrix.T), "k"), axis_name="k")',
        claim="local products and sums move nothing",
    ),
    Broken(
        idea="each device adds up its columns only",
        old="jax.pmap(lambda matrix: jnp.sum(matrix @ matrix.T))",
        new="jax.pmap(lambda matrix: jnp.sum(matrix @ matrix.T, axis=0))",
        claim="the host reads four bytes from each device",
    ),
    Broken(
        idea="a device for each row",
        old="refusal(jax.pmap(jnp.square), jnp.arange(9))",
        new="refusal(jax.pmap(jnp.square), jnp.arange(8))",
        claim="pmap needs a device for each row",
    ),
]


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through, so that none of its claims fails, and saves a picture."""
    outcomes.assert_it_holds()


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
