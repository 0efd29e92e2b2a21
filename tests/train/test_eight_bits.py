"""shardwise.train.eight_bits: what is rounded, by which scale, and that a model learns all the same."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.train.test_lora import LORA
from tests.train.test_meshes import LATENT, LLAMA, run

from shardwise.plan.flops import eight_bit_flops, traced_flops
from shardwise.train.eight_bits import Format, multiply, multiply_back
from shardwise.train.state import Program
from shardwise.train.step import trace_step

MakeProgram = Callable[..., Program]
HALF = ("precision.compute=bfloat16", "model.embed=64", "model.remat=dots")
FORMS: tuple[Format, ...] = ("float8", "int8")


def _drawn(*shape: int, seed: int = 0) -> jax.Array:
    return jax.random.normal(jax.random.PRNGKey(seed), shape)


@pytest.mark.parametrize(("form", "error"), [("float8", 0.04), ("int8", 0.01)])
@pytest.mark.parametrize(
    ("left", "right", "contracted", "words"),
    [
        ((4, 8, 64), (64, 3, 5, 16), ((2,), (0,)), "abe,eqhs->abqhs"),  # qkv
        ((4, 5, 8, 16), (64, 5, 16), ((1, 3), (1, 2)), "ahps,ehs->ape"),  # out, whose weight has embed first
        ((4, 8, 48), (64, 48), ((2,), (1,)), "abm,em->abe"),  # down
    ],
    ids=["qkv", "out", "down"],
)
def test_a_product_and_its_gradient_are_near_the_exact_ones(
    form: Format,
    error: float,
    left: tuple[int, ...],
    right: tuple[int, ...],
    contracted: tuple[tuple[int, ...], tuple[int, ...]],
    words: str,
) -> None:
    """By the rounding of two operands with 3 or 7 bits behind the first; dimensions come back in their order."""
    lhs, rhs = _drawn(*left), _drawn(*right, seed=1)
    exact, transposed = jax.vjp(lambda lhs: jnp.einsum(words, lhs, rhs), lhs)
    grad = _drawn(*exact.shape, seed=2)

    for made, expected in (
        (multiply(lhs, rhs, contracted, form), exact),
        (multiply_back(grad, rhs, contracted, form), transposed(grad)[0]),
    ):
        assert made.shape == expected.shape
        assert jnp.linalg.norm(made - expected) < error * jnp.linalg.norm(expected)


@pytest.mark.parametrize("form", FORMS)
def test_numbers_of_the_format_are_multiplied_exactly(form: Format) -> None:
    """With a scale that is a power of two, whatever the scale of the row beside it."""
    most = {"float8": 448, "int8": 127}[form]
    lhs = jnp.array([[most, 64, -8, 0], [most * 2**20, 2**20, 0, -(2**24)]], jnp.float32)
    rhs = jnp.array([[most, 1], [-16, most], [4, 0], [0, -2]], jnp.float32)

    np.testing.assert_array_equal(multiply(lhs, rhs, ((1,), (0,)), form), lhs @ rhs)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("most", [0.0, 1e-45, 1e-38, 1e-37, 1e-36, 1e-35])
def test_the_smallest_numbers_make_none_that_is_not_finite(form: Format, most: float) -> None:
    """A row so small that its scale would be no number of float32 counts as zeros, or as what it is."""
    rows = jnp.array([[most, -most, 0.0, most / 2], [1.0, 2.0, 3.0, 4.0]], jnp.float32)
    out = multiply(rows, jnp.ones((4, 1)), ((1,), (0,)), form)
    assert out[0, 0] == pytest.approx(most / 2, abs=1e-35)
    assert out[1, 0] == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf], ids=str)
def test_what_is_not_finite_shows(form: Format, bad: float) -> None:
    """In the whole row, and in no other; a row of zeros stays zero."""
    lhs = jnp.zeros((3, 4)).at[0].set(1.0).at[1, 2].set(bad)
    out = multiply(lhs, jnp.ones((4, 2)), ((1,), (0,)), form)

    assert not jnp.isfinite(out[1]).any()
    np.testing.assert_allclose(out[0], 4.0, rtol=1e-6)
    np.testing.assert_array_equal(out[2], 0.0)


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("float8", LLAMA),
        pytest.param("int8", (), marks=pytest.mark.long),
        pytest.param("float8", (), marks=pytest.mark.long),
        pytest.param("int8", LLAMA, marks=pytest.mark.long),
        pytest.param("float8", LATENT, marks=pytest.mark.long),
    ],
)
def test_a_model_learns_as_in_bfloat16_on_every_mesh(
    make_program: MakeProgram, form: Format, words: tuple[str, ...]
) -> None:
    """Twenty losses are within a thousandth of those in bfloat16, and so near each other on two meshes."""
    _, expected = run(make_program(*HALF, *words, num_devices=1))
    assert expected[-1] < expected[0] - 1.0

    meshes: tuple[tuple[int, tuple[str, ...]], ...] = ((1, ()), (8, ("mesh.tensor=2", "batch.microbatches=2")))
    for devices, mesh in meshes:
        program = make_program(*HALF, *words, *mesh, f"precision.products={form}", num_devices=devices)
        np.testing.assert_allclose(run(program)[1], expected, rtol=1e-3, err_msg=str(mesh))


@pytest.mark.parametrize("form", FORMS)
def test_two_products_of_three_are_in_8_bits(make_program: MakeProgram, form: Format) -> None:
    """Forward and for the gradient of the activations, of the weights of layers; not of the head, nor of scores.

    Nothing else changes: the step has as many FLOPs as without.
    """
    words = (*HALF, "model.remat=none")
    program = make_program(*words, f"precision.products={form}", num_devices=1)
    config, mesh = program.config, program.layout.mesh.shape
    trace, plain = trace_step(program), trace_step(make_program(*words, num_devices=1))
    weights = config.num_layers * (4 * config.embed_size**2 + 2 * config.embed_size * config.mlp_size)
    tokens = program.training.batch.sequences * config.seq_len

    assert eight_bit_flops(trace, mesh) == 4 * weights * tokens
    assert traced_flops(trace, mesh) == traced_flops(plain, mesh)
    assert eight_bit_flops(plain, mesh) == 0


def test_adapters_are_added_in_the_compute_format(make_program: MakeProgram) -> None:
    """Beside weights that are multiplied in 8 bits, of which no gradient is computed."""
    words = (*LORA, "precision.compute=bfloat16", "model.remat=none")
    program = make_program(*words, "precision.products=int8", num_devices=1)
    config = program.config
    weights = config.num_layers * (4 * config.embed_size**2 + 2 * config.embed_size * config.mlp_size)
    tokens = program.training.batch.sequences * config.seq_len
    in_8_bits = eight_bit_flops(trace_step(program), program.layout.mesh.shape)

    assert 3 * weights * tokens < in_8_bits <= 4 * weights * tokens


@pytest.mark.parametrize("form", FORMS)
def test_the_backward_pass_keeps_products_as_it_does_in_bfloat16(make_program: MakeProgram, form: Format) -> None:
    """With `remat: dots` it multiplies none again, and keeps no byte more: neither sums beside products nor scales."""
    programs = {name: make_program(*HALF, f"precision.products={name}", num_devices=1) for name in (form, "compute")}
    kept = {name: _kept(program) for name, program in programs.items()}
    again = make_program(*HALF, "model.remat=none", f"precision.products={form}", num_devices=1)
    mesh = again.layout.mesh.shape

    assert kept[form] == kept["compute"]
    assert eight_bit_flops(trace_step(programs[form]), mesh) == eight_bit_flops(trace_step(again), mesh)


def _kept(program: Program) -> int:
    """The bytes that the scan over layers of the forward pass hands on, for all layers together."""
    sizes: list[int] = []

    def look(jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            if equation.primitive.name == "scan" and equation.params["length"] == program.config.num_layers:
                of_each = equation.outvars[equation.params["num_carry"] :]
                sizes.append(sum(out.aval.size * out.aval.dtype.itemsize for out in of_each))
            for value in equation.params.values():
                for part in value if isinstance(value, tuple | list) else (value,):
                    if hasattr(part, "jaxpr") or hasattr(part, "eqns"):
                        look(getattr(part, "jaxpr", part))

    look(trace_step(program))
    return max(sizes)
