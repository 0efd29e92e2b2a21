"""Mixtures of experts: against MLPs that are done one after the other, and on every kind of mesh."""

import re
from collections.abc import Callable
from itertools import product

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.train.grids import layout_over
from tests.train.test_meshes import NUM_STEPS, run

from shardwise.plan.flops import traced_flops
from shardwise.train.balance import charged
from shardwise.train.config import GptConfig
from shardwise.train.experts import Experts
from shardwise.train.layout import Layout, assemble, flatten
from shardwise.train.state import Program
from shardwise.train.step import lower_step, trace_step

Array = jax.Array
MakeProgram = Callable[..., Program]
BATCH, POSITIONS, EMBED, EXPERTS = 4, 8, 16, 6
MIXTURE = (
    "model.layers=2",
    "model.norm=rms",
    "model.activation=swiglu",
    "model.position=rotary",
    "model.tiedHead=false",
    "model.mlpBias=false",
    "model.mlp=32",
    "model.experts.count=8",
    "model.experts.perToken=2",
    "model.experts.balance=0.05",
)
FIELDS: tuple[dict[str, object], ...] = (
    {},
    {"per_token": 1, "share_one": False},
    {"per_token": 6, "activation": "geglu"},
)
LAYOUTS = {
    "one device": {},
    "fsdp 2 x 2 x tensor 2": {"outer": 2, "inner": 2, "tensor": 2},
    "context 2 x tensor 4": {"context": 2, "tensor": 4},
}
APART = {
    "experts over 2": {"inner": 2, "splits_experts": True},
    "fsdp 2 x experts over 2 x tensor 2": {"outer": 2, "inner": 2, "tensor": 2, "splits_experts": True},
    "experts over 2 x context 2, no fsdp": {"inner": 2, "context": 2, "splits_experts": True, "fsdp": False},
}


def config_of(*, per_token: int = 2, share_one: bool = True, activation: str = "swiglu") -> GptConfig:
    """Return the config of a model with six experts."""
    return GptConfig(
        num_layers=2,
        num_heads=2,
        embed_size=EMBED,
        mlp_size=24,
        seq_len=POSITIONS,
        vocab_size=10,
        activation=activation,  # type: ignore[arg-type]
        mlp_bias=False,
        num_experts=EXPERTS,
        experts_per_token=per_token,
        experts_share_one=share_one,
        balance=0.6,
    )


def one_by_one(config: GptConfig, weights: dict[str, Array], x: Array) -> Array:
    """Return what the mixture adds to [batch, position, embed], by all experts for all tokens."""
    likely = jax.nn.softmax(x @ weights["router.weight"], -1)
    least = jnp.sort(likely, -1)[..., -config.experts_per_token, None]
    shares = jnp.where(likely >= least, likely, 0)
    if config.experts_share_one:
        shares = shares / shares.sum(-1, keepdims=True)
    activate = {"swiglu": jax.nn.silu, "geglu": jax.nn.gelu}[config.activation]
    out = jnp.zeros_like(x)
    for i in range(config.num_experts):
        gate, up, down = (weights[f"{name}.weight"][:, i] for name in ("gate", "up", "down"))
        out = out + shares[..., i, None] * ((activate(x @ gate) * (x @ up)) @ down.T)
    return out


def imbalance(config: GptConfig, weights: dict[str, Array], x: Array) -> Array:
    """Return experts x sum of (share of the picks) x (mean probability), summed over sequences."""
    likely = jax.nn.softmax(x @ weights["router.weight"], -1)
    picks = jax.lax.top_k(likely, config.experts_per_token)[1]
    load = jax.nn.one_hot(picks, EXPERTS).sum((1, 2)) / (POSITIONS * config.experts_per_token)
    uneven: Array = EXPERTS * (load * likely.mean(1)).sum()
    return uneven


@pytest.mark.parametrize(
    ("layout", "fields"),
    [*product(LAYOUTS, FIELDS), *zip(APART, FIELDS, strict=True)],
    ids=str,
)
def test_a_mixture_is_its_experts_one_by_one(layout: str, fields: dict[str, object]) -> None:
    """What it adds and every gradient are those of MLPs that see all tokens, weighed by the router's shares.

    To the gradients the balance of loads adds its own, and to no value.
    """
    config, on = config_of(**fields), layout_over(**{**LAYOUTS, **APART}[layout])  # type: ignore[arg-type]
    weights = {path: 10 * array for path, array in flatten(Experts.init(config, key=jax.random.key(1))).items()}
    check(config, on, weights, jax.random.normal(jax.random.key(2), (BATCH, POSITIONS, EMBED)))


@pytest.mark.parametrize("first", [0, 4])
def test_every_token_may_want_the_same_experts(first: int) -> None:
    """A device whose experts all tokens of all devices picked does them all, and another has nothing to do."""
    config, on = config_of(), layout_over(outer=2, inner=2, splits_experts=True)
    weights = flatten(Experts.init(config, key=jax.random.key(1)))
    weights["router.weight"] = weights["router.weight"].at[0, first : first + 2].set(1.0)
    x = jax.random.normal(jax.random.key(2), (BATCH, POSITIONS, EMBED)).at[..., 0].set(10.0)
    check(config, on, weights, x)


def check(config: GptConfig, on: Layout, weights: dict[str, Array], x: Array) -> None:
    """Compare value and gradients, of a sum weighed at random, with those of one expert after the other."""
    experts = Experts.init(config, key=jax.random.key(1))
    slope = jax.random.normal(jax.random.key(3), x.shape)

    def ours(weights: dict[str, Array], x: Array) -> Array:
        named = hax.named(x, ("batch", "position", "embed"))
        added = assemble(experts, weights)(named, on)
        weighed: Array = (added.rearrange(named.axes).array * slope).sum()
        return weighed

    def theirs(weights: dict[str, Array], x: Array) -> tuple[Array, Array]:
        loss = (one_by_one(config, weights, x) * slope).sum()
        return loss + config.balance / config.num_layers * POSITIONS * imbalance(config, weights, x), loss

    stored = {path: on.stored(names) for path, names in names_of(experts).items()}
    with jax.set_mesh(on.mesh):
        found = jax.jit(jax.value_and_grad(ours, (0, 1)))(jax.device_put(weights, stored), x)
    (_, loss), gradients = jax.value_and_grad(theirs, (0, 1), has_aux=True)(weights, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), found, (loss, gradients))


def names_of(experts: Experts) -> dict[str, list[str]]:
    """Return the axes of each weight."""
    linear = {name: getattr(experts, name).weight for name in ("router", "gate", "up", "down")}
    return {f"{name}.weight": [axis.name for axis in weight.axes] for name, weight in linear.items()}


def test_a_sequence_whose_outputs_nobody_uses_is_not_charged() -> None:
    """As in an idle stage of a pipeline, which computes on whatever is there."""
    likely = jax.nn.softmax(jax.random.normal(jax.random.key(0), (2, 5, 4)), -1)
    picks = jax.lax.top_k(likely, 2)[1]
    used = jnp.ones((2, 5, 2)).at[1].set(0)
    gradient = jax.grad(lambda likely: (charged(0.3, jnp.ones((2, 5, 2)), likely, picks) * used).sum())(likely)

    assert (gradient[0].sum(-1) > 0).all()
    assert (gradient[1] == 0).all()


@pytest.mark.parametrize(("devices", "expert"), [(1, 1), (8, 1), (8, 4)])
def test_a_plan_counts_the_products_of_picks(make_program: MakeProgram, devices: int, expert: int) -> None:
    """With twice the experts for a token the step has three products more for each, forward, again, and twice back."""
    counted = []
    for per_token in (1, 2):
        words = (*MIXTURE, f"model.experts.perToken={per_token}", "mesh.tensor=1", f"mesh.expert={expert}")
        program = make_program(*words, num_devices=devices)
        counted.append(traced_flops(trace_step(program), dict(program.layout.mesh.shape)))
    tokens, layers, weights = 16 * 32, 2, 3 * 32 * 32
    one = 2 * tokens * layers * weights
    assert counted[1] - counted[0] == 4 * one - one // 3  # the last product is not computed again


def test_picks_are_exact_where_the_rest_is_not(make_program: MakeProgram) -> None:
    """The router's product asks for all bits of float32: by default a TPU would round its operands to bfloat16.

    It is done once forward, and again for the backward pass.
    """
    program = make_program(*MIXTURE, "model.experts.count=6", "precision.compute=bfloat16", num_devices=1)
    of_routers = [
        line for line in lower_step(program).as_text().splitlines() if re.search(r"dot_general.*x6xf32>$", line)
    ]

    assert len([line for line in of_routers if "precision = [HIGHEST, HIGHEST]" in line]) == 2


PRODUCTS = {
    "context 2 x fsdp 2 x tensor 2": (8, ("mesh.context=2", "mesh.tensor=2")),
    "replica 2 x fsdp 2 x tensor 2, 2 microbatches": (8, ("mesh.replica=2", "mesh.tensor=2", "batch.microbatches=2")),
    "pipeline 2 x fsdp 2, 4 microbatches": (4, ("mesh.pipeline=2", "batch.microbatches=4")),
    "fsdp 2 x experts over 4": (8, ("mesh.expert=4",)),
    "replica 2 x experts over 2 x tensor 2, no fsdp": (
        8,
        ("mesh.replica=2", "mesh.expert=2", "mesh.tensor=2", "mesh.fsdp=false"),
    ),
    "pipeline 2 x fsdp 2 x experts over 2, 4 microbatches": (
        8,
        ("mesh.pipeline=2", "mesh.expert=2", "batch.microbatches=4"),
    ),
}


@pytest.fixture(scope="module")
def of_one_device() -> Callable[[MakeProgram], tuple[str, list[float]]]:
    """Return the digest and the losses of one device, which are computed once."""
    kept: list[tuple[str, list[float]]] = []

    def known(make_program: MakeProgram) -> tuple[str, list[float]]:
        if not kept:
            kept.append(run(make_program(*MIXTURE, num_devices=1), NUM_STEPS))
        return kept[0]

    return known


@pytest.mark.parametrize("name", PRODUCTS)
def test_losses_do_not_depend_on_the_mesh(
    make_program: MakeProgram, of_one_device: Callable[[MakeProgram], tuple[str, list[float]]], name: str
) -> None:
    """Every mesh begins with the bits of one device and has its losses, with loads that are kept even."""
    devices, words = PRODUCTS[name]
    digest, losses = of_one_device(make_program)
    found, others = run(make_program(*MIXTURE, *words, num_devices=devices), NUM_STEPS)

    assert losses[-1] < losses[0] - 0.1
    assert found == digest
    np.testing.assert_allclose(others, losses, rtol=1e-5, atol=0)
