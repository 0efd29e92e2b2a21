"""Each claim of the tour of named axes fails when its idea is taken out."""

import pytest
from tests.tour.breaking import Broken, Outcomes

BROKEN = [
    Broken(
        idea="the layers called one by one",
        old="x = by_scan(x) if scanned else",
        new="x = by_scan(x) if scanned is None else",
        claim="a scan has as many lines for eight layers as for one",
    ),
    Broken(
        idea="a scan in both",
        old="[compiled(depth, scanned=scanned) for depth",
        new="[compiled(depth, scanned=True) for depth",
        claim="a program that calls its layers grows with them",
    ),
    Broken(
        idea="one depth for every scan",
        old="replace(CONFIG, num_layers=depth)",
        new="replace(CONFIG, num_layers=8 if scanned else depth)",
        claim="another depth is another program",
    ),
    Broken(
        idea="the name spelt right",
        old='assert hax.shard(weight, {"embd": "data"})',
        new='assert hax.shard(weight, {"embed": "data"})',
        claim="a name that no array has is ignored",
    ),
    Broken(
        idea="nothing compiled",
        old="pin = jax.jit(hax.auto_sharded)",
        new="pin = hax.auto_sharded",
        claim="a compiled function keeps the mapping that it was traced under",
    ),
    Broken(
        idea="outside jit",
        old="unpinned = jax.jit(partial(hax.shard, mapping={}))(split[1]).array",
        new="unpinned = hax.shard(split[1], {}).array",
        claim="inside jit an array without a mapped name is not pinned",
    ),
    Broken(
        idea="arguments that are split before",
        old="for given in (whole, split)]",
        new="for given in (split, split)]",
        claim="named_jit distributes no argument; a product over a split name is one sum",
    ),
    Broken(
        idea="the loss of one device's rows",
        old="    run(name, by_names, *mapping)\n",
        new=(
            '    own = 16 // mapping[0].shape["data"]\n'
            '    run(name, lambda m, *pair: by_names(m, *(x["batch", :own] for x in pair)), *mapping)  # noqa: '
            "B023\n"
        ),
        claim="data parallel: the losses are those of one device",
    ),
    Broken(
        idea="moments that are whole everywhere",
        old="hax.partitioning.pspec_for(STATE, parameters)",
        new="(hax.partitioning.pspec_for(MODEL, parameters), hax.partitioning.pspec_for(STATE[1], {}))",
        claim="names and mapping say what is stored",
    ),
    Broken(
        idea="a mapping to an axis that the model does not have",
        old='{"batch": "data"}, {"embed": "data"}, {"heads"',
        new='{"batch": "data"}, {"embd": "data"}, {"heads"',
        claim="FSDP stores an eighth of all but a few biases",
    ),
    Broken(
        idea="the two gradients of the table summed as one",
        old=" + MODEL.token_embedding.array.size + 1",
        new=" + 1",
        claim="data parallel sums each gradient once",
    ),
    Broken(
        idea="the weights gathered once for all",
        old='COSTS["data parallel"].sent_bytes, COSTS["FSDP"]\n',
        new=(
            'COSTS["data parallel"].sent_bytes, COSTS["FSDP"]\n'
            "whole_first = jax.jit(lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(line, "
            "jax.P())))\n"
            "with jax.set_mesh(line):\n"
            "    fsdp = cost(whole_first, hax.shard(MODEL, FSDP).blocks)\n"
        ),
        claim="no gather of FSDP makes more than one matrix",
    ),
    Broken(
        idea="a reduce-scatter by hand",
        old='COSTS["data parallel"].sent_bytes, COSTS["FSDP"]\n',
        new=(
            'COSTS["data parallel"].sent_bytes, COSTS["FSDP"]\n'
            'scatter = partial(jax.lax.psum_scatter, axis_name="data", tiled=True)\n'
            'by_hand = jax.jit(jax.shard_map(scatter, mesh=line, in_specs=jax.P(), out_specs=jax.P("data")))\n'
            "fsdp = replace(fsdp, collectives=fsdp.collectives + cost(by_hand, jnp.ones(8)).collectives)\n"
        ),
        claim="XLA for CPU makes no reduce-scatter of its own",
    ),
    Broken(
        idea="a loss of each device's own rows",
        old='run("left to XLA", by_names, line, FSDP, None)',
        new=(
            'run("left to XLA", lambda model, tokens, targets: by_names(model, tokens["batch", :2], '
            'targets["batch", :2]), line, FSDP, None)'
        ),
        claim="the losses do not show that a pin is lost",
    ),
    Broken(
        idea="the pin kept",
        old='run("left to XLA", by_names, line, FSDP, None)',
        new='run("left to XLA", by_names, line, FSDP, BATCH)',
        claim="without auto_sharded a step sends several times as much, and needs as much more memory",
    ),
    Broken(
        idea="the batch as one more axis",
        old='run("vmap", row_by_row, line,',
        new='run("vmap", by_names, line,',
        claim="a vmap hides the batch from auto_sharded",
    ),
    Broken(
        idea="activations by their heads alone",
        old="layout, f32 = Layout.over(",
        new='COMPUTE = {"heads": "tensor"}\nlayout, f32 = Layout.over(',
        claim="the trainer's two tables are those of the tour",
    ),
    Broken(
        idea="a z-loss in the trainer alone",
        old="HeadLoss(Vocab.size, 4096, 0.0,",
        new="HeadLoss(Vocab.size, 4096, 1e-3,",
        claim="the trainer's losses are those of the tour",
    ),
    Broken(
        idea="data as one axis in the trainer too",
        old="reshape(1, 2, 2, 1, 1, 2)",
        new="reshape(1, 1, 4, 1, 1, 2)",
        claim="the trainer gathers and scatters no matrix over more than two devices",
    ),
]


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through, so that none of its claims fails, and saves a picture."""
    outcomes.assert_it_holds()


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
