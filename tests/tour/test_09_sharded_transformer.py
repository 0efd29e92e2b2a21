"""Each claim of the tour of the sharded transformer fails when its idea is taken out."""

import pytest
from tests.tour.breaking import Broken, Outcomes

BROKEN = [
    Broken(
        idea="a key for each shard",
        old='jax.lax.axis_index("tensor") * here + jnp.arange(here)',
        new='jax.lax.axis_index("tensor") * 1000 + jnp.arange(here)',
        claim="the weights made in parts are, bit for bit, those that one device makes",
    ),
    Broken(
        idea="moments that are whole on every device",
        old="adam.init(params)}",
        new="adam.init(jax.reshard(params, jax.NamedSharding(mesh, P())))}",
        claim="each device holds its quarter of weights and moments, to the byte",
    ),
    Broken(
        idea="the whole gathered on every device",
        old=(
            "    return shape[-2] ** -0.5 * jax.vmap(lambda number: normal(jax.random.fold_in(key, number)), "
            "out_axes=cut)(numbers)\n"
        ),
        new=(
            "    part = shape[-2] ** -0.5 * jax.vmap(lambda number: normal(jax.random.fold_in(key, number)), "
            "out_axes=cut)(numbers)\n"
            '    whole = jax.lax.all_gather(part, "tensor", axis=cut, tiled=True)\n'
            "    return jax.lax.dynamic_slice_in_dim(whole, numbers[0], here, cut)\n"
        ),
        claim="the init makes nothing near the whole on any device",
    ),
    Broken(
        idea="the maximum of gathered logits",
        old="jax.lax.stop_gradient(logits).max(-1)",
        new='jax.lax.all_gather(jax.lax.stop_gradient(logits), "tensor", axis=-1, tiled=True).max(-1)',
        claim="a step never gathers: no whole weights, no whole logits",
    ),
    Broken(
        idea="spread at each use",
        old="h = spread(jax.nn.standardize(x))",
        new="h = (jax.nn.standardize(x))",
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
        old='one_hot(ids - jax.lax.axis_index("tensor") * size, size)',
        new='one_hot(ids - 0 * jax.lax.axis_index("tensor") * size, size)',
        claim="the sharded loss is the plain loss",
    ),
    Broken(
        idea="a z-loss that teaches nothing",
        old="+ 1e-4 * log_z**2).mean()",
        new="+ 1e-4 * jax.lax.stop_gradient(log_z) ** 2).mean()",
        claim="the gradients of all weights are the plain ones",
    ),
    Broken(
        idea="another order of batches",
        old="train(alone, plain, range(1, STEPS))",
        new="train(alone, plain, range(STEPS - 1, 0, -1))",
        claim="forty steps of Adam over eight devices are forty steps on one",
    ),
    Broken(
        idea="a tenth of the steps",
        old="STEPS = 40",
        new="STEPS = 4",
        claim="the model learns more than how frequent each character is",
    ),
    Broken(
        idea="the next character as the target",
        old="lambda state, ids, _: here(state, ids, ids)",
        new="lambda state, ids, following: here(state, ids, following)",
        claim="a model asked for its own input has almost no loss, and has learned nothing",
    ),
    Broken(
        idea="every copy is written",
        old="for shard in leaf.addressable_shards if shard.replica_id == 0",
        new="for shard in leaf.addressable_shards",
        claim="every number is written once",
    ),
    Broken(
        idea="the shape of the tree in a pickle",
        old="def save(folder: Path, state: Tree) -> None:\n",
        new=(
            "def save(folder: Path, state: Tree) -> None:\n"
            "    import pickle\n"
            "\n"
            '    (folder / "tree.pickle").write_bytes(pickle.dumps(jax.tree.structure(state)))\n'
        ),
        claim="nothing in the checkpoint is a pickle",
    ),
    Broken(
        idea="a device is given the wrong block",
        old="lambda index: file[index])",
        new="lambda index: np.roll(file, 1, axis=0)[index] if file.ndim else file[index])",
        claim="restored on any mesh, the state is the same bits",
    ),
    Broken(
        idea="moments left behind",
        old="for begin in (state, restored[2, 4])",
        new='for begin in (state, restored[2, 4] | {"adam": init_here(key)["adam"]})',
        claim="on its own mesh the run goes on as if it had never stopped, bit for bit",
    ),
    Broken(
        idea="the batches begin again",
        old="restored[4, 2], onward)",
        new="restored[4, 2], range(10))",
        claim="on another mesh the run goes on, equal up to the order of sums",
    ),
]


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through, so that none of its claims fails, and saves a picture."""
    outcomes.assert_it_holds()


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
