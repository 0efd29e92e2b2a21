"""Keys and values passed around a ring: the numbers of one device, equal work for all, and nothing sent in vain."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.long import all_but
from tests.train.grids import layout_over
from tests.train.test_attention import assert_close, inputs, with_gradients
from tests.train.test_context import GEMMA, GPT2_WITH_DROPOUT, PRODUCTS, of_one_device, over_context
from tests.train.test_meshes import NUM_STEPS, run

from shardwise.job.kernels import Kernel
from shardwise.plan.flops import traced_flops
from shardwise.train import ring, splash_tiles
from shardwise.train.attention import blockwise, plain
from shardwise.train.scores import Scores
from shardwise.train.splash_tiles import tile_kernel
from shardwise.train.state import Program

Array = jax.Array
MakeProgram = Callable[..., Program]
FLOAT32 = jnp.dtype("float32")
RING = "mesh.contextStrategy=ring"
BENT = Scores(40, softcap=5.0)
around = partial(over_context, strategy="ring")


@pytest.mark.parametrize("kernel", ["plain", "blockwise"])
@pytest.mark.parametrize(
    ("ways", "scores", "documents"),
    [
        (2, Scores(), True),
        (4, BENT, False),
        (3, BENT._replace(in_window=jnp.array(True)), True),
        (4, BENT._replace(in_window=jnp.array(False)), True),
    ],
)
def test_attention_is_that_of_one_device(kernel: Kernel, ways: int, scores: Scores, *, documents: bool) -> None:
    """With shared heads, documents, windows and caps: outputs, and gradients of queries, keys and values.

    A window of 40 positions hides whole chunks of some devices from others.
    """
    q, k, v, segments = inputs(64 * ways, 8, documents=documents)
    q = jnp.concatenate([q, 2 * q], axis=1)
    expected = with_gradients(partial(plain, scores=scores), q, k, v, segments)
    layout = layout_over(context=ways, tensor=2)
    with jax.set_mesh(layout.mesh):
        found = with_gradients(partial(around, layout, kernel, scores), q, k, v, segments)
    assert_close(jax.device_get(found), expected, 1e-5)


@pytest.mark.parametrize(
    ("ways", "scores"),
    [
        (2, Scores(200, softcap=5.0)),
        pytest.param(3, Scores(), marks=pytest.mark.long),
        (3, Scores(130, jnp.array(True))),
        pytest.param(3, Scores(130, jnp.array(False)), marks=pytest.mark.long),
    ],
    ids=["bent", "plain", "window", "no window"],
)
def test_splash_is_that_of_one_device(monkeypatch: pytest.MonkeyPatch, ways: int, scores: Scores) -> None:
    """The TPU kernel, interpreted, tile by tile, and its gradients by the logarithms of the sums of all tiles."""
    monkeypatch.setattr(splash_tiles, "tile_kernel", partial(tile_kernel, interpret=True))
    q, k, v, segments = inputs(256 * ways, 128, documents=True)
    q = jnp.concatenate([q, 2 * q], axis=1)
    expected = with_gradients(partial(plain, scores=scores), q, k, v, segments)
    layout = layout_over(context=ways)
    with jax.set_mesh(layout.mesh):
        found = with_gradients(partial(around, layout, "splash", scores), q, k, v, segments)
    assert_close(jax.device_get(found), expected, 1e-5)


@pytest.mark.parametrize("ways", [2, 4, 8])
def test_devices_share_the_work_of_one(ways: int) -> None:
    """Forward and backward, the program's products on all devices are those of one device within 5 %.

    All devices run the same program, and where it branches each way has the same products: largest over smallest is 1.
    """
    length = 64 * ways
    q, k, v = (jax.ShapeDtypeStruct((1, 2, length, 8), FLOAT32) for _ in range(3))
    layout = layout_over(context=ways)

    def traced(attention: Callable[..., Array]) -> jax.extend.core.ClosedJaxpr:
        return jax.make_jaxpr(jax.grad(lambda q, k, v: attention(q, k, v).sum(), argnums=(0, 1, 2)))(q, k, v)

    with jax.set_mesh(layout.mesh):
        program = traced(partial(around, layout, "blockwise", Scores(), segments=None))
    several = traced_flops(program.jaxpr, dict(layout.mesh.shape))
    one = traced_flops(traced(partial(blockwise, segments=None, block=32)).jaxpr, {})

    branches = [one.params["branches"] for one, _ in _equations(program.jaxpr) if "branches" in one.params]
    assert {len({traced_flops(branch.jaxpr, {}) for branch in each}) for each in branches} == {1}
    assert 0.95 * one <= several <= 1.05 * one


@pytest.mark.usefixtures("as_a_trainer")  # JAX's cache keeps no program with such a loop right
def test_the_turns_may_be_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are on accelerators, with the same numbers."""
    monkeypatch.setattr(ring, "on_cpu", lambda: False)
    q, k, v, segments = inputs(256, 8, documents=True)
    q = jnp.concatenate([q, 2 * q], axis=1)
    expected = with_gradients(partial(plain, scores=BENT), q, k, v, segments)
    layout = layout_over(context=4)
    with jax.set_mesh(layout.mesh):
        found = with_gradients(partial(around, layout, "plain", BENT), q, k, v, segments)
    assert_close(jax.device_get(found), expected, 1e-5)


@pytest.mark.parametrize("written_out", [True, False])
@pytest.mark.parametrize("ways", [2, 3, 8])
def test_nothing_is_sent_in_vain(monkeypatch: pytest.MonkeyPatch, ways: int, *, written_out: bool) -> None:
    """Keys and values pass all devices but their own, once forward and once backward, and gradients go home.

    That is 3 (ways - 1) parts of both, the least that a ring can send, in a loop and without.
    """
    monkeypatch.setattr(ring, "on_cpu", lambda: written_out)
    length = 32 * ways
    q, k, v = (jax.ShapeDtypeStruct((1, 2, length, 8), FLOAT32) for _ in range(3))
    layout = layout_over(context=ways)
    attended = partial(around, layout, "plain", Scores(), segments=None)
    with jax.set_mesh(layout.mesh):
        program = jax.make_jaxpr(jax.grad(lambda q, k, v: attended(q, k, v).sum(), argnums=(0, 1, 2)))(q, k, v)

    sends = [(one, times) for one, times in _equations(program.jaxpr) if one.primitive.name == "ppermute"]
    assert sum(times * x.aval.size for one, times in sends for x in one.invars) == 3 * 2 * (ways - 1) * (k.size // ways)


@pytest.mark.parametrize("name", all_but(["context 4 x data 2, no fsdp, 2 microbatches"], PRODUCTS))
def test_every_product_of_axes_gives_the_losses_of_one_device(make_program: MakeProgram, name: str) -> None:
    """Over 20 float32 steps, and from the very same bits: windows, caps, shared heads and packed documents."""
    devices, more = PRODUCTS[name]
    longer = [word for word in more if word.startswith("model.")]
    digest, losses = of_one_device(make_program, *longer)
    other_digest, other_losses = run(make_program(*GEMMA, *more, RING, num_devices=devices))

    assert losses[-1] < losses[0] - 0.1
    assert digest == other_digest
    assert len(losses) == NUM_STEPS
    np.testing.assert_allclose(other_losses, losses, rtol=1e-5, atol=0)


@pytest.mark.parametrize("remat", all_but(["full"], ["full", "dots", "none"]))
def test_dropout_and_every_remat_give_the_losses_of_one_device(make_program: MakeProgram, remat: str) -> None:
    """What the backward pass keeps of a layer changes no loss."""
    words = (*GPT2_WITH_DROPOUT, f"model.remat={remat}")
    digest, losses = run(make_program(*words, num_devices=1), num_steps=5)
    other_digest, other_losses = run(make_program(*words, "mesh.context=4", RING, num_devices=8), num_steps=5)

    assert digest == other_digest
    np.testing.assert_allclose(other_losses, losses, rtol=2e-6, atol=0)


def _equations(jaxpr: jax.extend.core.Jaxpr, times: int = 1) -> Iterator[tuple[Any, int]]:
    """Every equation of a program, and how often it runs."""
    for equation in jaxpr.eqns:
        yield equation, times
        inner = times * equation.params.get("length", 1)
        for part in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "jaxpr")):
            found: Any = getattr(part, "jaxpr", part)
            if hasattr(found, "eqns"):
                yield from _equations(found, inner)
