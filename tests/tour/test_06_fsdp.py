"""FSDP by hand: each claim of the tour falls when its idea is taken out."""

import pytest
from tests.tour.breaking import Broken, Outcomes

BROKEN = [
    Broken(
        idea="the optimizer state is not split",
        old="jax.jit(start, out_shardings=placed(SPECS))(KEY)",
        new="jax.jit(start, out_shardings=placed((SPECS[0], jax.tree.map(lambda _: P(), SPECS[1]))))(KEY)",
        claim="a moment lives where its parameter lives",
    ),
    Broken(
        idea="a smallest size that the last matrix does not reach",
        old="SPECS = specs_of(1024)",
        new="SPECS = specs_of(4096)",
        claim="every matrix is split",
    ),
    Broken(
        idea="every device cuts the same part",
        old='jax.lax.axis_index("data") * size',
        new='0 * jax.lax.axis_index("data")',
        claim="both ways give the same bits",
    ),
    Broken(
        idea="nothing is cut out of a whole",
        old='"whole, then cut": jax.jit(cut_out)',
        new='"whole, then cut": jax.jit(init, out_shardings=placed(SPECS[0]))',
        claim="cutting parts out of the whole makes the whole on every device",
    ),
    Broken(
        idea="init makes the whole everywhere",
        old='"in parts": jax.jit(init, out_shardings=placed(SPECS[0]))',
        new='"in parts": jax.jit(cut_out)',
        claim="made in parts, the whole is never anywhere",
    ),
    Broken(
        idea="the scattered gradient is left a sum",
        old='g / N if "data" in specs[name]',
        new='g if "data" in specs[name]',
        claim="all three programs have one device's gradient",
    ),
    Broken(
        idea="data parallel with split moments, which is ZeRO's stage 1",
        old='"data parallel": (specs_of(inf), lambda x: x)',
        new='"data parallel": ((specs_of(inf)[0], SPECS[1]), lambda x: x)',
        claim="data parallel holds 16 bytes a parameter",
    ),
    Broken(
        idea="FSDP with whole moments",
        old='"FSDP": (SPECS, lambda x: x)',
        new='"FSDP": ((SPECS[0], specs_of(inf)[1]), lambda x: x)',
        claim="FSDP holds 16 / devices bytes a parameter",
    ),
    Broken(
        idea="a gradient is summed whole, and then cut",
        old='axis=spec.index("data"), tiled=True)',
        new='axis=spec.index("data"), tiled=True, to="invarying")',
        claim="FSDP sends no more than data parallel",
    ),
    Broken(
        idea="the loop as a whole is gathered again, and not each layer",
        old='jax.lax.scan(again(layer), batch["inputs"] @ whole("up", params["up"]), params["layers"])',
        new='again(partial(jax.lax.scan, layer))(batch["inputs"] @ whole("up", params["up"]), params["layers"])',
        claim="gathered again, one layer at a time is whole",
    ),
    Broken(
        idea="every program gathers again",
        old="    program = over_devices(partial(gradients, specs[0], again), specs[0])",
        new="    program = over_devices(partial(gradients, specs[0], jax.checkpoint), specs[0])",
        claim="gathered once, the whole model is on every device between forward and backward",
    ),
    Broken(
        idea="no program gathers again",
        old="    program = over_devices(partial(gradients, specs[0], again), specs[0])",
        new="    program = over_devices(partial(gradients, specs[0], lambda layer: layer), specs[0])",
        claim="the second gather adds half as much again",
    ),
    Broken(
        idea="the outer axis gathered first",
        old='"two steps": both[::-1]}',
        new='"two steps": both}',
        claim="in one step or in two, the matrix is the same",
    ),
    Broken(
        idea="both axes gathered as one",
        old='"two steps": both[::-1]}',
        new='"two steps": (both,)}',
        claim="two steps send what one step sends",
    ),
    Broken(
        idea="an update that is scaled by its norm, of a part and not of the whole",
        old="optax.apply_updates(state[0], updates)",
        new="optax.apply_updates(state[0], jax.tree.map(lambda u: u / (1 + jnp.linalg.norm(u)), updates))",
        claim="FSDP trains the parameters of data parallel",
    ),
    Broken(
        idea="the mean loss is summed over the devices",
        old="    gradient = partial(gradients, specs[0], wrap)",
        new=(
            "    def gradient(*args, specs=specs, wrap=wrap):\n"
            "        value, grads = gradients(specs[0], wrap, *args)\n"
            '        return jax.lax.psum(value, "data"), grads'
        ),
        claim="FSDP has the losses of data parallel",
    ),
    Broken(
        idea="the flags are set to false",
        old='f"xla_gpu_{flag}": True',
        new='f"xla_gpu_{flag}": False',
        claim="two are gone, two are on, one is worth setting",
    ),
]


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through, so that none of its claims fails, and saves a picture."""
    outcomes.assert_it_holds()


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
