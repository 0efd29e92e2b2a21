"""Matrix products: what they and their gradients equal, and the form in which XLA's CPU compiler gets them."""

import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwise.train.products import Dims, contract, product
from shardwise.train.state import Program
from shardwise.train.step import lower_step

Array = jax.Array
MakeProgram = Callable[..., Program]
NO_BATCH = ((), ())

SHAPES: list[tuple[str, tuple[int, ...], tuple[int, ...], Dims]] = [
    ("a layer that widens", (3, 5, 8), (8, 32), (((2,), (0,)), NO_BATCH)),
    ("one that narrows", (3, 5, 32), (32, 8), (((2,), (0,)), NO_BATCH)),
    ("heads go in", (3, 4, 5, 6), (4, 6, 8), (((1, 3), (0, 1)), NO_BATCH)),
    ("contracted in another order", (3, 6, 5, 4), (4, 8, 6), (((3, 1), (0, 2)), NO_BATCH)),
    ("scores", (2, 3, 5, 4), (2, 3, 7, 4), (((3,), (3,)), ((0, 1), (0, 1)))),
    ("values", (2, 3, 5, 7), (2, 3, 7, 4), (((3,), (2,)), ((0, 1), (0, 1)))),
]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    ("lhs_shape", "rhs_shape", "dims"), [row[1:] for row in SHAPES], ids=[row[0] for row in SHAPES]
)
def test_a_product_and_its_gradients_are_dot_generals(
    lhs_shape: tuple[int, ...], rhs_shape: tuple[int, ...], dims: Dims, dtype: jnp.dtype
) -> None:
    """Whatever is contracted in whatever order; gradients have their operand's dtype."""
    rng = np.random.default_rng(0)
    lhs, rhs = (jnp.asarray(rng.normal(size=shape), dtype) for shape in (lhs_shape, rhs_shape))

    def total(of: Callable[..., Array], lhs: Array, rhs: Array) -> Array:
        out = of(lhs, rhs, dims)
        return (out * jnp.cos(jnp.arange(out.size)).reshape(out.shape).astype(dtype)).sum()

    def value_and_gradients(of: Callable[..., Array]) -> tuple[Array, ...]:
        return (of(lhs, rhs, dims), *jax.jit(jax.grad(total, argnums=(1, 2)), static_argnums=0)(of, lhs, rhs))

    tolerance = 1e-6 if dtype == jnp.float32 else 1e-2
    for ours, theirs in zip(value_and_gradients(product), value_and_gradients(jax.lax.dot_general), strict=True):
        assert ours.dtype == theirs.dtype == dtype
        np.testing.assert_allclose(np.float32(ours), np.float32(theirs), rtol=tolerance, atol=tolerance * 10)


def test_a_contraction_is_accumulated_as_asked() -> None:
    """Products of bfloat16 are summed in, and come out as, float32: 4096 ones and a half are not 4096."""
    ones = jnp.ones((4096, 2), jnp.bfloat16).at[0].set(1.5)

    assert contract(ones, ones[:, :1], (0,), (0,), dtype=jnp.float32).tolist() == [[4097.25], [4097.25]]


@pytest.mark.parametrize("overrides", [(), ("mesh.tensor=2",), ("model.block=parallel", "mesh.fsdp=false")])
def test_all_products_of_a_step_suit_the_library(make_program: MakeProgram, overrides: tuple[str, ...]) -> None:
    """Every matrix product of the compiled step contracts the last dimension of its left operand."""
    text = lower_step(make_program(*overrides)).compile().as_text()
    assert text
    contracted = re.findall(r"= f32\[([\d,]*)\]\S* dot\(.*?lhs_contracting_dims=\{(\d+)\}", text)

    assert len(contracted) > 20  # forward, computed again, and backward
    # A left operand has as many dimensions as the result: one is contracted of it and of the right one, one is not.
    assert {int(axis) - shape.count(",") for shape, axis in contracted} == {0}


def test_other_platforms_get_the_products_plain() -> None:
    """Copies that suit XLA's CPU compiler are not made for a TPU or a GPU."""

    def gradient(lhs: Array, rhs: Array) -> Array:
        grad: Array = jax.grad(lambda rhs: product(lhs, rhs, (((1,), (0,)), NO_BATCH)).sum())(rhs)
        return grad

    traced = jax.jit(gradient).trace(jnp.ones((16, 8)), jnp.ones((8, 4)))
    lowered = {name: traced.lower(lowering_platforms=(name,)).as_text() for name in ("cpu", "tpu", "cuda")}

    assert {name for name, text in lowered.items() if "optimization_barrier" in text} == {"cpu"}


@pytest.mark.parametrize(("a_width", "b_width"), [(8, 4), (4, 8)])
def test_the_smaller_operand_is_copied(a_width: int, b_width: int) -> None:
    """Whichever side it is on; the copy has the contracted axis last."""
    a, b = jnp.ones((16, a_width)), jnp.ones((16, b_width))
    text = jax.jit(lambda a, b: contract(a, b, (0,), (0,))).lower(a, b).as_text()
    copied, *_ = re.findall(r"optimization_barrier \S+ : tensor<(\w+)>", text)

    assert copied == "4x16xf32"


def test_of_two_of_one_size_the_activations_are_copied() -> None:
    """For a weight that narrows: a copy of the gradient would be fused with all that makes the gradient."""

    def gradient(activations: Array, weight: Array) -> Array:
        made: Array = jax.grad(lambda w: jnp.sin(product(activations, w, (((1,), (1,)), NO_BATCH))).sum())(weight)
        return made

    text = jax.jit(gradient).lower(jnp.ones((16, 8)), jnp.ones((8, 8))).as_text()

    # What is transposed and kept by the barrier is the argument itself, not the cosine that is the gradient.
    assert re.findall(r"transpose (%\w+), dims = \[1, 0\] : \(tensor<16x8xf32>\)", text) == ["%arg0"]


def test_products_that_are_kept_are_not_computed_again(make_program: MakeProgram) -> None:
    """With remat `dots` the backward pass makes attention's products again, with `full` the layers' too."""
    made = {
        remat: len(re.findall(r" dot\(", lower_step(make_program(f"model.remat={remat}")).compile().as_text() or ""))
        for remat in ("none", "dots", "full")
    }

    assert 0 < made["none"] < made["dots"] < made["full"]


def test_one_device_talks_to_nobody(make_program: MakeProgram) -> None:
    """The step of one device has no collective: a sum over one device would be a copy."""
    text = lower_step(make_program(num_devices=1)).compile().as_text()
    assert text

    assert not re.findall(r" (?:all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(", text)
