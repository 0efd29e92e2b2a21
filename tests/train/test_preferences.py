"""Preferences: the loss of pairs of answers and its gradient, on any mesh, and what a run learns of them."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.long import all_but
from tests.train.conftest import run_here, runs_here
from tests.train.test_experts import MIXTURE
from tests.train.test_meshes import LLAMA
from tests.train.test_origin import folder, losses, params

from shardwise.plan.flops import traced_flops
from shardwise.protocol.contract import ExitCode
from shardwise.protocol.errors import RunDirectoryError
from shardwise.train.checkpoint import read_manifest
from shardwise.train.dropout import Dropout
from shardwise.train.flops import flops_per_token
from shardwise.train.gradients import gradients, loss_sums
from shardwise.train.lora import without_adapters
from shardwise.train.metrics import records
from shardwise.train.microbatches import Batch
from shardwise.train.model import whole_table
from shardwise.train.state import REFERENCE, Program, parameters, without_copies
from shardwise.train.step import lower_evaluation_of_text, trace_step
from shardwise.train.zigzag import zigzag

MakeProgram = Callable[..., Program]
BETA, CHOSEN_WEIGHT = 0.7, 0.3
LORA = "training.lora={rank: 4}"
OF_PAIRS = (
    "data.train=[{name: pairs, paths: [pairs.jsonl], chatTemplate: chatml, preferences: true}]",
    "data.attendAcross=document",
    f"loss.beta={BETA}",
    "startFrom={path: base, step: 0}",
    "batch.sequences=24",
)
PAIRS = (*OF_PAIRS, "lora.rank=4")
AND_CHOSEN = f"loss.chosenWeight={CHOSEN_WEIGHT}"
IPO, SMOOTHED = "loss.preferences=ipo", "loss.labelSmoothing=0.2"
SIMPO = ("loss.preferences=simpo", "loss.margin=0.4")
ORPO = ("loss.preferences=orpo", AND_CHOSEN)
FACTORS = ("model.embeddingFactor=12", "model.residualFactor=0.22", "model.logitDivisor=0.5")
MESHES = {
    "fsdp 2 x tensor 4": (8, ("mesh.tensor=4",)),
    "data 2 x tensor 2, no fsdp, 3 microbatches": (4, ("mesh.tensor=2", "mesh.fsdp=false", "batch.microbatches=3")),
    "replica 2 x fsdp 2 x tensor 2, 2 microbatches": (8, ("mesh.tensor=2", "mesh.replica=2", "batch.microbatches=2")),
    "fsdp 2 x context 2 x tensor 2": (8, ("mesh.tensor=2", "mesh.context=2")),
    "fsdp 2 x context 4, ring": (8, ("mesh.context=4", "mesh.contextStrategy=ring")),
    "fsdp 2 x pipeline 3": (6, ("mesh.pipeline=3", "batch.microbatches=3")),
}
SHORT = ["fsdp 2 x context 4, ring", "fsdp 2 x pipeline 3"]
"""Those that `make test` takes with adapters; with all weights it takes replicas."""


@pytest.mark.parametrize(
    "words",
    [
        PAIRS,
        pytest.param((*PAIRS, *LLAMA, AND_CHOSEN), marks=pytest.mark.long),
        pytest.param((*OF_PAIRS, *LLAMA), marks=pytest.mark.long),
        (*PAIRS, SMOOTHED),
        (*PAIRS, IPO, AND_CHOSEN),
        (*OF_PAIRS, *SIMPO),
        (*PAIRS, *ORPO),
        pytest.param((*OF_PAIRS, *FACTORS), marks=pytest.mark.long),
    ],
    ids=[
        "gpt2",
        "llama, and what was chosen",
        "all weights of llama",
        "smoothed labels",
        "ipo, and what was chosen",
        "simpo, all weights",
        "orpo",
        "factors",
    ],
)
def test_the_gradient_is_that_of_the_published_loss(make_program: MakeProgram, words: tuple[str, ...]) -> None:
    """Loss, pairs that are in order and gradient are those of the published formula, by whole logits and autodiff."""
    program = make_program(*words, num_devices=1)
    params, batch, loss = _params(program), _batch(), program.training.loss

    def total(trained: dict[str, jax.Array]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        own = _log_probabilities(program, {**params, **trained}, batch)
        means = jnp.stack([own.mean(1, where=_counted(batch, each)) for each in (0, 2, 4)])
        is_free = loss.preferences in ("simpo", "orpo")
        as_it_was = 0 if is_free else _log_probabilities(program, params, batch, as_it_was=True)
        gains = own - jax.lax.stop_gradient(as_it_was)
        each_answer = [batch.weights * (batch.segments == each) for each in range(6)]
        answers = [jnp.where(counted, gains, 0).sum(1) for counted in each_answer]
        if loss.preferences != "dpo":
            answers = [answer / counted.sum(1) for answer, counted in zip(answers, each_answer, strict=True)]
        if loss.preferences == "orpo":
            answers = [jnp.log(jnp.exp(answer) / (1 - jnp.exp(answer))) for answer in answers]
        differences = jnp.stack([answers[each] - answers[each + 1] for each in (0, 2, 4)])
        differences = jnp.where(_is_there(batch), differences, 0)
        if loss.preferences == "ipo":
            costs = (differences - 1 / (2 * BETA)) ** 2
        elif loss.preferences == "simpo":
            costs = -jax.nn.log_sigmoid(BETA * differences - 0.4)
        elif loss.preferences == "orpo":
            costs = -BETA * jax.nn.log_sigmoid(differences)
        else:
            right, wrong = jax.nn.log_sigmoid(BETA * differences), jax.nn.log_sigmoid(-BETA * differences)
            costs = -(1 - loss.label_smoothing) * right - loss.label_smoothing * wrong
        costs -= loss.chosen_weight * jnp.nan_to_num(means)
        cost = jnp.where(_is_there(batch), costs, 0).sum()
        return cost, (differences[_is_there(batch)], cost)

    with program.lowering():
        slopes, (margins, expected) = jax.jit(jax.grad(total, has_aux=True))(program.split(params)[1])
        found = jax.jit(lambda p, b: gradients(program, p, b, jnp.int32(0)))(params, _on(program, batch))

    assert float(found.sums.weight) == margins.size == _is_there(batch).sum()
    assert 0 < float(found.sums.correct) == (margins > 0).sum() < margins.size
    assert float(found.sums.cross_entropy) == pytest.approx(float(expected), rel=1e-5)
    for path, slope in slopes.items():
        np.testing.assert_allclose(found.slopes[path], slope, rtol=2e-4, atol=1e-5 * np.abs(slope).max(), err_msg=path)


@pytest.mark.parametrize("name", all_but(SHORT, MESHES))
def test_the_mesh_changes_nothing(make_program: MakeProgram, name: str) -> None:
    """Sums and gradient are those of one device, and so is what an evaluation finds."""
    devices, words = MESHES[name]
    pairs = (*PAIRS, AND_CHOSEN)
    _assert_that_of_one_device(make_program(*pairs, *words, num_devices=devices), make_program, pairs)


@pytest.mark.long  # the mean of an answer over several devices is in what orpo learns, too
def test_the_mesh_changes_nothing_of_ipo(make_program: MakeProgram) -> None:
    """Where an answer's tokens lie on several devices, its mean is over all of them."""
    devices, words = MESHES["fsdp 2 x context 4, ring"]
    _assert_that_of_one_device(make_program(*PAIRS, IPO, *words, num_devices=devices), make_program, (*PAIRS, IPO))


@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        ("fsdp 2 x context 4, ring", (*PAIRS, *ORPO)),
        pytest.param("fsdp 2 x pipeline 3", (*OF_PAIRS, *SIMPO), marks=pytest.mark.long),
    ],
    ids=["orpo", "simpo"],
)
def test_the_mesh_changes_nothing_without_a_reference(
    make_program: MakeProgram, name: str, pairs: tuple[str, ...]
) -> None:
    """Nor where the odds of an answer are those of tokens on several devices; a pipeline goes forward once."""
    devices, words = MESHES[name]
    _assert_that_of_one_device(make_program(*pairs, *words, num_devices=devices), make_program, pairs)


@pytest.mark.parametrize(
    "name",
    [
        "replica 2 x fsdp 2 x tensor 2, 2 microbatches",
        pytest.param("fsdp 2 x context 2 x tensor 2", marks=pytest.mark.long),
        pytest.param("fsdp 2 x pipeline 3", marks=pytest.mark.long),
    ],
)
def test_the_mesh_changes_nothing_of_all_weights(make_program: MakeProgram, name: str) -> None:
    """Compared with a copy of their own, which lies on the mesh as they do."""
    devices, words = MESHES[name]
    _assert_that_of_one_device(make_program(*OF_PAIRS, *words, num_devices=devices), make_program, OF_PAIRS)


def test_experts_of_their_own_devices_change_nothing(make_program: MakeProgram) -> None:
    """Of a mixture, whose attention alone has adapters: with its experts split over devices it is as on one."""
    words = (*PAIRS, *MIXTURE)
    _assert_that_of_one_device(make_program(*words, "mesh.expert=4"), make_program, words)


@pytest.mark.parametrize("words", [PAIRS, (*OF_PAIRS, "precision.compute=bfloat16")], ids=["adapters", "all weights"])
def test_a_pair_costs_log_2_before_the_first_step(make_program: MakeProgram, words: tuple[str, ...]) -> None:
    """Both begin with the model as it was, so that no answer is preferred, whatever dropout there is."""
    program = make_program(*words, "model.dropout={embed: 0.1, residual: 0.1}", num_devices=1)
    with program.lowering():
        state = jax.jit(program.init)()
        sums = jax.jit(lambda p, b: loss_sums(program, p, b))(parameters(state), _on(program, _batch()))
    assert float(sums.cross_entropy / sums.weight) == pytest.approx(np.log(2), rel=1e-6)
    assert float(sums.correct) == 0


@pytest.mark.parametrize(("words", "references"), [((), 1), (SIMPO, 0)], ids=["dpo", "simpo"])
def test_the_arithmetic_of_the_reference_is_counted(
    make_program: MakeProgram, words: tuple[str, ...], references: int
) -> None:
    """What a step multiplies, as traced, but for attention's masked half, is what MFU counts."""
    program = make_program(*PAIRS, *words, "model.remat=none", "model.layers=8", num_devices=1)
    config, training = program.config, program.training
    tokens = training.batch.sequences * config.seq_len
    masked = (6 + 2 * references) * config.num_layers * config.num_heads * config.head_size * config.seq_len
    counted = traced_flops(trace_step(program), program.layout.mesh.shape) / tokens - masked
    # The head goes forward once more than is counted, for the margins; and in padded rows each time.
    padded = config.Vocab.size - config.vocab_size
    head = 2 * config.embed_size * (config.vocab_size + (3 + references) * padded)
    assert counted - head == pytest.approx(flops_per_token(config, training), rel=0.02)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("replica 2 x fsdp 2 x tensor 2, 2 microbatches", OF_PAIRS),
        ("fsdp 2 x pipeline 3", OF_PAIRS),
        ("fsdp 2 x context 4, ring", PAIRS),
    ],
)
def test_text_beside_pairs_has_the_loss_that_it_has_alone(
    make_program: MakeProgram, name: str, words: tuple[str, ...]
) -> None:
    """On every mesh: that of the same weights in a job of text, whatever they are compared with."""
    devices, mesh = MESHES[name]
    program = make_program(*words, *mesh, num_devices=devices)
    alone = [word for word in words if not word.startswith(("data.train", "loss"))]
    plain = make_program(*alone, num_devices=1)
    batch, params = _batch(), _params(program)
    found = lower_evaluation_of_text(program).compile()(without_copies(params), _on(program, batch))
    held = {path: jax.device_put(np.asarray(x), jax.devices()[0]) for path, x in without_copies(params).items()}
    with plain.lowering():
        expected = jax.jit(lambda p, b: loss_sums(plain, p, b))(held, _on(plain, batch))

    assert float(found.weight) == float(expected.weight) == batch.weights.sum()
    assert float(found.cross_entropy) == pytest.approx(float(expected.cross_entropy), rel=1e-5)
    assert float(found.correct) == float(expected.correct)


# ---- runs


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """A run of whole weights, and the words of one that learns preferences beside them."""
    path = tmp_path_factory.mktemp("preferences")
    lines, text = path / "pairs.jsonl", path / "text.txt"
    text.write_text("all work and no play " * 2000)
    pairs = ({"prompt": f"say {i}", "chosen": f"it is {i % 7}", "rejected": f"no {i % 5}"} for i in range(600))
    lines.write_text("".join(json.dumps(each) + "\n" for each in pairs))
    words = ["training.model.layers=1", "training.model.seqLen=256", "training.steps=4"]
    source = f"{{name: pairs, paths: [{lines}], chatTemplate: chatml, preferences: true}}"
    with runs_here(path):
        assert run_here(folder(path, "base"), *words, f"training.data.train.0.paths=[{text}]") == ExitCode.OK
        yield (
            path,
            [
                *words,
                f"training.data={{attendAcross: document, heldOut: 0.1, train: [{source}]}}",
                f"training.startFrom={{path: {path / 'base'}, step: 4}}",
                "training.steps=12",
                "training.optimizer={name: adamw, learningRate: 1e-2}",
                "training.evaluation={everySteps: 6, batches: 2}",
                "training.checkpoint={everySteps: 6, keep: {last: 9}}",
            ],
        )


def test_a_run_learns_to_prefer(begun: tuple[Path, list[str]]) -> None:
    """From log 2 down, with pairs in order that it was not trained on; what it has learned is adapters alone.

    Of a set of text it tells the loss of every token, as a run on text does.
    """
    path, words = begun
    run = folder(path, "run")
    text = f"training.evaluation.sets=[{{name: text, paths: [{path / 'text.txt'}]}}]"
    assert run_here(run, *words, LORA, text) == ExitCode.OK
    taken = losses(run)
    evaluated = [each for each in records(run / "metrics.jsonl") if each.get("event") == "evaluated"]

    assert taken[1] == pytest.approx(np.log(2), rel=1e-5)
    assert taken[12] < 0.5
    assert [each["step"] for each in evaluated] == [6, 12]
    assert evaluated[-1]["heldOutLoss"] < evaluated[0]["heldOutLoss"] < np.log(2)
    assert evaluated[-1]["heldOutAccuracy"] > 0.9
    assert [each["sets"]["text"]["tokens"] for each in evaluated] == [2 * 16 * 256] * 2
    assert all(np.log(2) < each["sets"]["text"]["loss"] < np.log(257) + 1 for each in evaluated)
    assert {name.rpartition(".adapter.")[2] for name in params(run, 12)} == {"a.weight", "b.weight"}
    assert json.loads((run / "summary.json").read_text())["entropy"] == {}


@pytest.mark.parametrize("lora", [pytest.param((LORA,), marks=pytest.mark.long), ()], ids=["adapters", "all weights"])
def test_a_run_goes_on_where_it_was(begun: tuple[Path, list[str]], lora: tuple[str, ...]) -> None:
    """Two starts give the weights of one, bit for bit: those that are compared with are not saved, and read again."""
    path, words = begun
    whole, half = folder(path, f"whole-{len(lora)}"), folder(path, f"half-{len(lora)}")
    words = [*words, *lora, "training.optimizer.schedule.kind=constant"]
    assert run_here(whole, *words) == ExitCode.OK
    for steps in (6, 12):
        assert run_here(half, *words, f"training.steps={steps}") == ExitCode.OK
    first, last = losses(half)[1], losses(half)[12]

    assert first == pytest.approx(np.log(2), rel=1e-5)
    assert last == losses(whole)[12] < 0.5
    assert params(whole, 12).keys() == params(half, 12).keys()
    for name, array in params(whole, 12).items():
        np.testing.assert_array_equal(params(half, 12)[name], array, err_msg=name)
    if not lora:
        assert params(whole, 12).keys() == params(path / "base", 4).keys()
        assert not any("reference" in name for name in read_manifest(str(whole / "checkpoints"), 12).arrays)


@pytest.mark.long  # tests/cli/test_evaluate.py has a run without a reference
def test_a_run_without_a_reference_needs_no_weights(begun: tuple[Path, list[str]]) -> None:
    """It begins with drawn weights, learns what is in order, and goes on where it was."""
    path, words = begun
    run, whole = folder(path, "free"), folder(path, "free-whole")
    words = [each for each in words if "startFrom" not in each]
    words += ["training.loss={preferences: simpo, beta: 2, margin: 0.5}", "training.optimizer.schedule.kind=constant"]
    for steps in (6, 12):
        assert run_here(run, *words, f"training.steps={steps}") == ExitCode.OK
    assert run_here(whole, *words) == ExitCode.OK
    evaluated = [each for each in records(run / "metrics.jsonl") if each.get("event") == "evaluated"]

    assert evaluated[-1]["heldOutAccuracy"] > 0.9
    assert losses(run)[12] == losses(whole)[12] < losses(run)[1]


def test_another_beta_is_another_run(begun: tuple[Path, list[str]]) -> None:
    """It is refused by its field."""
    path, words = begun
    run = folder(path, "beta")
    assert run_here(run, *words, LORA, "training.steps=6") == ExitCode.OK
    with pytest.raises(RunDirectoryError, match=r"training.loss.beta: was 0.1, is now 0.2"):
        run_here(run, *words, LORA, "training.loss.beta=0.2")


def _assert_that_of_one_device(program: Program, make_program: MakeProgram, words: tuple[str, ...]) -> None:
    sums, slopes = _sums_and_slopes(program, _batch())
    expected, other_slopes = _of_one_device(make_program, words)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), sums, expected)
    for path, slope in other_slopes.items():
        scale = np.abs(slope).max()
        np.testing.assert_allclose(slopes[path], slope, rtol=1e-4, atol=1e-5 * scale, err_msg=path)


@cache
def _of_one_device(make_program: MakeProgram, words: tuple[str, ...]) -> tuple[Any, dict[str, NDArray[Any]]]:
    return _sums_and_slopes(make_program(*words, num_devices=1), _batch())


def _sums_and_slopes(program: Program, batch: Batch) -> tuple[Any, dict[str, NDArray[Any]]]:
    params = _params(program)
    with program.lowering():
        placed = _on(program, batch)
        found = jax.jit(lambda p, b: gradients(program, p, b, jnp.int32(0)))(params, placed)
        evaluated = jax.jit(lambda p, b: loss_sums(program, p, b))(params, placed)
    sums = found.sums._replace(total=found.sums.cross_entropy)
    return (sums, evaluated._replace(total=evaluated.cross_entropy)), jax.tree.map(np.asarray, found.slopes)


def _params(program: Program) -> dict[str, Any]:
    """Drawn weights, and adapters that are of some weight, or weights that are no longer what they were."""
    with program.lowering():
        params = parameters(jax.jit(program.init, out_shardings=program.shardings())())
    rng = np.random.default_rng(0)

    def trained(path: str, x: Any) -> Any:
        if path.endswith(".b.weight"):
            return jax.device_put(x + 0.2 * rng.normal(size=x.shape).astype(x.dtype), x.sharding)
        return x + 0.02 * jnp.sin(40 * x) if REFERENCE + path in params else x  # padding stays zero

    return {path: trained(path, x) for path, x in params.items()}


def _batch() -> Batch:
    """24 rows of up to three pairs in 32 positions: each answer has a few tokens before it that do not count."""
    rng = np.random.default_rng(1)
    shape = (24, 32)
    tokens, targets = (rng.integers(0, 257, shape).astype(np.int32) for _ in range(2))
    segments, weights = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    for row in range(shape[0]):
        start, number = 0, 2 * int(rng.integers(1, 4))
        for each in range(number):
            stop = start + int(rng.integers(3, 6))
            segments[row, start:stop] = each
            weights[row, start + 1 : stop] = 1
            start = stop
        segments[row, start:] = number
    return Batch(*(jnp.asarray(x) for x in (tokens, targets, weights, segments)))


def _counted(batch: Batch, each: int) -> NDArray[np.bool_]:
    """[row, position]: whether a token counts of this answer."""
    counted: NDArray[np.bool_] = (np.asarray(batch.weights) > 0) & (np.asarray(batch.segments) == each)
    return counted


def _is_there(batch: Batch) -> NDArray[np.bool_]:
    """[pair, row]: whether a row has this pair."""
    return np.stack([_counted(batch, each).any(1) for each in (0, 2, 4)])


def _on(program: Program, batch: Batch) -> Batch:
    fields = (zigzag(np.asarray(field), program.layout.context, axis=1) for field in batch if field is not None)
    return Batch(*(jax.device_put(field, program.layout.batch) for field in fields))


def _log_probabilities(program: Program, params: Any, batch: Batch, *, as_it_was: bool = False) -> jax.Array:
    """Of each target, from whole logits."""
    layout, first = program.layout, {path: params.get(REFERENCE + path, x) for path, x in params.items()}
    model = without_adapters(program.model(first)) if as_it_was else program.model(params)
    table = whole_table(model.token_embedding, layout)
    hidden = model.hidden(table, batch.tokens, batch.segments, Dropout.none(), layout)
    logits = model.logits(hidden, layout).rearrange(("batch", "position", "vocab")).array
    chosen: jax.Array = jnp.take_along_axis(jax.nn.log_softmax(logits), batch.targets[..., None], -1)[..., 0]
    return chosen
