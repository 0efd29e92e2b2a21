"""Adapters of a mixture's experts: against products of their factors with the weights, and on every kind of mesh."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import NamedArray
from tests.train.conftest import SMALL, run_here
from tests.train.grids import layout_over
from tests.train.test_experts import BATCH, EMBED, MIXTURE, POSITIONS, SHARED, config_of, one_by_one
from tests.train.test_lora import LORA, _exported, _train
from tests.train.test_meshes import batch_of
from tests.train.test_origin import folder, params

from shardwise.cli.saved_model import load_model
from shardwise.job.adapter_sizes import adapter_parameters
from shardwise.job.load import loads
from shardwise.job.resolve import resolve
from shardwise.job.spec.training import Lora
from shardwise.plan.flops import traced_flops
from shardwise.protocol.contract import ExitCode
from shardwise.protocol.errors import DataError
from shardwise.train.config import GptConfig
from shardwise.train.expert_weights import Matrix
from shardwise.train.experts import Experts
from shardwise.train.flops import flops_per_token
from shardwise.train.generate import generate
from shardwise.train.layout import assemble, axis_names, flatten
from shardwise.train.lora import initial, is_adapter, merged
from shardwise.train.picks import AllRows
from shardwise.train.sampling import Sampling
from shardwise.train.state import BASE, Program, State, parameters
from shardwise.train.step import lower_evaluation, trace_step
from shardwise.train.weights import write_adapters

Array = jax.Array
MakeProgram = Callable[..., Program]
WORDS = (*LORA, "lora.mlp=true", *MIXTURE, *SHARED)
SCALE = 7 / 3
EINSUMS = {
    "gate": "exr,rxm->exm",
    "up": "exr,rxm->exm",
    "down": "rxm,exr->exm",
    "shared.gate": "er,rm->em",
    "shared.up": "er,rm->em",
    "shared.down": "mr,er->em",
}
"""By product: how its factors, to the rank and from it, make what is added to its weight."""


@pytest.mark.parametrize(
    ("over", "fields"),
    [
        ({}, {"activation": "swiglu-clamped", "biases": True, "shared": 16}),
        ({"outer": 2, "inner": 2, "tensor": 2}, {"shared": 8, "shared_gate": True}),
        ({"outer": 2, "inner": 2, "tensor": 2, "splits_experts": True}, {"shared": 8, "share_one": False}),
    ],
    ids=["one device", "fsdp 2 x 2 x tensor 2", "fsdp 2 x experts over 2 x tensor 2"],
)
def test_what_adapters_add_is_the_product_of_their_factors(over: dict[str, int], fields: dict[str, object]) -> None:
    """Value and gradients are those of experts whose weights have it in them, and the weights themselves have none."""
    config, on = replace(config_of(**fields), balance=0.0), layout_over(**over)  # type: ignore[arg-type]
    experts = adapted(config)
    weights = {path: drawn(path, array) for path, array in flatten(experts).items()}
    factors = {path: array for path, array in weights.items() if is_adapter(path)}
    x = jax.random.normal(jax.random.key(2), (BATCH, POSITIONS, EMBED))
    slope = jax.random.normal(jax.random.key(3), x.shape)
    assert len(factors) == 2 * len(EINSUMS)

    def ours(weights: dict[str, Array], x: Array) -> Array:
        named = hax.named(x, ("batch", "position", "embed"))
        added = assemble(experts, weights)(named, on)
        weighed: Array = (added.rearrange(named.axes).array * slope).sum()
        return weighed

    def theirs(factors: dict[str, Array], x: Array) -> Array:
        weighed: Array = (one_by_one(config, with_products(weights, factors), x) * slope).sum()
        return weighed

    stored = {path: on.stored(names) for path, names in axis_names(experts).items()}
    with jax.set_mesh(on.mesh):
        loss, (of_weights, of_x) = jax.jit(jax.value_and_grad(ours, (0, 1)))(jax.device_put(weights, stored), x)
    expected, (of_factors, of_theirs) = jax.value_and_grad(theirs, (0, 1))(factors, x)

    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    np.testing.assert_allclose(of_x, of_theirs, rtol=1e-4, atol=1e-4)
    for path, gradient in of_factors.items():
        np.testing.assert_allclose(of_weights[path], gradient, rtol=1e-4, atol=1e-4, err_msg=path)
        assert jnp.abs(gradient).max() > 0.1
    assert not any(of_weights[f"{name}.weight"].any() for name in EINSUMS)


def adapted(config: GptConfig) -> Experts:
    """The mixture of one layer, with its adapters."""
    model = initial(config, Lora(rank=3, alpha=3 * SCALE, mlp=True), key=jax.random.key(1))
    experts: Experts = model.blocks.stacked.mlp
    one: Experts = jax.tree.map(lambda x: x["layers", 0], experts, is_leaf=lambda x: isinstance(x, NamedArray))
    return one


def drawn(path: str, array: Array) -> Array:
    """Numbers in the place of zeros, and large ones."""
    if path.endswith(("bias", "b.weight")):
        return jax.random.normal(jax.random.key(len(path)), array.shape) * (3 if path.endswith("bias") else 0.3)
    return array if is_adapter(path) else 10 * array


def with_products(weights: dict[str, Array], factors: dict[str, Array]) -> dict[str, Array]:
    """The weights, with the products of their factors in them."""
    plain = {path: x for path, x in weights.items() if not is_adapter(path)}
    for name, how in EINSUMS.items():
        a, b = (factors[f"{name}.adapter.{factor}.weight"] for factor in ("a", "b"))
        plain[f"{name}.weight"] = plain[f"{name}.weight"] + SCALE * jnp.einsum(how, a, b)
    return plain


def test_what_is_added_is_not_rounded_to_the_weight() -> None:
    """A quarter of the last bit of a bfloat16 weight arrives, both ways."""
    signs, small = jnp.array([[1], [-1]], jnp.bfloat16), jnp.full((2, 1), 2**-10, jnp.bfloat16)
    one, rows = jnp.ones((1, 1), jnp.bfloat16), jnp.ones((1, 2), jnp.bfloat16)

    assert Matrix(signs, (small, one)).into(AllRows(), rows) == 2**-9
    assert Matrix(signs.T, (one, small.T)).out_of(AllRows(), rows) == 2**-9


MESHES = {
    "replica 2 x context 2 x tensor 2, 2 microbatches": (
        8,
        ("mesh.replica=2", "mesh.context=2", "mesh.tensor=2", "batch.microbatches=2"),
    ),
    "pipeline 2 x experts over 2 x tensor 2, no fsdp, 4 microbatches": (
        8,
        ("mesh.pipeline=2", "mesh.expert=2", "mesh.tensor=2", "mesh.fsdp=false", "batch.microbatches=4"),
    ),
}


@pytest.fixture(scope="module")
def of_one_device() -> Callable[[MakeProgram], tuple[Program, State, list[float]]]:
    """Return the program of one device, its state after some steps and the losses, which are computed once."""
    kept: list[tuple[Program, State, list[float]]] = []

    def known(make_program: MakeProgram) -> tuple[Program, State, list[float]]:
        if not kept:
            program = make_program(*WORDS, num_devices=1)
            kept.append((program, *_train(program)))
        return kept[0]

    return known


OfOneDevice = Callable[[MakeProgram], tuple[Program, State, list[float]]]


@pytest.mark.parametrize("name", MESHES)
def test_losses_do_not_depend_on_the_mesh(make_program: MakeProgram, of_one_device: OfOneDevice, name: str) -> None:
    """Over 10 float32 steps every mesh gives the losses of one device, which fall."""
    _, _, expected = of_one_device(make_program)
    devices, words = MESHES[name]
    _, found = _train(make_program(*WORDS, *words, num_devices=devices))

    assert expected[-1] < expected[0] - 0.05
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=0)


def test_a_run_begins_with_the_model_and_ends_with_what_was_added(
    make_program: MakeProgram, of_one_device: OfOneDevice
) -> None:
    """Its first loss is that of the model without adapters, and its last logits those of the merged weights."""
    program, state, (first, *_) = of_one_device(make_program)
    plain = make_program(*MIXTURE, *SHARED, num_devices=1)
    evaluate, lora = lower_evaluation(plain).compile(), program.training.lora
    assert lora is not None
    before = evaluate(state[BASE], batch_of(plain, 0))
    assert first == pytest.approx(float(before.cross_entropy / before.weight), rel=1e-6)

    weights = merged(state[BASE], state["params"], program.names, lora)
    with_adapters = lower_evaluation(program).compile()(parameters(state), batch_of(program, 99))
    without, at_first = (evaluate(each, batch_of(plain, 99)) for each in (weights, state[BASE]))
    assert float(with_adapters.cross_entropy) == pytest.approx(float(without.cross_entropy), rel=1e-6)
    assert abs(float(at_first.cross_entropy / without.cross_entropy) - 1) > 1e-3
    moved = {path for path, x in weights.items() if not np.array_equal(x, state[BASE][path])}
    assert moved == {
        *(f"blocks.mlp.{name}.weight" for name in EINSUMS),
        *(f"blocks.attention.{name}.weight" for name in ("qkv", "out")),
    }


def test_text_is_that_of_merged_weights(make_program: MakeProgram, of_one_device: OfOneDevice) -> None:
    """Made while adapters are trained, also where experts are split over devices, it is what the saved model makes."""
    one, state, _ = of_one_device(make_program)
    assert one.training.lora is not None
    weights = merged(state[BASE], state["params"], one.names, one.training.lora)
    split = make_program(*WORDS, "mesh.tensor=2", "mesh.expert=2", num_devices=4)
    shardings = split.shardings()
    params = jax.device_put(parameters(state), {**shardings[BASE], **shardings["params"]})
    plain = make_program(*MIXTURE, *SHARED, num_devices=1)

    def text(program: Program, params: dict[str, Array]) -> list[int]:
        return list(generate(program, params, b"what", num_tokens=12, sampling=Sampling(temperature=0)))

    expected = text(plain, weights)
    assert text(split, params) == expected
    assert text(plain, state[BASE]) != expected


def test_each_expert_has_factors_of_its_own(make_program: MakeProgram) -> None:
    """They are on the device of their expert; FSDP splits the side of `embed`, and tensor the other; all are float32.

    Of the router nothing is trained, nor of the gate of the MLP beside the experts.
    """
    program = make_program(*WORDS, "precision.compute=bfloat16", "mesh.expert=2", "mesh.tensor=2")
    held = program.abstract()
    found = {path: x for path, x in held["params"].items() if path.startswith("blocks.mlp.")}
    assert found.keys() == {f"blocks.mlp.{name}.adapter.{side}.weight" for name in EINSUMS for side in ("a", "b")}

    def is_split(path: str, *parts: int) -> bool:
        x = found[f"blocks.mlp.{path}.weight"]
        return bool(x.dtype == jnp.float32 and x.sharding.shard_shape(x.shape) == parts)

    for name in ("gate", "up"):
        assert is_split(f"{name}.adapter.a", 2, 32 // 2, 8 // 2, 4)
        assert is_split(f"{name}.adapter.b", 2, 4, 8 // 2, 32 // 2)
    assert is_split("down.adapter.a", 2, 4, 8 // 2, 32 // 2)
    assert is_split("down.adapter.b", 2, 32 // 2, 8 // 2, 4)
    assert held[BASE]["blocks.mlp.up.weight"].dtype == jnp.bfloat16
    drawn = program.lower_init().compile()()["params"]["blocks.mlp.gate.adapter.a.weight"]
    assert not np.isin(drawn[:, :, 0], drawn[:, :, 1]).any()
    assert float(jnp.std(drawn)) == pytest.approx(1 / np.sqrt(32), rel=0.1)


@pytest.mark.parametrize("words", [(), ("model.layers=9", "model.experts.denseBlocks=1", "model.experts.denseMlp=48")])
def test_arithmetic_of_adapters_is_that_of_the_trace(make_program: MakeProgram, words: tuple[str, ...]) -> None:
    """A token goes through the adapters of the experts that it picks: the formula counts 6 for each parameter of them.

    The trace has besides it what the mask leaves out, and for the gradient of each factor a product with the other one:
    half of these were there before, which XLA finds.
    """
    program = make_program(*WORDS, "model.remat=none", "model.layers=8", "lora.rank=16", *words, num_devices=1)
    config, training = program.config, program.training
    tokens = training.batch.sequences * config.seq_len
    masked = 3 * config.num_layers * config.num_heads * (config.head_size + config.value_size) * config.seq_len
    counted = traced_flops(trace_step(program), program.layout.mesh.shape) / tokens - masked
    padding = 4 * config.embed_size * (config.Vocab.size - config.vocab_size)
    mlps, inside = config.experts_per_token + 1, config.experts_per_token * config.mlp_size + config.shared_size
    mixtures = config.num_layers - config.num_dense_blocks
    again = 3 * 2 * 16 * (mlps * config.embed_size + inside) * mixtures

    held = sum(x.size for x in program.abstract()["params"].values())
    assert adapter_parameters(training.model, training.lora) == held
    assert counted - padding - again == pytest.approx(flops_per_token(config, training), rel=0.02)


def test_adapters_of_experts_are_not_exported_alone(make_program: MakeProgram, tmp_path: Path) -> None:
    """PEFT would look for one pair of matrices where each expert has its own; nothing is written."""
    program, out = make_program(*WORDS, num_devices=1), tmp_path / "adapters" / "adapter_model.safetensors"
    lora, adapters = program.training.lora, dict.fromkeys(program.trained, np.zeros(1))
    assert lora is not None
    with pytest.raises(DataError, match=r"each expert has adapters of its own.*export the model with them added"):
        write_adapters(out, program.config, adapters, program.names, lora)
    assert not out.parent.exists()


@pytest.mark.usefixtures("as_a_trainer")
def test_a_saved_model_has_the_adapters_of_its_experts_added(tmp_path: Path) -> None:
    """Of what the checkpoint holds: for each expert the product of its own factors, on top of the weights of `base`."""
    (tmp_path / "text.txt").write_text("all work and no play " * 2000)
    words = [f"training.{word}" for word in (*MIXTURE, "model.layers=1", "steps=2")]
    words += [f"training.data.train.0.paths=[{tmp_path}/text.txt]", "training.checkpoint.everySteps=2"]
    assert run_here(folder(tmp_path, "base"), *words) == ExitCode.OK
    words += [f"training.startFrom={{path: {tmp_path}/base, step: 2}}", "training.lora={rank: 2, mlp: true}"]
    run = folder(tmp_path, "tuned")
    assert run_here(run, *words) == ExitCode.OK

    held = {name.removeprefix("params."): x for name, x in params(run, 2).items()}
    base = {name.removeprefix("params."): x for name, x in params(tmp_path / "base", 2).items()}
    job = resolve(loads(SMALL, words))
    model, exported = load_model(job, str(run / "checkpoints"), step=2, report=lambda *_: None), _exported(job, run, 2)
    for name in ("gate", "up", "down"):
        a, b = (held[f"blocks.mlp.{name}.adapter.{side}.weight"][0] for side in ("a", "b"))
        expected = base[f"blocks.mlp.{name}.weight"][0] + 2 * np.einsum(EINSUMS[name], a, b)
        assert b.any()
        for found in (model.params, exported):
            np.testing.assert_allclose(found[f"blocks.mlp.{name}.weight"][0], expected, rtol=1e-5, atol=1e-7)
