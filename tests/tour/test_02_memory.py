"""Each claim of the tour of memory fails when its idea is taken out."""

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
        idea="a key for each device, where one model is wanted",
        old="w = jax.jit(make_weights, out_shardings=everywhere)()",
        new=(
            'make_own = lambda: jax.random.normal(jax.random.key(jax.lax.axis_index("data")), (E, H))\n'
            "w = jax.jit(jax.shard_map(make_own, mesh=mesh, in_specs=(), out_specs=P(), check_vma=False))()"
        ),
        claim="one key makes one model",
    ),
    Broken(
        idea="a key for each copy",
        old="stack = jnp.stack([first] * 8)",
        new="stack = jnp.stack([jax.random.normal(jax.random.key(copy), (E, H)) for copy in range(8)])",
        claim="both ways give the same bits",
    ),
    Broken(
        idea="the stack born where it is wanted",
        old="stack = jnp.stack([first] * 8)",
        new="stack = jax.jit(lambda: jnp.stack([make_weights()] * 8), out_shardings=by_rows)()",
        claim="copying from device 0 takes ten weights there",
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
        idea="the batch whole on every device",
        old="x = jax.jit(lambda: jax.random.normal(jax.random.key(1), (B, E)), out_shardings=by_rows)()",
        new="x = jax.jit(lambda: jax.random.normal(jax.random.key(1), (B, E)), out_shardings=everywhere)()",
        claim="the profile is exactly the shards of x, w and y",
    ),
    Broken(
        idea="the result of the matmul wanted by columns",
        old="matmul = jax.jit(jnp.matmul)",
        new='matmul = jax.jit(jnp.matmul, out_shardings=NamedSharding(mesh, P(None, "data")))',
        claim="a matmul split by rows moves nothing",
    ),
    Broken(
        idea="only the first argument differentiated",
        old="jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))",
        new="jax.jit(jax.value_and_grad(loss))",
        claim="and those of x and w: the results take what their shapes say, on every device",
    ),
    Broken(
        idea="the weights differentiated instead of the input",
        old="(jax.jit(jax.value_and_grad(loss)), 4 + x.nbytes // 8)",
        new="(jax.jit(jax.value_and_grad(loss, argnums=1)), 4 + w.nbytes)",
        claim="the gradient of the first argument alone adds a fifth, not a second copy",
    ),
    Broken(
        idea="the weights differentiated without the input",
        old="(jax.jit(jax.value_and_grad(loss, argnums=(0, 1))), 4 + x.nbytes // 8 + w.nbytes)",
        new="(jax.jit(jax.value_and_grad(loss, argnums=1)), 4 + w.nbytes)",
        claim="gradients of both arguments double what lives",
    ),
    Broken(
        idea="a tanh of each row's sum, and not of every element",
        old="jnp.mean(jnp.tanh(x @ w))",
        new="jnp.mean(jnp.tanh(x @ w.sum(1)))",
        claim="the backward pass keeps the tanh of every element",
    ),
    Broken(
        idea="a larger array of NumPy's after the gradients",
        old="del one, both, A\n",
        new="del one, both, A\nnp.ones((4, *shape.shape))\n",
        claim="the peak is the float64 array's, whatever the gradients cost",
    ),
    Broken(
        idea="a matrix that was never float64",
        old="jnp.asarray(np.ones(shape.shape))",
        new="jnp.ones(shape.shape)",
        claim="the peak is the float64 array's, whatever the gradients cost",
    ),
    Broken(
        idea="the matrix differentiated instead of the vector",
        old="jax.jit(jax.grad(total))",
        new="jax.jit(jax.grad(total, argnums=1))",
        claim="a gradient by the vector alone adds next to nothing",
    ),
    Broken(
        idea="only the vector differentiated, seen in resident memory",
        old="jax.jit(jax.grad(total, argnums=(0, 1)))",
        new="jax.jit(jax.grad(total))",
        claim="the gradient by both adds a second matrix",
    ),
    Broken(
        idea="the gradients kept by a name",
        old="del one, both, A\n",
        new="del one, A\n",
        claim="nothing reaches the arrays any more",
    ),
    Broken(
        idea="the profile read before the last training",
        old="graph = call_graph()\n",
        new="graph = call_graph()\nagain = train()\n",
        claim="the graph accounts for every living byte",
    ),
    Broken(
        idea="both results of each round kept",
        old="HISTORY.append(more)",
        new="HISTORY.extend((newest, more))",
        claim="of three halves the newest is alive, and no tile",
    ),
    Broken(
        idea="only the newest of the others kept",
        old="HISTORY.append(more)",
        new="HISTORY[:] = [more]",
        claim="the list keeps all three of the others",
    ),
    Broken(
        idea="the list of results not cleared",
        old="HISTORY.clear()\n",
        new="",
        claim="without the list, only what train returned is alive",
    ),
]


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through, so that none of its claims fails, and saves a picture."""
    outcomes.assert_it_holds()


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
