"""Each claim of the tour of the pipeline fails when its idea is taken out."""

import pytest
from tests.tour.breaking import Broken, Outcomes

pytestmark = pytest.mark.long  # minutes, and of its parts the trainer's own tests have each
BROKEN = [
    Broken(
        idea="a row of stages that is no ring",
        old="[(s, (s + 1) % S) for s in range(S)]",
        new="[(s, s + 1) for s in range(S - 1)]",
        claim="the last stage's results are those of one device, bit for bit",
    ),
    Broken(
        idea="a stage that never stops",
        old="busy = (item >= 0) & (item < M * rounds)",
        new="busy = item >= 0",
        claim="the idle part of what the stages logged is (S - 1) / (M v + S - 1)",
    ),
    Broken(
        idea="every stage says its loss",
        old="jnp.where(last, jnp.mean((outputs[0] - targets) ** 2), 0)",
        new="jnp.where(last | True, jnp.mean((outputs[0] - targets) ** 2), 0)",
        claim="the loss is that of one device",
    ),
    Broken(
        idea="no gradient of what came",
        old="by_hand, logs_back = gradient(visit), {}",
        new="by_hand, logs_back = gradient(lambda w, turn, x: visit(w, turn, jax.lax.stop_gradient(x))), {}",
        claim="the gradients of all layers are those of one device",
    ),
    Broken(
        idea="noted on the way there",
        old="by_hand, logs_back = gradient(visit), {}",
        new=(
            "noted = jax.custom_vjp(lambda y, *_: y)\n"
            "noted.defvjp(lambda y, *seen: (note(seen, y)[0], seen), lambda _, grad: (grad, None, None))\n"
            "by_hand, logs_back = gradient(visit), {}"
        ),
        claim="backward, the stages work in a mirror",
    ),
    Broken(
        idea="GPipe with the first microbatch back first",
        old="[*range(M), *range(-M, 0)]",
        new="[*range(M), *range(-1, ~M, -1)]",
        claim="the schedule computed for GPipe is the one that the stages logged",
    ),
    Broken(
        idea="no microbatch in advance",
        old="[min(M, S - stage) for stage in range(S)]",
        new="[1 for stage in range(S)]",
        claim="1F1B takes as long as GPipe: the bubble is the same",
    ),
    Broken(
        idea="all microbatches in advance",
        old="[min(M, S - stage) for stage in range(S)]",
        new="[M for stage in range(S)]",
        claim="1F1B keeps at most S - s microbatches, not M",
    ),
    Broken(
        idea="the weights gathered",
        old="spent = cost(by_hand, ",
        new=(
            "wide = gradient(lambda w, turn, x: visit(jax.tree.map(lambda a: jax.lax.all_gather(a, "
            '"stage")[0], w), turn, x))\n'
            "spent = cost(wide, "
        ),
        claim="no weights and no gradients are gathered or sent",
    ),
    Broken(
        idea="no way back",
        old="spent = cost(by_hand, ",
        new="spent = cost(jax.jit(lambda *given: by_hand(*given)[0]), ",
        claim="a step sends M + S - 1 activations each way, and the loss",
    ),
    Broken(
        idea="nothing recomputed",
        old="gradient(jax.checkpoint(visit))",
        new="gradient(visit)",
        claim="recomputed, a microbatch more costs less than three activations",
    ),
    Broken(
        idea="layers that are not dealt out",
        old="{name: trainer.dealt(schedule, w) for name, w in weights.items()}",
        new="weights",
        claim="the trainer's stages give the results of one device, bit for bit",
    ),
    Broken(
        idea="the loss of its own microbatches alone",
        old='jax.lax.psum(loss, "pipeline"), outputs, grads',
        new="loss, outputs, grads",
        claim="the trainer's loss is that of one device",
    ),
    Broken(
        idea="a gradient that stays on its stage",
        old="return layers({name: pick(w) for name, w in mine.items()}, x)",
        new="return layers({name: pick(w) for name, w in mine.items()}, jax.lax.stop_gradient(x))",
        claim="the trainer's gradients are those of one device, each with its layer",
    ),
]


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through, so that none of its claims fails, and saves a picture."""
    outcomes.assert_it_holds()


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
