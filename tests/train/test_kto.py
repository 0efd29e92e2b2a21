"""KTO: the loss of answers that are good or bad, its gradient on any mesh, and what a run learns of them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.train.conftest import run_here, runs_here
from tests.train.test_meshes import LLAMA
from tests.train.test_origin import folder, losses, params
from tests.train.test_preferences import MESHES, _batch, _log_probabilities, _on, _params

from shardwise.job.adapter_sizes import adapter_parameters
from shardwise.plan.flops import traced_flops
from shardwise.protocol.contract import ExitCode
from shardwise.train.data.sequences import Batch as Rows
from shardwise.train.data.unmatched import unmatched
from shardwise.train.flops import flops_per_token
from shardwise.train.gradients import gradients, loss_sums
from shardwise.train.metrics import records
from shardwise.train.microbatches import Batch, Compared
from shardwise.train.state import Program
from shardwise.train.step import trace_step

MakeProgram = Callable[..., Program]
BETA, GOOD, BAD = 0.7, 1.25, 0.5
ANSWERS = (
    "data.train=[{name: answers, paths: [answers.jsonl], chatTemplate: chatml, labels: true}]",
    "data.attendAcross=document",
    f"loss={{preferences: kto, beta: {BETA}, goodWeight: {GOOD}, badWeight: {BAD}}}",
    "startFrom={path: base, step: 0}",
    "batch.sequences=24",
)
ADAPTERS = (*ANSWERS, "lora.rank=4")


@pytest.mark.parametrize("words", [ADAPTERS, (*ANSWERS, *LLAMA)], ids=["adapters", "all weights of llama"])
def test_the_gradient_is_that_of_the_published_loss(make_program: MakeProgram, words: tuple[str, ...]) -> None:
    """Loss, share in order and gradient are those of the formula, by whole logits and autodiff."""
    program = make_program(*words, num_devices=1)
    params, batch = _params(program), compared()

    def gained(trained: dict[str, jax.Array], rows: Batch) -> jax.Array:
        """[segment, row]: of each answer, 0 where none is."""
        own = _log_probabilities(program, {**params, **trained}, rows)
        gains = own - jax.lax.stop_gradient(_log_probabilities(program, params, rows, as_it_was=True))
        return jnp.stack([jnp.where(counted(rows, each), gains, 0).sum(1) for each in range(6)])

    there = np.stack([counted(batch.own, each).any(1) for each in range(6)])
    others = np.stack([counted(batch.unmatched, each).any(1) for each in range(6)])
    is_good = (np.arange(6) % 2 == 0)[:, None]

    def total(trained: dict[str, jax.Array]) -> tuple[jax.Array, Any]:
        moved = jnp.maximum(jax.lax.stop_gradient(gained(trained, batch.unmatched)).sum() / others.sum(), 0)
        differences = gained(trained, batch.own) - moved
        values = jnp.where(is_good, jax.nn.sigmoid(BETA * differences), jax.nn.sigmoid(-BETA * differences))
        costs = jnp.where(is_good, GOOD, BAD) * (1 - values)
        return jnp.where(there, costs, 0).sum(), (moved, jnp.where(there, values > 0.5, False).sum())

    with program.lowering():
        (expected, (moved, right)), slopes = jax.jit(jax.value_and_grad(total, has_aux=True))(program.split(params)[1])
        found = jax.jit(lambda p, b: gradients(program, p, b, jnp.int32(0)))(params, placed(program, batch))

    assert moved > 0.01
    assert float(found.sums.weight) == there.sum()
    assert 0 < float(found.sums.correct) == right < there.sum()
    assert float(found.sums.cross_entropy) == pytest.approx(float(expected), rel=1e-5)
    for path, slope in slopes.items():
        np.testing.assert_allclose(found.slopes[path], slope, rtol=2e-4, atol=1e-5 * np.abs(slope).max(), err_msg=path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("replica 2 x fsdp 2 x tensor 2, 2 microbatches", ANSWERS),
        ("fsdp 2 x context 4, ring", ADAPTERS),
        pytest.param("fsdp 2 x pipeline 3", ADAPTERS, marks=pytest.mark.long),
    ],
)
def test_the_mesh_changes_nothing(make_program: MakeProgram, name: str, words: tuple[str, ...]) -> None:
    """Sums and gradient are those of one device; how far the model has moved is of the whole batch, in any parts."""
    devices, mesh = MESHES[name]
    one, many = (make_program(*words, *more, num_devices=num) for num, more in ((1, ()), (devices, mesh)))
    (expected, slopes), (found, others) = (sums_and_slopes(program) for program in (one, many))

    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), found, expected)
    for path, slope in slopes.items():
        scale = np.abs(slope).max()
        np.testing.assert_allclose(others[path], slope, rtol=1e-4, atol=1e-5 * scale, err_msg=path)


def test_the_arithmetic_of_other_answers_is_counted(make_program: MakeProgram) -> None:
    """The model as it was goes forward twice, and the model once more: what is traced is what MFU counts."""
    program = make_program(*ADAPTERS, "model.remat=none", "model.layers=8", num_devices=1)
    config, training = program.config, program.training
    tokens = training.batch.sequences * config.seq_len
    masked = (6 + 2 * 3) * config.num_layers * config.num_heads * config.head_size * config.seq_len
    counted = traced_flops(trace_step(program), program.layout.mesh.shape) / tokens - masked
    padded = config.Vocab.size - config.vocab_size
    head = 2 * config.embed_size * (config.vocab_size + (3 + 3) * padded)
    adapters = adapter_parameters(training.model, training.lora)  # they are little beside the model, and counted once
    assert adapters
    assert counted - head - 2 * adapters == pytest.approx(flops_per_token(config, training), rel=0.02)


def test_prompts_get_answers_of_the_next_sequence() -> None:
    """One after the other and round again, as far as there is room; a sequence without answers gives none."""
    #         a a A | b B . | rest      c C C C | rest         nothing is learned
    tokens = [[1, 2, 3, 4, 5, 9, 0, 0], [6, 7, 8, 9, 0, 0, 0, 0], [5] * 8, [5] * 8]
    weights = [[0, 1, 0, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0, 0], [0] * 7, [0] * 7]
    segments = [[0, 0, 0, 3, 3, 3, 4, 4], [0, 0, 0, 0, 1, 1, 1, 1], [0] * 8, [0] * 8]
    whole, parts, counts = np.array(tokens, np.int32), np.array(segments, np.int32), np.array(weights, np.float32)

    def read(rows: NDArray[np.int64]) -> Rows:
        return Rows(tokens=whole[rows, :-1], targets=whole[rows, 1:], weights=counts[rows], segments=parts[rows, :-1])

    found = unmatched(read)(np.array([0, 1, 2]))

    assert found.tokens[0].tolist() == [1, 2, 7, 8, 9, 4, 7]
    assert found.targets[0].tolist() == [2, 7, 8, 9, 4, 7, 8]
    assert found.weights[0].tolist() == [0, 1, 1, 1, 0, 1, 1]
    assert found.segments[0].tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert not found.weights[1:].any()


# ---- runs


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """A run of whole weights, and the words of one that learns of answers, of which those of sevens are bad."""
    path = tmp_path_factory.mktemp("kto")
    lines, text = path / "answers.jsonl", path / "text.txt"
    text.write_text("all work and no play " * 2000)
    answers = (
        {"prompt": f"say {i}", "completion": f"it is {i % 5}" if i % 3 else f"no {i % 5}", "label": bool(i % 3)}
        for i in range(900)
    )
    lines.write_text("".join(json.dumps(each) + "\n" for each in answers))
    words = ["training.model.layers=1", "training.model.seqLen=256", "training.steps=4"]
    source = f"{{name: answers, paths: [{lines}], chatTemplate: chatml, labels: true}}"
    with runs_here(path):
        assert run_here(folder(path, "base"), *words, f"training.data.train.0.paths=[{text}]") == ExitCode.OK
        yield (
            path,
            [
                *words,
                f"training.data={{attendAcross: document, heldOut: 0.1, train: [{source}]}}",
                "training.loss={preferences: kto, beta: 0.5}",
                f"training.startFrom={{path: {path / 'base'}, step: 4}}",
                "training.lora={rank: 4}",
                "training.steps=12",
                "training.optimizer={name: adamw, learningRate: 1e-2}",
                "training.evaluation={everySteps: 6, batches: 2}",
                "training.checkpoint={everySteps: 6, keep: {last: 9}}",
            ],
        )


def test_a_run_learns_which_answers_are_good(begun: tuple[Path, list[str]]) -> None:
    """From a half down, on answers that it was not trained on too; two starts give the weights of one, bit for bit."""
    path, words = begun
    whole, parts = folder(path, "whole"), folder(path, "parts")
    assert run_here(whole, *words) == ExitCode.OK
    for steps in (6, 12):
        assert run_here(parts, *words, f"training.steps={steps}") == ExitCode.OK
    evaluated = [each for each in records(whole / "metrics.jsonl") if each.get("event") == "evaluated"]

    assert losses(whole)[1] == pytest.approx(0.5, rel=1e-5)
    assert losses(parts)[12] == losses(whole)[12] < 0.45
    assert evaluated[-1]["heldOutLoss"] < evaluated[0]["heldOutLoss"] < 0.5
    assert evaluated[-1]["heldOutAccuracy"] > 0.9
    for name, array in params(whole, 12).items():
        np.testing.assert_array_equal(params(parts, 12)[name], array, err_msg=name)


def compared() -> Compared:
    """Answers, and prompts with others: the same rows with other tokens, and answers that have gained on the whole."""
    own = _batch()
    tokens = np.random.default_rng(7).integers(0, 257, own.tokens.shape).astype(np.int32)
    return Compared(own, own._replace(tokens=jnp.asarray(tokens), targets=jnp.full_like(own.targets, 208)))


def placed(program: Program, batch: Compared) -> Compared:
    """Put it where a step has it."""
    return Compared(_on(program, batch.own), _on(program, batch.unmatched))


def counted(batch: Batch, each: int) -> NDArray[np.bool_]:
    """[row, position]: whether a token counts of this answer."""
    found: NDArray[np.bool_] = (np.asarray(batch.weights) > 0) & (np.asarray(batch.segments) == each)
    return found


def sums_and_slopes(program: Program) -> tuple[Any, dict[str, NDArray[Any]]]:
    """What a step and an evaluation find."""
    params = _params(program)
    with program.lowering():
        batch = placed(program, compared())
        found = jax.jit(lambda p, b: gradients(program, p, b, jnp.int32(0)))(params, batch)
        evaluated = jax.jit(lambda p, b: loss_sums(program, p, b))(params, batch)
    sums = found.sums._replace(total=found.sums.cross_entropy)
    return (sums, evaluated._replace(total=evaluated.cross_entropy)), jax.tree.map(np.asarray, found.slopes)
