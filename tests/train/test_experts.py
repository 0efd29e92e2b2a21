"""Mixtures of experts: against MLPs that are done one after the other, and on every kind of mesh."""

import re
from collections.abc import Callable
from itertools import product

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.long import all_but
from tests.train.grids import layout_over
from tests.train.test_meshes import batch_of, run_with_metrics

from shardwise.plan.flops import traced_flops
from shardwise.train.balance import charged
from shardwise.train.config import GptConfig
from shardwise.train.experts import Experts
from shardwise.train.layout import Layout, assemble, axis_names, flatten
from shardwise.train.state import Program
from shardwise.train.step import Metrics, lower_step, trace_step

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
SHARED = ("model.experts.shared=64", "model.experts.sharedGate=true")
FIELDS: tuple[dict[str, object], ...] = (
    {},
    {"per_token": 1, "share_one": False},
    {"per_token": 6, "activation": "geglu"},
    {"shared": 16},
    {"shared": 8, "shared_gate": True, "share_one": False},
    {"activation": "swiglu-clamped", "biases": True, "shared": 16},
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


def config_of(
    *,
    per_token: int = 2,
    share_one: bool = True,
    activation: str = "swiglu",
    shared: int = 0,
    shared_gate: bool = False,
    biases: bool = False,
) -> GptConfig:
    """Return the config of a model with six experts."""
    return GptConfig(
        num_layers=2,
        num_heads=2,
        embed_size=EMBED,
        mlp_size=24,
        seq_len=POSITIONS,
        vocab_size=10,
        activation=activation,  # type: ignore[arg-type]
        mlp_bias=biases,
        router_bias=biases,
        num_experts=EXPERTS,
        experts_per_token=per_token,
        experts_share_one=share_one,
        shared_size=shared,
        shared_gate=shared_gate,
        balance=0.6,
    )


def clamped(gate: Array, up: Array) -> Array:
    """As gpt-oss has it, with the bounds of its published models."""
    gate = jnp.where(gate > 7, 7, gate)
    return gate / (1 + jnp.exp(-1.702 * gate)) * (jnp.where(jnp.abs(up) > 7, 7 * jnp.sign(up), up) + 1)


PRODUCTS_OF: dict[str, Callable[[Array, Array], Array]] = {
    "swiglu": lambda gate, up: jax.nn.silu(gate) * up,
    "geglu": lambda gate, up: jax.nn.gelu(gate) * up,
    "swiglu-clamped": clamped,
}


def one_by_one(config: GptConfig, weights: dict[str, Array], x: Array) -> Array:
    """Return what the mixture adds to [batch, position, embed], by all experts for all tokens, and the one of all."""
    likely = jax.nn.softmax(x @ weights["router.weight"] + weights.get("router.bias", 0.0), -1)
    least = jnp.sort(likely, -1)[..., -config.experts_per_token, None]
    shares = jnp.where(likely >= least, likely, 0)
    if config.experts_share_one:
        shares = shares / shares.sum(-1, keepdims=True)
    out = jnp.zeros_like(x)
    for i in range(config.num_experts):
        of_expert = {path: array[i] if path.endswith("bias") else array[:, i] for path, array in weights.items()}
        out = out + shares[..., i, None] * mlp(config, of_expert, "", x)
    if config.shared_size:
        share = jax.nn.sigmoid(x @ weights["shared_gate.weight"]) if config.shared_gate else 1.0
        out = out + share * mlp(config, weights, "shared.", x)
    return out


def mlp(config: GptConfig, weights: dict[str, Array], prefix: str, x: Array) -> Array:
    """Return what one gated MLP makes of it."""
    gate, up, down = (weights[f"{prefix}{name}.weight"] for name in ("gate", "up", "down"))
    of_gate, of_up, of_down = (weights.get(f"{prefix}{name}.bias", 0.0) for name in ("gate", "up", "down"))
    return PRODUCTS_OF[config.activation](x @ gate + of_gate, x @ up + of_up) @ down.T + of_down


def imbalance(config: GptConfig, weights: dict[str, Array], x: Array) -> Array:
    """Return experts x sum of (share of the picks) x (mean probability), summed over sequences."""
    likely = jax.nn.softmax(x @ weights["router.weight"] + weights.get("router.bias", 0.0), -1)
    picks = jax.lax.top_k(likely, config.experts_per_token)[1]
    load = jax.nn.one_hot(picks, EXPERTS).sum((1, 2)) / (POSITIONS * config.experts_per_token)
    uneven: Array = EXPERTS * (load * likely.mean(1)).sum()
    return uneven


@pytest.mark.parametrize(
    ("layout", "fields"),
    [*product(LAYOUTS, FIELDS), *zip([*APART, *list(APART)[1:], *APART], [*FIELDS, *FIELDS[-1:] * 2], strict=True)],
    ids=str,
)
def test_a_mixture_is_its_experts_one_by_one(layout: str, fields: dict[str, object]) -> None:
    """What it adds and every gradient are those of MLPs that see all tokens, weighed by the router's shares.

    To the gradients the balance of loads adds its own, and to no value.
    """
    config, on = config_of(**fields), layout_over(**{**LAYOUTS, **APART}[layout])  # type: ignore[arg-type]
    weights = {path: 10 * array for path, array in flatten(Experts.init(config, key=jax.random.key(1))).items()}
    for path, array in weights.items():
        if path.endswith("bias"):
            weights[path] = 3 * jax.random.normal(jax.random.key(len(path)), array.shape)
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

    stored = {path: on.stored(names) for path, names in axis_names(experts).items()}
    with jax.set_mesh(on.mesh):
        found = jax.jit(jax.value_and_grad(ours, (0, 1)))(jax.device_put(weights, stored), x)
    (_, loss), gradients = jax.value_and_grad(theirs, (0, 1), has_aux=True)(weights, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), found, (loss, gradients))


def test_a_sequence_whose_outputs_nobody_uses_is_not_charged() -> None:
    """As in an idle stage of a pipeline, which computes on whatever is there."""
    likely = jax.nn.softmax(jax.random.normal(jax.random.key(0), (2, 5, 4)), -1)
    picks = jax.lax.top_k(likely, 2)[1]
    used = jnp.ones((2, 5, 2)).at[1].set(0)

    def total(likely: Array, loads: Array) -> Array:
        return (charged(0.3, jnp.ones((2, 5, 2)), likely, picks, loads) * used).sum()

    gradient, loads = jax.grad(total, (0, 1))(likely, jnp.zeros((2, 4)))

    assert (gradient[0].sum(-1) > 0).all()
    assert (gradient[1] == 0).all()
    np.testing.assert_allclose(loads[0], np.bincount(np.ravel(picks[0]), minlength=4) / 10, rtol=1e-6)
    assert (loads[1] == 0).all()


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
SHORT = [
    "context 2 x fsdp 2 x tensor 2",
    "replica 2 x experts over 2 x tensor 2, no fsdp",
    "pipeline 2 x fsdp 2 x experts over 2, 4 microbatches",
]
"""Those that `make test` takes: each axis is in one of them."""
OfOneDevice = Callable[[MakeProgram], tuple[str, list[Metrics]]]


@pytest.fixture(scope="module")
def of_one_device() -> OfOneDevice:
    """Return the digest and the numbers of one device, which are computed once."""
    kept: list[tuple[str, list[Metrics]]] = []

    def known(make_program: MakeProgram) -> tuple[str, list[Metrics]]:
        if not kept:
            kept.append(run_with_metrics(make_program(*MIXTURE, *SHARED, num_devices=1)))
        return kept[0]

    return known


@pytest.mark.parametrize("name", all_but(SHORT, PRODUCTS))
def test_losses_do_not_depend_on_the_mesh(make_program: MakeProgram, of_one_device: OfOneDevice, name: str) -> None:
    """Every mesh begins with the bits of one device and has its losses and its loads, which are kept even."""
    devices, words = PRODUCTS[name]
    digest, expected = of_one_device(make_program)
    found, metrics = run_with_metrics(make_program(*MIXTURE, *SHARED, *words, num_devices=devices))

    assert expected[-1].loss < expected[0].loss - 0.1
    assert found == digest
    np.testing.assert_allclose([m.loss for m in metrics], [m.loss for m in expected], rtol=1e-5, atol=0)
    (busiest, idle), (theirs, also_idle) = loads_of(expected), loads_of(metrics)
    # Of 1,024 picks two may go to another of two experts that are as likely to the last bits.
    np.testing.assert_allclose(theirs, busiest, rtol=0, atol=2 / (1024 / 8))
    assert 1 < busiest[-1] < busiest[0]
    assert also_idle == idle


def loads_of(metrics: list[Metrics]) -> tuple[list[float], list[float]]:
    """Return what each step says of the busiest expert, and of idle ones."""
    assert all(one.busiest_expert is not None and one.idle_experts is not None for one in metrics)
    return [float(one.busiest_expert or 0) for one in metrics], [float(one.idle_experts or 0) for one in metrics]


@pytest.mark.parametrize(
    ("devices", "words"),
    [(1, ()), (2, ("mesh.pipeline=2", "batch.microbatches=4")), (4, ("mesh.replica=2", "batch.microbatches=2"))],
    ids=str,
)
def test_a_layer_that_gives_all_to_the_same_experts_is_seen(
    make_program: MakeProgram, devices: int, words: tuple[str, ...]
) -> None:
    """A router of zeros picks the first two of eight for every token: each has four times the mean, six are idle.

    The other layer's loads are uneven by less, and are not what is shown.
    """
    program = make_program(*MIXTURE, *words, num_devices=devices)
    state = program.lower_init().compile()()
    router = state["params"]["blocks.mlp.router.weight"]
    state["params"]["blocks.mlp.router.weight"] = router * jnp.array([1.0, 0.0])[:, None, None]
    controls = jax.device_put(np.zeros(devices, np.int32), program.layout.control)
    _, metrics = lower_step(program).compile()(state, batch_of(program, 0), controls)

    assert metrics.busiest_expert == 4.0
    assert metrics.idle_experts == 6 / 16


def test_a_model_without_experts_has_no_loads(make_program: MakeProgram) -> None:
    """Its step has no such numbers."""
    _, (metrics,) = run_with_metrics(make_program(num_devices=1), num_steps=1)

    assert metrics.busiest_expert is None
    assert metrics.idle_experts is None
