"""Data parallelism by hand: each claim of the tour falls when its idea is taken out."""

import pytest
from tests.tour.breaking import Broken, Outcomes

BROKEN = [
    Broken(
        idea="padding is counted",
        old='real = batch["labels"] >= 0',
        new='real = batch["labels"] >= -1',
        claim="the devices count the real rows together",
    ),
    Broken(
        idea="the devices' gradients are averaged, though they are gradients of sums",
        old='jax.lax.psum(own(params, batch), "data")',
        new='(lambda sums: (jax.lax.pmean(sums[0], "data"), jax.lax.psum(sums[1], "data")))(own(params, batch))',
        claim="the summed gradient is one device's gradient of the whole batch",
    ),
    Broken(
        idea="only device 0's gradient counts",
        old='jax.lax.psum(own(params, batch), "data")',
        new=(
            'jax.lax.psum(jax.tree.map(lambda x: jnp.where(jax.lax.axis_index("data") == 0, x, 0), '
            'own(params, batch)), "data")'
        ),
        claim="the summed gradient is one device's gradient of the whole batch",
    ),
    Broken(
        idea="the minibatches after the first are forgotten",
        old="(jax.tree.map(jnp.add, total, part(rows)), None), empty, parts)[0]",
        new="(jax.tree.map(jnp.add, total, part(rows)), None), empty, jax.tree.map(lambda x: x[:1], parts))[0]",
        claim="the summed gradient is one device's gradient of the whole batch",
    ),
    Broken(
        idea="the devices' means are averaged",
        old="float(totals.sum() / counts.sum())",
        new="float((totals / counts).mean())",
        claim="summed losses over summed counts are the mean of the whole batch",
    ),
    Broken(
        idea="each device's mean weighs as much as its count",
        old="float((totals / counts).mean())",
        new="float(np.average(totals / counts, weights=counts))",
        claim="the mean of the devices' means is another number",
    ),
    Broken(
        idea="all gradients are gathered, and each device sums them itself",
        old="over_devices(lambda *args: summed(*args)[0])",
        new=(
            "over_devices(lambda *args: jax.tree.map("
            'lambda g: jax.lax.all_gather(g, "data", to="invarying").sum(0), own(*args)[0]))'
        ),
        claim="one sum sends 2 (n-1)/n of the gradient's bytes",
    ),
    Broken(
        idea="JAX is kept from summing",
        old="over_devices(lambda *args: accumulate(*args)[0])",
        new="over_devices(lambda *args: accumulate(*args)[0], check_vma=False)",
        claim="JAX's own sum is right",
    ),
    Broken(
        idea="each device differentiates a copy of its own, and the sum comes last",
        old="over_devices(lambda *args: accumulate(*args)[0])",
        new='over_devices(lambda *args: jax.lax.psum(own(*args)[0], "data"))',
        claim="JAX's own sum is made in every minibatch",
    ),
    Broken(
        idea="pcast before the psum of older code",
        old="jax.lax.psum(accumulate(params, batch)[0]",
        new="jax.lax.psum(own(params, batch)[0]",
        claim="psum after JAX's own sum makes the gradient eight times too large",
    ),
    Broken(
        idea="the lines of older code under today's check",
        old="over_devices(twice, check_vma=False)",
        new="over_devices(twice)",
        claim="the same lines are right with check_vma=False",
    ),
    Broken(
        idea="the state is not donated",
        old="after = jax.jit(step, donate_argnums=0)(state, batch)",
        new="after = jax.jit(step)(state, batch)",
        claim="a donated state is gone after the step",
    ),
    Broken(
        idea="of the step's results only the metrics are kept",
        old="after = jax.jit(step)(state, batch)",
        new="after = jax.jit(step)(state, batch)[2]",
        claim="without donation there are two states",
    ),
    Broken(
        idea="the step returns its gradients too",
        old="step = over_devices(partial(train_step, summed))",
        new=(
            "step = over_devices("
            "lambda carried, rows: (*train_step(summed, carried, rows), summed(carried[0], rows)[0]))"
        ),
        claim="with donation the step holds no more than before it",
    ),
    Broken(
        idea="the metrics are summed, and the gradients are not",
        old="many, losses, spread = train(step, everywhere, batch)",
        new=(
            "unsummed = partial(train_step, lambda *args: (own(*args)[0], summed(*args)[1]))\n"
            "many, losses, spread = train(over_devices(unsummed, check_vma=False), everywhere, batch)"
        ),
        claim="eight devices train the parameters of one",
    ),
    Broken(
        idea="only the loss is not summed",
        old="many, losses, spread = train(step, everywhere, batch)",
        new=(
            "def half(*args):\n    grads, sums = summed(*args)\n"
            '    return grads, sums | {"loss": (own(*args)[1]["loss"][0], sums["loss"][1])}\n'
            "unsummed = over_devices(partial(train_step, half), check_vma=False)\n"
            "many, losses, spread = train(unsummed, everywhere, batch)"
        ),
        claim="eight devices have the losses of one",
    ),
    Broken(
        idea="each device adds up in an order of its own",
        old="many, losses, spread = train(step, everywhere, batch)",
        new=(
            'def turned(x):\n    return jnp.roll(jax.lax.all_gather(x, "data"), jax.lax.axis_index("data"), 0).sum(0)\n'
            "in_turn = partial(train_step, lambda *args: jax.tree.map(turned, own(*args)))\n"
            "many, losses, spread = train(over_devices(in_turn, check_vma=False), everywhere, batch)"
        ),
        claim="the eight copies stay equal, bit for bit",
    ),
    Broken(
        idea="the step that is to be refused makes its sum",
        old="jax.eval_shape(over_devices(partial(train_step, own))",
        new="jax.eval_shape(over_devices(partial(train_step, summed))",
        claim="check_vma=True refuses a step without the sum",
    ),
    Broken(
        idea="the sum is made where it was to be left out",
        old="train(over_devices(partial(train_step, accumulate), check_vma=False)",
        new="train(over_devices(partial(train_step, summed), check_vma=False)",
        claim="without the sum the copies drift apart",
    ),
]


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through, so that none of its claims fails, and saves a picture."""
    outcomes.assert_it_holds()


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
