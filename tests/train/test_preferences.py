"""Preferences: the loss of pairs of answers and its gradient, on any mesh, and what a run learns of them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.train.test_meshes import LLAMA

from shardwise.train.dropout import Dropout
from shardwise.train.gradients import gradients, loss_sums
from shardwise.train.lora import without_adapters
from shardwise.train.microbatches import Batch
from shardwise.train.model import whole_table
from shardwise.train.state import Program, parameters
from shardwise.train.zigzag import zigzag

MakeProgram = Callable[..., Program]
BETA = 0.7
PAIRS = (
    "data.train=[{name: pairs, paths: [pairs.jsonl], chatTemplate: chatml, preferences: true}]",
    "data.attendAcross=document",
    f"loss.beta={BETA}",
    "lora.rank=4",
    "startFrom={path: base, step: 0}",
    "batch.sequences=24",
)
MESHES = {
    "fsdp 2 x tensor 4": (8, ("mesh.tensor=4",)),
    "data 2 x tensor 2, no fsdp, 3 microbatches": (4, ("mesh.tensor=2", "mesh.fsdp=false", "batch.microbatches=3")),
    "replica 2 x fsdp 2 x tensor 2, 2 microbatches": (8, ("mesh.tensor=2", "mesh.replica=2", "batch.microbatches=2")),
    "fsdp 2 x context 2 x tensor 2": (8, ("mesh.tensor=2", "mesh.context=2")),
    "fsdp 2 x context 4, ring": (8, ("mesh.context=4", "mesh.contextStrategy=ring")),
    "fsdp 2 x pipeline 3": (6, ("mesh.pipeline=3", "batch.microbatches=3")),
}


@pytest.mark.parametrize("words", [(), LLAMA], ids=["gpt2", "llama"])
def test_the_gradient_is_that_of_dpo(make_program: MakeProgram, words: tuple[str, ...]) -> None:
    """Loss, pairs that are in order and gradient are those of the published formula, by whole logits and autodiff."""
    program = make_program(*PAIRS, *words, num_devices=1)
    params, batch = _params(program), _batch()

    def total(trained: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        gains = _log_probabilities(program, {**params, **trained}, batch)
        gains -= jax.lax.stop_gradient(_log_probabilities(program, params, batch, without=True))
        answers = [jnp.where(batch.weights * (batch.segments == each), gains, 0).sum(1) for each in range(6)]
        margins = BETA * jnp.stack([answers[each] - answers[each + 1] for each in (0, 2, 4)])
        margins = jnp.where(_is_there(batch), margins, jnp.nan)
        return -jnp.nansum(jax.nn.log_sigmoid(margins)), margins

    with program.lowering():
        slopes, margins = jax.jit(jax.grad(total, has_aux=True))(program.split(params)[1])
        found = jax.jit(lambda p, b: gradients(program, p, b, jnp.int32(0)))(params, _on(program, batch))
    margins = margins[~np.isnan(margins)]

    assert float(found.sums.weight) == margins.size == _is_there(batch).sum()
    assert 0 < float(found.sums.correct) == (margins > 0).sum() < margins.size
    assert float(found.sums.cross_entropy) == pytest.approx(float(np.log1p(np.exp(-margins)).sum()), rel=1e-5)
    for path, slope in slopes.items():
        np.testing.assert_allclose(found.slopes[path], slope, rtol=2e-4, atol=1e-5 * np.abs(slope).max(), err_msg=path)


@pytest.mark.parametrize("name", MESHES)
def test_the_mesh_changes_nothing(make_program: MakeProgram, name: str) -> None:
    """Sums and gradient are those of one device, and so is what an evaluation finds."""
    batch = _batch()
    one = make_program(*PAIRS, num_devices=1)
    devices, words = MESHES[name]
    program = make_program(*PAIRS, *words, num_devices=devices)
    expected, found = (_sums_and_slopes(each, batch) for each in (one, program))

    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), found[0], expected[0])
    for path, slope in expected[1].items():
        scale = np.abs(slope).max()
        np.testing.assert_allclose(found[1][path], slope, rtol=1e-4, atol=1e-5 * scale, err_msg=path)


def test_a_pair_costs_log_2_before_the_first_step(make_program: MakeProgram) -> None:
    """Adapters begin with the model as it was, so that no answer is preferred, whatever dropout there is."""
    program = make_program(*PAIRS, "model.dropout={embed: 0.1, residual: 0.1}", num_devices=1)
    with program.lowering():
        state = jax.jit(program.init)()
        sums = jax.jit(lambda p, b: loss_sums(program, p, b))(parameters(state), _on(program, _batch()))
    assert float(sums.cross_entropy / sums.weight) == pytest.approx(np.log(2), rel=1e-6)
    assert float(sums.correct) == 0


def _sums_and_slopes(program: Program, batch: Batch) -> tuple[Any, dict[str, NDArray[Any]]]:
    params = _params(program)
    with program.lowering():
        placed = _on(program, batch)
        found = jax.jit(lambda p, b: gradients(program, p, b, jnp.int32(0)))(params, placed)
        evaluated = jax.jit(lambda p, b: loss_sums(program, p, b))(params, placed)
    sums = found.sums._replace(total=found.sums.cross_entropy)
    return (sums, evaluated._replace(total=evaluated.cross_entropy)), jax.tree.map(np.asarray, found.slopes)


def _params(program: Program) -> dict[str, Any]:
    """Drawn weights, and adapters that are of some weight."""
    with program.lowering():
        params = parameters(jax.jit(program.init, out_shardings=program.shardings())())
    rng = np.random.default_rng(0)
    return {
        path: jax.device_put(x + 0.2 * rng.normal(size=x.shape).astype(x.dtype), x.sharding)
        if path.endswith(".b.weight")
        else x
        for path, x in params.items()
    }


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


def _is_there(batch: Batch) -> NDArray[np.bool_]:
    """[pair, row]: whether a row has this pair."""
    counted = np.asarray(batch.weights) > 0
    return np.stack([(counted & (np.asarray(batch.segments) == each)).any(1) for each in (0, 2, 4)])


def _on(program: Program, batch: Batch) -> Batch:
    fields = (zigzag(np.asarray(field), program.layout.context, axis=1) for field in batch)
    return Batch(*(jax.device_put(field, program.layout.batch) for field in fields))


def _log_probabilities(program: Program, params: Any, batch: Batch, *, without: bool = False) -> jax.Array:
    """Of each target, from whole logits."""
    model, layout = program.model(params), program.layout
    model = without_adapters(model) if without else model
    table = whole_table(model.token_embedding, layout)
    hidden = model.hidden(table, batch.tokens, batch.segments, Dropout.none(), layout)
    logits = model.logits(hidden, layout).rearrange(("batch", "position", "vocab")).array
    chosen: jax.Array = jnp.take_along_axis(jax.nn.log_softmax(logits), batch.targets[..., None], -1)[..., 0]
    return chosen
