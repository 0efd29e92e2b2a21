"""Products by group: against one product for each group, and without work or memory for rows of other groups."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwise.plan.flops import traced_flops
from shardwise.train import grouped

Array = jax.Array
EMBED, MLP = 24, 40
SIZES = {
    "all alike": [16, 16, 16, 16],
    "one has all": [0, 64, 0, 0],
    "the last has none": [1, 2, 61, 0],
    "the first has none": [0, 0, 1, 63],
    "fewer rows than groups": [0, 1, 0, 0, 0, 1, 0, 0],
    "one row": [0, 0, 1],
    "one group": [37],
    "many": [*range(50)],
    "blocks of the most rows": [0, 3000, 1, 5191],
}


def operands(num_rows: int, num_groups: int, dtype: str = "float32") -> tuple[Array, Array, Array]:
    """Return random rows of both widths, and a weight."""
    keys = jax.random.split(jax.random.key(num_rows), 3)
    shapes = ((num_rows, EMBED), (num_rows, MLP), (EMBED, num_groups, MLP))
    of_embed, of_mlp, weight = (jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True))
    return of_embed, of_mlp, weight


def off_tpus(product: Callable[..., Array]) -> Callable[..., Array]:
    """Return the product as it is computed on other platforms, when it is traced."""

    def traced(*operands: Array) -> Array:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jax.lax, "platform_dependent", lambda *args, default, **_: default(*args))
            return product(*operands)

    return traced


@pytest.mark.parametrize("name", SIZES)
def test_each_group_is_multiplied_with_its_own_matrix(name: str) -> None:
    """Whatever the sizes: no row is left out, none is taken twice, and none sees another group's matrix."""
    sizes = jnp.array(SIZES[name], jnp.int32)
    of_embed, of_mlp, weight = operands(int(sizes.sum()), sizes.size)
    ends = np.cumsum(SIZES[name]).tolist()
    spans = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    def close(found: Array, parts: list[Array], join: Callable[[list[Array]], Array]) -> None:
        np.testing.assert_allclose(found, join(parts), rtol=1e-5, atol=1e-3 if "most" in name else 1e-4)

    close(
        jax.jit(grouped.into)(of_embed, weight, sizes),
        [of_embed[span] @ weight[:, i] for i, span in enumerate(spans)],
        jnp.concatenate,
    )
    close(
        jax.jit(grouped.out_of)(of_mlp, weight, sizes),
        [of_mlp[span] @ weight[:, i].T for i, span in enumerate(spans)],
        jnp.concatenate,
    )
    close(
        jax.jit(grouped.of_weight, static_argnums=3)(of_embed, of_mlp, sizes, jnp.float32),
        [of_embed[span].T @ of_mlp[span] for span in spans],
        jnp.stack,
    )


def test_a_gradient_is_summed_in_float32() -> None:
    """A weight's gradient over many bfloat16 rows is rounded once, at its end, and not for each block of rows."""
    of_embed, of_mlp, _ = operands(4096, 2, "bfloat16")
    sizes = jnp.array([4000, 96], jnp.int32)
    found = jax.jit(grouped.of_weight, static_argnums=3)(of_embed, of_mlp, sizes, jnp.bfloat16)
    exact = of_embed[:4000].astype(jnp.float32).T @ of_mlp[:4000].astype(jnp.float32)

    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found[0].astype(jnp.float32), exact, rtol=2**-8, atol=1e-2)


@pytest.mark.parametrize("num_groups", [4, 64])
def test_no_work_and_no_memory_for_other_groups(num_groups: int) -> None:
    """The blocks have at most half as many rows again as there are, and the program little more memory than these."""
    num_rows, wide = 4096, 256
    rows = jax.ShapeDtypeStruct((num_rows, wide), jnp.float32)
    weight = jax.ShapeDtypeStruct((wide, num_groups, wide), jnp.float32)
    sizes = jax.ShapeDtypeStruct((num_groups,), jnp.int32)
    products: list[tuple[Callable[..., Array], tuple[jax.ShapeDtypeStruct, ...]]] = [
        (grouped.into, (rows, weight, sizes)),
        (grouped.out_of, (rows, weight, sizes)),
        (lambda a, b, sizes: grouped.of_weight(a, b, sizes, jnp.float32), (rows, rows, sizes)),
    ]
    for product, shapes in products:
        of_a_loop = traced_flops(jax.make_jaxpr(off_tpus(product))(*shapes).jaxpr, {})
        assert of_a_loop <= 1.5 * 2 * num_rows * wide * wide
        memory = jax.jit(product).lower(*shapes).compile().memory_analysis()
        assert memory is not None
        assert memory.temp_size_in_bytes <= 4 * (4 * num_rows * wide + num_groups * wide * wide)
