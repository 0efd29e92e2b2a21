"""Each claim of the tour of the vocabulary fails when its idea is taken out."""

import pytest
from tests.tour.breaking import Broken, Outcomes

BROKEN = [
    Broken(
        idea="every device with the same window",
        old='return tokens - lax.axis_index("tensor") * size',
        new="return tokens - 0 * size",
        claim="each way finds the rows of one device, bit for bit",
    ),
    Broken(
        idea="rows that are not at home left in the sum",
        old="jnp.where(here[:, None], table[row.clip(0, len(table) - 1)], 0)",
        new="table[row.clip(0, len(table) - 1)]",
        claim="each way finds the rows of one device, bit for bit",
    ),
    Broken(
        idea="the table by columns whole on every device",
        old='tables = {way: place(w["table"], spec) for way',
        new='tables = {way: place(w["table"], ROWS if spec == ROWS else P()) for way',
        claim="the tables take the same",
    ),
    Broken(
        idea="by index also where the table is cut by columns",
        old="gather(jax.nn.one_hot(tokens, len(table)) @ table)",
        new="gather(table[tokens])",
        claim="by columns, each device has one-hot vectors of full length",
    ),
    Broken(
        idea="the table by vocabulary gathered first",
        old='lax.psum(jax.nn.one_hot(window(tokens, len(table)), len(table)) @ table, "tensor")',
        new='jax.nn.one_hot(tokens, VOCAB) @ lax.all_gather(table, "tensor", tiled=True, to="invarying")',
        claim="by vocabulary they are an eighth as long",
    ),
    Broken(
        idea="one-hot vectors by index too",
        old='ROWS), "by columns": (by_columns, COLUMNS), "by index": (by_index, ROWS)}',
        new='ROWS), "by columns": (by_columns, COLUMNS), "by index": (by_vocabulary, ROWS)}',
        claim="by index there are none",
    ),
    Broken(
        idea="the columns put together by a sum",
        old="    return gather(jax.nn.one_hot(tokens, len(table)) @ table)",
        new=(
            "    part, first = jax.nn.one_hot(tokens, len(table)) @ table, lax.axis_index('tensor') * table.shape[1]\n"
            "    at_home = (jnp.arange(WIDTH) >= first) & (jnp.arange(WIDTH) < first + table.shape[1])\n"
            "    return lax.psum(jnp.where(at_home, jnp.tile(part, 8), 0), 'tensor')"
        ),
        claim="a gather moves half of what a sum does",
    ),
    Broken(
        idea="every device begins at a position of its own",
        old="gather(table[:TOKENS])",
        new='gather(lax.dynamic_slice_in_dim(table, lax.axis_index("tensor"), TOKENS))',
        claim="the gathered columns are the positions",
    ),
    Broken(
        idea="the whole table of positions gathered first",
        old="gather(table[:TOKENS])",
        new="gather(table)[:TOKENS]",
        claim="rows first, then the gather: half the bytes for half the length",
    ),
    Broken(
        idea="the words of the devices interleaved",
        old="gather(h @ head.T)",
        new='lax.all_gather(h @ head.T, "tensor", axis=2, to="invarying").reshape(TOKENS, VOCAB)',
        claim="gathered, they are the logits of one device",
    ),
    Broken(
        idea="a zero counts as a hit where the target is not at home",
        old="target == 0)",
        new='lax.pmax(((one_hot * logits).sum(-1) == 0).astype(int), "tensor") == 1)',
        claim="the free accuracy is that of argmax, token by token",
    ),
    Broken(
        idea="the loss is less the target's logit alone",
        old="Terms(log_sum - target",
        new="Terms(-target",
        claim="a right guess has a logit of 0 and still a loss",
    ),
    Broken(
        idea="no sum of the exponentials",
        old='jnp.log(lax.psum(jnp.exp(logits).sum(-1), "tensor"))',
        new='jnp.log(lax.pmean(jnp.exp(logits).sum(-1), "tensor"))',
        claim="cross entropy and log Z are those of one device",
    ),
    Broken(
        idea="the largest logit left out of log Z",
        old="log_sum + top, log_sum, target == 0",
        new="log_sum, log_sum, target == 0",
        claim="cross entropy and log Z are those of one device",
    ),
    Broken(
        idea="logits gathered for the loss",
        old='jnp.log(lax.psum(jnp.exp(logits).sum(-1), "tensor"))',
        new="jnp.log(jnp.exp(gather(logits)).sum(-1))",
        claim="the loss has no array above an eighth of the logits",
    ),
    Broken(
        idea="an accuracy that needs a sum of its own",
        old="target == 0)",
        new='lax.psum((one_hot * (logits == 0)).sum(-1), "tensor") == 1)',
        claim="three numbers a token instead of every logit",
    ),
    Broken(
        idea="a gradient that goes through the largest logit too",
        old="log_sum + top, log_sum, target == 0",
        new="log_sum + top, log_sum - shift + lax.stop_gradient(shift), target == 0",
        claim="and it pushes down by the same force wherever the logits are",
    ),
    Broken(
        idea="a z-loss that looks away from the largest logit",
        old='for log in ("log_z", "log_sum"))',
        new='for log in ("log_sum", "log_sum"))',
        claim="the true z-loss has the slope 2 log Z, and turns where log Z is 0",
    ),
    Broken(
        idea="the true z-loss in both places",
        old='for log in ("log_z", "log_sum"))',
        new='for log in ("log_z", "log_z"))',
        claim="without the largest logit its value does not see the shift",
    ),
    Broken(
        idea="the loss without its z-loss",
        old="""    terms = split_terms(by_index(w["table"], tokens) + positions(w["position"]), w["head"], targets)
    return (terms.entropy + 1e-4 * jnp.square(terms.log_z)).mean()""",
        new="""    terms = split_terms(by_index(w["table"], tokens) + positions(w["position"]), w["head"], targets)
    return terms.entropy.mean()""",
        claim="the loss over devices is the loss of one device",
    ),
    Broken(
        idea="nobody knows which gradients differ between devices",
        old="split(split_loss, SPECS, P(), P())",
        new="jax.jit(jax.shard_map(split_loss, in_specs=(SPECS, P(), P()), out_specs=P(), check_vma=False))",
        claim="the gradients of all three tables are those of one device",
    ),
    Broken(
        idea="tokens looked up by one-hot vectors of full length",
        old='split_terms(by_index(w["table"], tokens)',
        new=(
            "split_terms(jax.nn.one_hot(tokens, VOCAB) "
            '@ lax.all_gather(w["table"], "tensor", tiled=True, to="invarying")'
        ),
        claim="no array of a training step is larger than an eighth of the logits",
    ),
    Broken(
        idea="gradients wanted whole on every device",
        old="jax.jit(jax.value_and_grad(run))",
        new="jax.jit(jax.value_and_grad(run), out_shardings=NamedSharding(mesh, P()))",
        claim="each gradient stays with its part",
    ),
    Broken(
        idea="the trainer without its z-loss",
        old="z_loss=1e-4",
        new="z_loss=0.0",
        claim="the trainer agrees",
    ),
    Broken(
        idea="all tokens in one block",
        old="block_tokens=64",
        new="block_tokens=TOKENS",
        claim="in blocks of tokens it needs less than the eighth",
    ),
]


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through, so that none of its claims fails, and saves a picture."""
    outcomes.assert_it_holds()


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
