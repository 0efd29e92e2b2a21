"""Each claim of the tour of tensor parallelism fails when its idea is taken out."""

import pytest
from tests.tour.breaking import Broken, Outcomes

BROKEN = [
    Broken(
        idea="a matrix that is left whole",
        old='"proj": ROWS,',
        new='"proj": P(),',
        claim="an eighth on each device",
    ),
    Broken(
        idea="a sum at the door too",
        old="split_mlp = jax.jit(split(lambda x, w: add_up(mlp(x, w))))",
        new="split_mlp = jax.jit(split(lambda x, w: add_up(mlp(add_up(x) / 8, w))))",
        claim="all that moves is one sum",
    ),
    Broken(
        idea="every device adds the same columns",
        old="add_up(mlp(x, w))))\ny = ",
        new="jax.lax.pmean(mlp(x, w), 'tensor')))\ny = ",
        claim="columns, then rows: the MLP of one device",
    ),
    Broken(
        idea="the terms are summed before the GELU",
        old='sum(jax.nn.gelu(x[:, i::8] @ w["up"][i::8]) for i in range(8))',
        new='jax.nn.gelu(sum(x[:, i::8] @ w["up"][i::8] for i in range(8)))',
        claim="rows first is another function",
    ),
    Broken(
        idea="no types that say what varies",
        old='"psum, check_vma=True": inside(same, add_up, check_vma=True)',
        new='"psum, check_vma=True": inside(same, add_up, check_vma=False)',
        claim="a plain psum has the right gradients under check_vma=True",
    ),
    Broken(
        idea="a sum that is not summed on the way back",
        old='"psum, check_vma=False": inside(same, add_up,',
        new='"psum, check_vma=False": inside(same, g,',
        claim="under False they are too large by the number of devices",
    ),
    Broken(
        idea="f after all",
        old='"g alone, check_vma=False": inside(same, g,',
        new='"g alone, check_vma=False": inside(f, g,',
        claim="without f the copies of a parameter part",
    ),
    Broken(
        idea="no f: nothing is summed backwards",
        old="f.defvjp(lambda x: (same(x), None), lambda _, grad: (add_up(grad),))",
        new="f.defvjp(lambda x: (same(x), None), lambda _, grad: (same(grad),))",
        claim="hand-made f and g are right under check_vma=False",
    ),
    Broken(
        idea="no g: the gradient of the sum is a sum",
        old="g.defvjp(lambda x: (add_up(x), None), lambda _, grad: (same(grad),))",
        new="g.defvjp(lambda x: (add_up(x), None), lambda _, grad: (add_up(grad),))",
        claim="hand-made f and g are right under check_vma=False",
    ),
    Broken(
        idea="g where the gradient is taken outside",
        old="split(partial(loss, leave=add_up), check_vma=False)",
        new="split(partial(loss, leave=g), check_vma=False)",
        claim="a gradient taken outside shard_map is right either way",
    ),
    Broken(
        idea="nothing by hand under check_vma=True",
        old="inside(f, g, check_vma=True)",
        new="inside(same, add_up, check_vma=True)",
        claim="under True JAX refuses f and g",
    ),
    Broken(
        idea="in_shardings that leave the matrices whole",
        old="in_shardings=(NamedSharding(mesh, P()), shardings)",
        new="in_shardings=NamedSharding(mesh, P())",
        claim="XLA finds the split made by hand, with its two sums",
    ),
    Broken(
        idea="inputs that are not placed",
        old='"placed inputs": (jax.jit(layer), placed_x, placed)',
        new='"placed inputs": (jax.jit(layer), x, w)',
        claim="in_shardings and placed inputs are the same, bit for bit",
    ),
    Broken(
        idea="all heads on every device",
        old="partial(layer, heads=1, leave=add_up)",
        new="partial(layer, heads=8, leave=add_up)",
        claim="every way gives the layer of one device",
    ),
    Broken(
        idea="no element near zero",
        old="error = np.abs(",
        new='plain, outs = plain + 100, {"shard_map": outs["shard_map"] + 100}\nerror = np.abs(',
        claim="allclose says False of a right answer",
    ),
    Broken(
        idea="one tolerance for small and large elements",
        old="fails = error > 1e-8 + 1e-5 * np.abs(plain)",
        new="fails = error > error.mean()",
        claim="what fails lies near zero",
    ),
    Broken(
        idea="no float64",
        old="with jax.enable_x64(True):",
        new="with jax.enable_x64(False):",
        claim="in float64 the same check says True",
    ),
    Broken(
        idea="results of half the precision",
        old="figure = Figure(",
        new='outs = outs | {"shard_map": outs["shard_map"].astype(np.float16)}\nfigure = Figure(',
        claim="one device is no nearer to the truth",
    ),
    Broken(
        idea="a comma in the inner parentheses",
        old='P("k", None, None) * 3',
        new='(P("k", None, None),) * 3',
        claim="a spec times three is refused",
    ),
    Broken(
        idea="nobody checks what varies",
        old="split(mlp)(placed_x, placed)",
        new="split(mlp, check_vma=False)(placed_x, placed)",
        claim="check_vma notices the missing sum",
    ),
    Broken(
        idea="the sum after all",
        old="lone_term = jax.jit(split(mlp, check_vma=False))",
        new="lone_term = jax.jit(split(lambda x, w: add_up(mlp(x, w))))",
        claim="without the sum a device gives its term as if it were all",
    ),
    Broken(
        idea="one head on each device",
        old="add_up(attention(x, w, heads=8))",
        new="add_up(attention(x, w, heads=1))",
        claim="eight heads on each device are other heads",
    ),
    Broken(
        idea="in turn",
        old='"side by side": on_grid(beside, vary)',
        new='"side by side": on_grid(layer, vary)',
        claim="one sum instead of two, with gradients two, not four",
    ),
    Broken(
        idea="a sum for each of the two terms",
        old='leave(attention(h, w, heads) + mlp(h, w)) + w["bias"]',
        new='leave(attention(h, w, heads)) + leave(jnp.tanh(mlp(h, w))) + w["bias"]',
        claim="half the bytes are sent, forwards and with gradients",
    ),
    Broken(
        idea="f left to every use",
        old='"side by side": on_grid(beside, vary)',
        new='"side by side": on_grid(beside, same)',
        claim="half the bytes are sent, forwards and with gradients",
    ),
    Broken(
        idea="f said once",
        old='"f unsaid": on_grid(beside, same)',
        new='"f unsaid": on_grid(beside, vary)',
        claim="an f at every use of x sums four times as much on the way back",
    ),
    Broken(
        idea="the bias in the sum",
        old='leave(attention(h, w, heads) + mlp(h, w)) + w["bias"]',
        new='leave(attention(h, w, heads) + mlp(h, w) + w["bias"])',
        claim="side by side on the grid is side by side on one device",
    ),
    Broken(
        idea="a bias that is no term",
        old='leave(h + attention(h, w, heads) + mlp(h, w) + w["bias"])',
        new='leave(h + attention(h, w, heads) + mlp(h, w)) + w["bias"]',
        claim="n normed inputs and n-1 biases are too much",
    ),
]


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through, so that none of its claims fails, and saves a picture."""
    outcomes.assert_it_holds()


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
