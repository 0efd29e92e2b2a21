"""How experts are chosen and weighed: against a token at a time in NumPy, and on every kind of mesh."""

import json
from collections.abc import Callable
from pathlib import Path

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.long import all_but
from tests.train.conftest import run_here
from tests.train.test_experts import MIXTURE, PRODUCTS
from tests.train.test_meshes import batch_of, run_with_metrics

from shardwise.job.sizes import all_block_matrices, num_parameters, num_parameters_of_a_token
from shardwise.protocol.contract import ExitCode
from shardwise.train.balance import LOADS, PICK_BIAS, charged, moved
from shardwise.train.checkpoint import load_numpy
from shardwise.train.config import GptConfig
from shardwise.train.flops import num_matrix_parameters
from shardwise.train.layout import flatten
from shardwise.train.router import routed
from shardwise.train.state import REFERENCE, Program, flat
from shardwise.train.step import Metrics, lower_evaluation, lower_step

Array = jax.Array
MakeProgram = Callable[..., Program]
SHORT = [
    "pipeline 2 x fsdp 2 x experts over 2, 4 microbatches",
    "replica 2 x experts over 2 x tensor 2, no fsdp",
]
"""Those that `make test` takes; `tests/train/test_experts.py` has experts with their sequences split, too."""
BIASED = (
    *MIXTURE,
    "model.experts.score=sigmoid",
    "model.experts.shareFactor=2.5",
    "model.experts.pickBias=true",
    "model.experts.biasRate=0.01",
    "model.experts.balance=0.001",
    "model.experts.groups=4",
    "model.experts.groupsPerToken=2",
    "model.experts.shared=64",
)
DENSE = (*BIASED, "model.layers=3", "model.experts.denseBlocks=1", "model.experts.denseMlp=48")
EXPERTS = 12
ROUTERS: dict[str, dict[str, object]] = {
    "sigmoid": {"expert_score": "sigmoid"},
    "sigmoid, not one": {"expert_score": "sigmoid", "experts_share_one": False, "share_factor": 2.5},
    "bias": {"pick_bias": True},
    "V3": {
        "expert_score": "sigmoid",
        "pick_bias": True,
        "share_factor": 2.5,
        "expert_groups": 4,
        "groups_per_token": 2,
    },
    "V2": {
        "experts_share_one": False,
        "share_factor": 16.0,
        "expert_groups": 6,
        "groups_per_token": 3,
        "group_score": "best",
    },
}


def config_of(**fields: object) -> GptConfig:
    """Return the config of a model with twelve experts, of which a token has three."""
    sizes = {"num_layers": 2, "num_heads": 2, "embed_size": 8, "mlp_size": 8, "seq_len": 8, "vocab_size": 10}
    return GptConfig(**sizes, num_experts=EXPERTS, experts_per_token=3, balance=0.6, **fields)  # type: ignore[arg-type]


def of_a_token(config: GptConfig, logits: np.ndarray, bias: np.ndarray) -> tuple[dict[int, float], np.ndarray]:
    """Return the share of each expert of a token, and the likelihoods that the balance is of, as the papers say it."""
    scores = np.exp(logits) / np.exp(logits).sum() if config.expert_score == "softmax" else 1 / (1 + np.exp(-logits))
    choice = scores + bias
    groups = choice.reshape(config.expert_groups, -1)
    best_of = 2 if config.group_score == "two-best" else 1
    of_groups = np.sort(groups, 1)[:, -best_of:].sum(1)
    allowed = np.argsort(of_groups)[-config.groups_per_token :] if config.expert_groups > 1 else [0]
    held = [expert for group in allowed for expert in range(EXPERTS // len(groups) * group, EXPERTS)[: groups.shape[1]]]
    picks = sorted(held, key=lambda expert: choice[expert])[-config.experts_per_token :]
    total = scores[picks].sum() if config.experts_share_one else 1.0
    return {pick: config.share_factor * scores[pick] / total for pick in picks}, scores / scores.sum()


@pytest.mark.parametrize("name", ROUTERS)
def test_shares_are_those_of_one_token_after_the_other(name: str) -> None:
    """Each token has the papers' experts with the papers' shares; a bias changes the choice and is in no share."""
    config = config_of(**ROUTERS[name])
    logits = 2 * jax.random.normal(jax.random.key(0), (2, 50, EXPERTS))
    bias = jax.random.normal(jax.random.key(1), (EXPERTS,)) * (0.5 if config.pick_bias else 0)
    named = hax.named(logits, ("batch", "position", "routes"))
    of_bias = hax.named(bias, "routes") if config.pick_bias else None
    shares, picks = jax.jit(lambda: routed(config, named, of_bias, None))()

    expected = [of_a_token(config, np.asarray(row), np.asarray(bias))[0] for row in logits.reshape(-1, EXPERTS)]
    for token, its_picks, its_shares in zip(expected, picks.reshape(-1, 3), shares.reshape(-1, 3), strict=True):
        found = dict(zip(its_picks.tolist(), its_shares.tolist(), strict=True))
        assert found == pytest.approx(token, rel=1e-5)
    if config.pick_bias:
        assert (picks != routed(config, named, hax.named(0 * bias, "routes"), None)[1]).any()


def test_the_balance_of_sigmoids_is_of_scores_that_add_up_to_one() -> None:
    """As in DeepSeek-V3, equations 17 to 20: its gradient is that of the formula, by automatic differentiation."""
    config = config_of(**ROUTERS["V3"])
    logits = 2 * jax.random.normal(jax.random.key(0), (2, 50, EXPERTS))
    bias = hax.named(jax.random.normal(jax.random.key(1), (EXPERTS,)), "routes")

    def ours(logits: Array) -> Array:
        shares, _ = routed(config, hax.named(logits, ("batch", "position", "routes")), bias, None)
        weighed: Array = (shares * slope).sum()
        return weighed

    def imbalance(logits: Array) -> Array:
        scores = jax.nn.sigmoid(logits)
        likely = scores / scores.sum(-1, keepdims=True)
        load = jax.nn.one_hot(picks, EXPERTS).sum((1, 2)) / (50 * 3)
        uneven: Array = EXPERTS * (load * likely.mean(1)).sum()
        return uneven

    picks = routed(config, hax.named(logits, ("batch", "position", "routes")), bias, None)[1]
    slope = jnp.full(picks.shape, 1e-20)  # that of the loss, so small that the balance is all there is
    found, expected = jax.grad(ours)(logits), 0.6 / 2 * 50 * jax.grad(imbalance)(logits)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-7)


def test_a_bias_moves_against_the_sign_of_its_load() -> None:
    """By the rate, whatever the distance; at the mean it stays, also where that is no whole number, and without picks.

    Picks are counted, not shares of them: sums of these would depend on their order.
    """
    picks = jnp.array([[5, 3, 4, 4], [0, 0, 0, 0], [3, 2, 2, 3], [0, 1, 0, 0]], jnp.float32)
    found = moved(0.5, {PICK_BIAS: jnp.ones((4, 4))}, {LOADS: picks})

    signs = np.array([[-1, 1, 0, 0], [0, 0, 0, 0], [-1, 1, 1, -1], [1, -1, 1, 1]])
    np.testing.assert_array_equal(found[PICK_BIAS], 1 + 0.5 * signs)
    assert moved(0.5, {}, {LOADS: picks}) == {}

    likely, ones = jnp.ones((2, 5, 4)), jnp.ones((2, 5, 2))
    chosen = jax.random.randint(jax.random.key(0), (2, 5, 2), 0, 4)
    counted = jax.grad(lambda zeros: charged(0.3, ones, likely, chosen, zeros, "picks").sum())(jnp.zeros((2, 4)))
    np.testing.assert_array_equal(counted, [np.bincount(np.ravel(row), minlength=4) for row in chosen])


def test_no_optimizer_knows_of_biases(make_program: MakeProgram) -> None:
    """They have no moments, no masters and no group, are in no norm, and are float32 where the rest is not."""
    program = make_program(*BIASED, "precision.params=bfloat16", "optimizer.groups=[{match: '*', rateFactor: 0.0}]")
    paths = flat(program.abstract())

    assert [path for path in paths if PICK_BIAS in path] == [f"params.{PICK_BIAS}"]
    assert paths[f"params.{PICK_BIAS}"].dtype == jnp.float32
    assert paths["params.blocks.mlp.router.weight"].dtype == jnp.bfloat16
    state, (one,) = steps_of(program, 1)
    assert float(one.grad_norm) == 0
    assert jnp.abs(state["params"][PICK_BIAS]).max() == jnp.float32(0.01)


def test_a_bias_has_no_gradient(make_program: MakeProgram) -> None:
    """With a rate of 0 it stays what it is, to the last bit, and the loss follows from it: other experts are picked."""
    losses = []
    for size in (0, 1):
        program = make_program(*BIASED, "model.experts.biasRate=0", num_devices=1)
        state = program.lower_init().compile()()
        state["params"][PICK_BIAS] = bias = size * jax.random.normal(jax.random.key(0), (2, 8))
        kept = np.asarray(bias)
        step = lower_step(program).compile()
        new, metrics = step(state, batch_of(program, 0), jax.device_put(np.zeros(1, np.int32), program.layout.control))
        np.testing.assert_array_equal(new["params"][PICK_BIAS], kept)
        losses.append(float(metrics.loss))
    assert losses[0] != losses[1]


def steps_of(
    program: Program, number: int, limits: tuple[float, ...] = ()
) -> tuple[dict[str, dict[str, Array]], list[Metrics]]:
    """Return the state after some steps, with a limit of the loss of each if the program takes one."""
    state, step = program.lower_init().compile()(), lower_step(program).compile()
    controls = jax.device_put(np.zeros(program.layout.mesh.size, np.int32), program.layout.control)
    metrics = []
    for i in range(number):
        limit = [jax.device_put(np.float32(limits[i]), program.layout.replicated)] if limits else []
        state, one = step(state, batch_of(program, i), controls, *limit)
        metrics.append(one)
    return state, metrics


Known = Callable[[MakeProgram], tuple[Array, list[Metrics]]]


@pytest.fixture(scope="module")
def of_one_device() -> Known:
    """Return the biases and the numbers of one device after some steps, which are computed once."""
    kept: list[tuple[Array, list[Metrics]]] = []

    def known(make_program: MakeProgram) -> tuple[Array, list[Metrics]]:
        if not kept:
            state, metrics = steps_of(make_program(*BIASED, num_devices=1), 10)
            kept.append((state["params"][PICK_BIAS], metrics))
        return kept[0]

    return known


@pytest.mark.parametrize("name", all_but(SHORT, PRODUCTS))
def test_biases_do_not_depend_on_the_mesh(make_program: MakeProgram, of_one_device: Known, name: str) -> None:
    """Every mesh has the losses and the biases of one device."""
    devices, words = PRODUCTS[name]
    bias, expected = of_one_device(make_program)
    state, metrics = steps_of(make_program(*BIASED, *words, num_devices=devices), 10)

    np.testing.assert_array_equal(state["params"][PICK_BIAS], bias)
    np.testing.assert_allclose([m.loss for m in metrics], [m.loss for m in expected], rtol=1e-5, atol=0)
    assert np.unique(np.abs(bias)).size > 2


@pytest.mark.parametrize("name", all_but(SHORT[:1], [name for name in PRODUCTS if "no fsdp" not in name]))
def test_first_blocks_with_one_mlp_do_not_depend_on_the_mesh(make_program: MakeProgram, name: str) -> None:
    """Every mesh begins with the bits of one device, and has its losses; each kind of block has a stack of its own."""
    one = make_program(*DENSE, num_devices=1)
    shapes = {path: one.abstract()["params"][f"{path}.mlp.up.weight"].shape for path in ("dense_blocks", "blocks")}
    assert one.names["dense_blocks.mlp.up.weight"] == ("dense_layers", "embed", "dense_mlp")
    assert shapes == {"dense_blocks": (1, 32, 48), "blocks": (2, 32, 8, 32)}
    digest, expected = run_with_metrics(one, num_steps=10)
    assert expected[-1].loss < expected[0].loss - 0.1
    devices, words = PRODUCTS[name]
    found, metrics = run_with_metrics(make_program(*DENSE, *words, num_devices=devices), num_steps=10)
    assert found == digest
    np.testing.assert_allclose([m.loss for m in metrics], [m.loss for m in expected], rtol=1e-5, atol=0)


def test_first_blocks_run_ahead_of_a_pipeline(make_program: MakeProgram) -> None:
    """Blocks have their numbers in the model and their documents: windows in turn and dropout are those of one device.

    Gradients too, of which ten steps are made; and what is evaluated.
    """
    layers = ("model.layers=6", "model.experts.denseBlocks=2", "batch.microbatches=4")
    windows = ("model.slidingWindow=8", "model.slidingWindowPattern=3", "data.attendAcross=document")
    words = (*DENSE, *layers, *windows, "model.dropout.embed=0.1", "model.dropout.residual=0.2")
    mesh = ("mesh.pipeline=2", "mesh.pipelineRounds=2", "mesh.tensor=2")
    one, split = make_program(*words, num_devices=1), make_program(*words, *mesh, num_devices=8)
    (digest, expected), (found, metrics) = (run_with_metrics(program, num_steps=10) for program in (one, split))
    assert found == digest
    np.testing.assert_allclose([m.loss for m in metrics], [m.loss for m in expected], rtol=1e-5, atol=0)
    np.testing.assert_allclose([m.grad_norm for m in metrics], [m.grad_norm for m in expected], rtol=1e-5, atol=0)

    sums = []
    for program in (one, split):
        params = program.lower_init().compile()()["params"]
        sums.append(jax.device_get(lower_evaluation(program).compile()(params, batch_of(program, 0))))
    np.testing.assert_allclose(sums[1].cross_entropy, sums[0].cross_entropy, rtol=1e-6)


def test_a_first_block_is_that_of_a_model_without_experts(make_program: MakeProgram) -> None:
    """It has the weights of its number, and what it adds is that of the same block among others of its kind."""
    mixed = make_program(*DENSE, num_devices=1)
    words = [word for word in MIXTURE if "experts" not in word]
    plain = make_program(*words, "model.layers=3", "model.mlp=48", num_devices=1)
    first, every = (program.lower_init().compile()()["params"] for program in (mixed, plain))
    of_first = {path.removeprefix("dense_"): x for path, x in first.items() if path.startswith("dense_blocks.")}

    assert of_first.keys() == {path for path in every if path.startswith("blocks.")}
    for path, array in of_first.items():
        np.testing.assert_array_equal(array[0], every[path][0], err_msg=path)


def test_the_arithmetic_of_a_token_is_that_of_its_matrices(make_program: MakeProgram) -> None:
    """By the trainer's config and by the job's sizes; those that it is not multiplied with are other experts'."""
    program = make_program(*DENSE, num_devices=1)
    model, vocab = program.training.model, program.config.vocab_size
    first, others = 3 * 32 * 48, 3 * 32 * (2 * 32 + 64) + 8 * 32
    attention = 4 * 32 * 32

    assert num_matrix_parameters(program.config) == 3 * attention + first + 2 * others + vocab * 32
    assert all_block_matrices(model, of_a_token=True) == 3 * attention + first + 2 * others
    held = flatten(program.template)
    of_padding = sum(program.config.Vocab.size - vocab for path, axes in program.names.items() if "vocab" in axes) * 32
    assert num_parameters(model, vocab) == sum(array.size for array in held.values()) - of_padding
    assert num_parameters(model, vocab) - num_parameters_of_a_token(model, vocab) == 2 * 6 * 3 * 32 * 32


def test_preferences_are_compared_with_the_model_and_its_biases_as_they_were(make_program: MakeProgram) -> None:
    """A copy of all weights stays as it is, of biases too, while steps move those of the model."""
    pairs = "data.train=[{name: pairs, paths: [pairs.jsonl], chatTemplate: chatml, preferences: true}]"
    words = (pairs, "data.attendAcross=document", "startFrom={path: base, step: 0}")
    program = make_program(*BIASED, *words, num_devices=1)
    state = jax.eval_shape(program.init)

    assert state["base"][REFERENCE + PICK_BIAS].dtype == jnp.float32
    assert PICK_BIAS in state["params"]
    reference = jax.eval_shape(program.reference, {**state["base"], **state["params"]})
    assert flatten(reference).keys() == program.trained.keys()


def test_loads_become_even_by_biases_alone(make_program: MakeProgram) -> None:
    """Without a balance in what is minimised, a layer's busiest expert has less to do than it has without them."""
    words = (*BIASED, "model.experts.balance=0", "model.experts.groups=1", "model.experts.groupsPerToken=1")
    last = [
        steps_of(make_program(*words, f"model.experts.biasRate={rate}", num_devices=1), 30)[1][-1].busiest_expert
        for rate in (0, 0.02)
    ]
    assert last[0] is not None
    assert last[1] is not None
    assert last[1] - 1 < 0.6 * (last[0] - 1)


def test_a_step_that_is_skipped_moves_no_bias(make_program: MakeProgram) -> None:
    """It counts, and changes nothing else."""
    program = make_program(*BIASED, "badSteps={nonFinite: skip, lossSpike: skip}", num_devices=1)
    (one, _), (two, _) = steps_of(program, 1, (np.inf,)), steps_of(program, 2, (np.inf, 0.0))

    assert int(two["step"]) == 2  # type: ignore[call-overload]
    np.testing.assert_array_equal(one["params"][PICK_BIAS], two["params"][PICK_BIAS])
    assert (one["params"][PICK_BIAS] != 0).any()


@pytest.mark.usefixtures("as_a_trainer")
def test_a_run_goes_on_with_its_biases(tmp_path: Path) -> None:
    """Two starts of two steps end with the bits of one start of four, and a checkpoint holds the biases."""
    text = tmp_path / "text.txt"
    text.write_text("all work and no play " * 2000)
    words = (*(f"training.{word}" for word in BIASED), f"training.data.train.0.paths=[{text}]")
    digests = []
    for name, numbers in (("once", (4,)), ("twice", (2, 4))):
        (tmp_path / name / "logs").mkdir(parents=True)
        for number in numbers:
            assert run_here(tmp_path / name, *words, f"training.steps={number}") == ExitCode.OK
        digests.append(json.loads((tmp_path / name / "summary.json").read_text())["digest"])
    assert digests[0] == digests[1]

    (held,) = (array for _, array in load_numpy(str(tmp_path / "twice" / "checkpoints"), 4, f"params.{PICK_BIAS}"))
    assert held.dtype == np.float32
    assert (held != 0).any()
