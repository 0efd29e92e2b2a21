"""Each claim of the tour of long sequences fails when its idea is taken out."""

import pytest
from tests.tour.breaking import Broken, Outcomes

pytestmark = pytest.mark.long  # minutes, and of its parts the trainer's own tests have each
BROKEN = [
    Broken(
        idea="gathered keys left in the order of the devices",
        old='jax.lax.all_gather(x, "context", tiled=True)[np.argsort(order.ravel())]',
        new='jax.lax.all_gather(x, "context", tiled=True)',
        claim="gathered: the loss and all gradients are those of one device",
    ),
    Broken(
        idea="back to front",
        old="front_to_back = np.arange(2 * N).reshape(N, 2)",
        new="front_to_back = np.arange(2 * N)[::-1].reshape(N, 2)",
        claim="front to back, the last device computes 31 blocks",
    ),
    Broken(
        idea="a chunk of each half, both in order",
        old="2 * N - 1 - np.arange(N)], 1)",
        new="np.arange(N) + N], 1)",
        claim="from both ends, every device computes 17",
    ),
    Broken(
        idea="the sum over the keys that are here",
        old="return out / total, counts[None], top + jnp.log(total)",
        new="return out / total, counts[None], top",
        claim="in a ring: the loss and all gradients are those of one device",
    ),
    Broken(
        idea="a chunk counted twice",
        old="counts = counts.at[turn].add(seen)",
        new="counts = counts.at[turn].add(2 * seen)",
        claim="in all, a device computes what it did with a gather",
    ),
    Broken(
        idea="chunks from front to back twice",
        old="lasts = {name: int(counts.max(0).sum()) for name, counts in turns.items()}",
        new='lasts = {name: int(turns["front to back"].max(0).sum()) for name in turns}',
        claim="turn by turn, both ends take 17 blocks, not 31",
    ),
    Broken(
        idea="a gather without its way back",
        old='(sent_by(steps["gather"], kind, *both) for',
        new="(sent_by(jax.jit(on_devices(gathered, both_ends)), kind, *both[:3]) for",
        claim="a gather sends seven parts, and a scatter sends seven back",
    ),
    Broken(
        idea="a ring without its way back",
        old='ring_bytes = sent_by(steps["ring"], "collective-permute", *both)',
        new='ring_bytes = sent_by(jax.jit(on_devices(in_ring, both_ends)), "collective-permute", *both[:3])',
        claim="a ring sends seven parts there, and seven and eight of gradients for the way back",
    ),
    Broken(
        idea="no gradient of values",
        old=(
            "def by_autodiff(order: Order, q: Array, k: Array, v: Array) -> tuple[Array, Array]:\n"
            "    return ring_forward(order, q, k, v)[:2]"
        ),
        new=(
            "def by_autodiff(order: Order, q: Array, k: Array, v: Array) -> tuple[Array, Array]:\n"
            "    return ring_forward(order, q, k, jax.lax.stop_gradient(v))[:2]"
        ),
        claim="by autodiff: the loss and all gradients are those of one device",
    ),
    Broken(
        idea="a gather twice",
        old='for n, attend in (("gather", gathered), ("ring", in_ring))}',
        new='for n, attend in (("gather", gathered), ("ring", gathered))}',
        claim="the ring holds two parts, not all eight",
    ),
    Broken(
        idea="the way back by hand twice",
        old='needed["a step, ring by autodiff"] = show.temporaries(autodiff, *both)',
        new='needed["a step, ring by autodiff"] = show.temporaries(steps["ring"], *both)',
        claim="autodiff keeps what it has computed of every part that came",
    ),
    Broken(
        idea="the sequence's own order",
        old="np.array_equal(zigzag(np.arange(2 * N), N), both_ends.ravel())",
        new="np.array_equal(zigzag(np.arange(2 * N), 1), both_ends.ravel())",
        claim="the trainer's order is that of both ends",
    ),
    Broken(
        idea="tokens in their own order",
        old="jax.device_put(zigzag(x, N, axis=2), by_position)",
        new="jax.device_put(x, by_position)",
        claim="the trainer: the loss and all gradients are those of one device",
    ),
    Broken(
        idea="the trainer's gather",
        old='sent_by(trainer_steps["ring"], ',
        new='sent_by(trainer_steps["gather"], ',
        claim="written out, the trainer's ring sends keys and values once: eight parts less",
    ),
]


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through, so that none of its claims fails, and saves a picture."""
    outcomes.assert_it_holds()


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
