"""The average of the weights: what it is of, on any mesh; that runs keep it, go on with it, and are evaluated by it."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.train.conftest import SMALL, run_here, runs_here
from tests.train.test_experts import MIXTURE
from tests.train.test_meshes import batch_of
from tests.train.test_origin import folder, losses

from shardwise.cli.saved_model import exported_parameters, load_model
from shardwise.job.load import loads
from shardwise.job.resolve import resolve
from shardwise.plan.estimate import estimate
from shardwise.protocol.contract import ExitCode
from shardwise.protocol.errors import CheckpointError, RunDirectoryError
from shardwise.protocol.evaluated import results
from shardwise.train.checkpoint import load_numpy, read_manifest
from shardwise.train.config import GptConfig
from shardwise.train.loader import Loader
from shardwise.train.metrics import records
from shardwise.train.origin import AVERAGES, PARAMS
from shardwise.train.state import AVERAGE, Program, State, averaged, beside_weights, flat, parameters
from shardwise.train.step import lower_evaluation, lower_step

MakeProgram = Callable[..., Program]
Weights = dict[str, NDArray[Any]]
DECAY = 0.6
OF_AVERAGE = f"optimizer.average.decay={DECAY}"
HALF = "precision={params: bfloat16, compute: bfloat16}"
PICKED = (*MIXTURE, "model.experts.score=sigmoid", "model.experts.pickBias=true", "model.experts.biasRate=0.01")
ADAPTERS = ("lora.rank=4", "startFrom={path: base, step: 0}")
MESHES = {
    "fsdp 2 x tensor 4": (8, ("mesh.tensor=4",)),
    "data 2 x tensor 2, no fsdp": (4, ("mesh.tensor=2", "mesh.fsdp=false")),
    "replica 2 x fsdp 2 x context 2": (8, ("mesh.replica=2", "mesh.context=2", "batch.microbatches=2")),
    "fsdp 2 x pipeline 3": (6, ("mesh.pipeline=3", "batch.microbatches=3")),
}


@pytest.mark.parametrize(
    ("words", "mesh"),
    [
        ((), "fsdp 2 x tensor 4"),
        ((HALF,), "replica 2 x fsdp 2 x context 2"),
        ((*PICKED, "mesh.expert=2"), "fsdp 2 x tensor 4"),
        (ADAPTERS, "fsdp 2 x pipeline 3"),
    ],
    ids=["all weights", "weights in bfloat16", "experts with a bias", "adapters"],
)
def test_it_is_of_the_weights_after_each_step(make_program: MakeProgram, words: tuple[str, ...], mesh: str) -> None:
    """Each counts by a factor less than the next; the weights of before the first step count nothing."""
    devices, more = MESHES[mesh]
    program = make_program(
        OF_AVERAGE, "optimizer.learningRate=1e-2", *words, *more, "batch.sequences=24", num_devices=devices
    )
    after, state = _train(program, 5)

    shares = DECAY ** np.arange(4, -1, -1.0)
    assert int(state[AVERAGE].steps) == 5
    assert state[AVERAGE].weights.keys() == program.trained.keys()
    for path, mean in state[AVERAGE].weights.items():
        expected = np.average([each[path].astype(np.float64) for each in after], axis=0, weights=shares)
        np.testing.assert_allclose(mean, expected, rtol=1e-5, atol=1e-7, err_msg=path)
    moved = [path for path, mean in state[AVERAGE].weights.items() if not np.array_equal(mean, after[-1][path])]
    assert len(moved) > len(program.trained) / 2


@pytest.mark.parametrize("mesh", MESHES)
def test_it_lies_as_the_weights_do(make_program: MakeProgram, mesh: str) -> None:
    """In float32, whatever they are kept in; steps need as much more memory as they count for it."""
    devices, more = MESHES[mesh]
    words = (*more, HALF, "batch.sequences=24")
    program = make_program(OF_AVERAGE, *words, num_devices=devices)
    state, without = program.abstract(), make_program(*words, num_devices=devices).abstract()

    for path, mean in state[AVERAGE].weights.items():
        assert (mean.shape, mean.sharding) == (state["params"][path].shape, state["params"][path].sharding), path
        assert mean.dtype == np.float32
    assert state[AVERAGE].steps.sharding.is_fully_replicated
    more_of_state = {*beside_weights(state)} - {*beside_weights(without)}
    assert more_of_state == {path for path in flat(state) if path.startswith(f"{AVERAGE}.")}
    assert {*flat(without)} == {*flat(state)} - more_of_state


@pytest.mark.long  # it is the average of each mesh's weights, and those of meshes are compared elsewhere
def test_no_mesh_changes_its_loss(make_program: MakeProgram) -> None:
    """After some steps the averaged weights have the loss that they have on one device, which is not the last ones'."""
    found = {}
    for mesh, (devices, more) in {"one device": (1, ()), **MESHES}.items():
        words = (OF_AVERAGE, "optimizer.learningRate=1e-2", *more, "batch.sequences=24")
        program = make_program(*words, num_devices=devices)
        _, state = _train(program, 4)
        evaluation = lower_evaluation(program).compile()
        mean = averaged(program, state)
        assert mean is not None
        sums = [evaluation(params, batch_of(program, 9)) for params in (parameters(state), mean)]
        found[mesh] = [float(each.cross_entropy / each.weight) for each in sums]

    expected = found.pop("one device")
    assert abs(expected[0] - expected[1]) > 1e-3
    for mesh, both in found.items():
        assert both == pytest.approx(expected, rel=1e-5), mesh


def test_an_estimate_has_four_bytes_more_for_each_weight() -> None:
    """Over all devices that FSDP splits them over."""
    words = ["training.model={layers: 64, heads: 8, embed: 64, seqLen: 32, vocabSize: 1024}"]
    words += ["hardware={accelerator: tpu-v6e, topology: 2x2}"]
    plain, more = (estimate(resolve(loads(SMALL, [*words, *add]))).bytes for add in ([], [f"training.{OF_AVERAGE}"]))
    matrices = 64 * 12 * 64 * 64 + 1024 * 64

    assert more - plain == pytest.approx(4 * matrices / 4, rel=0.05)


# ---- runs


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """A run of 6 steps with an average, its directory in `base`, and the words of its job."""
    path = tmp_path_factory.mktemp("average")
    text = path / "text.jsonl"
    text.write_text("".join(f'{{"text": "{number} green bottles, and no more."}}\n' for number in range(3000)))
    words = ["training.model.layers=1", f"training.data.train.0.paths=[{text}]", "training.data.heldOut=0.2"]
    words += ["training.optimizer={name: adamw, learningRate: 1e-2}", f"training.{OF_AVERAGE}"]
    words += ["training.checkpoint={everySteps: 1, keep: {last: 9}}", "training.steps=6"]
    words += [f"training.evaluation={{everySteps: 2, batches: 2, sets: [{{name: same, paths: [{text}]}}]}}"]
    with runs_here(path):
        assert run_here(folder(path, "base"), *words) == ExitCode.OK
        yield path, words


def test_a_run_goes_on_with_its_average(begun: tuple[Path, list[str]]) -> None:
    """A run that goes back to a step, or was stopped there, ends with the bits of one that did not."""
    path, words = begun
    parts = folder(path, "parts")
    assert run_here(parts, *words, "training.steps=3") == ExitCode.OK
    assert run_here(parts, *words) == ExitCode.OK
    ended = _digest(parts)
    assert run_here(parts, *words, step=2) == ExitCode.OK

    assert _digest(parts) == ended == _digest(path / "base")
    assert int(dict(load_numpy(str(parts / "checkpoints"), 6, "average.steps"))["average.steps"]) == 6


def test_another_mesh_goes_on_with_it(begun: tuple[Path, list[str]]) -> None:
    """With devices split otherwise the averages are those of the run that kept its own, but for the order of sums."""
    path, words = begun
    run = folder(path, "other")
    assert run_here(run, *words, "training.steps=3") == ExitCode.OK
    assert run_here(run, *words, "training.mesh.tensor=2") == ExitCode.OK

    for name, mean in _averages(path / "base", 6).items():
        np.testing.assert_allclose(_averages(run, 6)[name], mean, rtol=1e-3, atol=1e-5, err_msg=name)


def test_evaluations_are_of_both(begun: tuple[Path, list[str]]) -> None:
    """The sets keep their names for the last weights; `average/` before a name is of the averaged ones."""
    path, _ = begun
    found = [each for each in records(path / "base" / "metrics.jsonl") if each.get("event") == "evaluated"]

    assert [each["step"] for each in found] == [2, 4, 6]
    for each in found:
        sets = results(each)
        assert [*sets] == ["heldOut", "same", "average/heldOut", "average/same"]
        assert sets["average/same"]["loss"] != pytest.approx(sets["same"]["loss"], abs=1e-3)
        assert sets["average/heldOut"]["tokens"] == sets["heldOut"]["tokens"]
    assert json.loads((path / "base" / "summary.json").read_text())["status"] == "complete"


@pytest.mark.parametrize(
    "words", [pytest.param((), marks=pytest.mark.long), (f"training.{HALF}",)], ids=["float32", "bfloat16"]
)
def test_the_average_is_read_as_a_model(begun: tuple[Path, list[str]], words: tuple[str, ...]) -> None:
    """By what evaluates and generates, and by an export, in the format of the run's weights."""
    path, before = begun
    run, job = path / "base", resolve(loads(SMALL, [*before, *words]))
    if words:
        run = folder(path, "half")
        assert run_here(run, *before, *words) == ExitCode.OK
    root, dtype = str(run / "checkpoints"), job.spec.training.precision.params
    model = load_model(job, root, step=None, report=lambda *_: None, part=AVERAGES)
    config = GptConfig.of(job.spec.training, tokenizer_size=257, platform="cpu")
    exported = dict(exported_parameters(job, config, root, 6, None, part=AVERAGES))

    means = _averages(run, 6)
    assert model.params.keys() == means.keys() == exported.keys()
    for name, mean in means.items():
        assert model.params[name].dtype == exported[name].dtype == dtype
        np.testing.assert_array_equal(model.params[name], mean.astype(dtype), err_msg=name)
        np.testing.assert_array_equal(exported[name], mean.astype(dtype), err_msg=name)
    last = load_model(job, root, step=None, report=lambda *_: None)
    assert not np.array_equal(last.params["token_embedding"], model.params["token_embedding"])


@pytest.mark.long  # averages are read, and adapters added, each by itself
def test_averaged_adapters_are_added_to_the_weights(begun: tuple[Path, list[str]]) -> None:
    """The model that is read has the loss that the run's evaluation gave by their name."""
    path, before = begun
    run, words = folder(path, "lora"), [*before, f"training.startFrom={{path: {path / 'base'}, step: 6}}"]
    words += ["training.lora.rank=2"]
    assert run_here(run, *words) == ExitCode.OK
    job, root = resolve(loads(SMALL, words)), str(run / "checkpoints")
    trained = {name.removeprefix(PARAMS) for name in read_manifest(root, 6).arrays if name.startswith(PARAMS)}
    assert _averages(run, 6).keys() == trained

    evaluated = [each for each in records(run / "metrics.jsonl") if each.get("event") == "evaluated"][-1]
    model = load_model(job, root, step=None, report=lambda *_: None, part=AVERAGES)
    last = load_model(job, root, step=None, report=lambda *_: None)
    found = {name: _loss(each.program, each.params) for name, each in (("average", model), ("last", last))}
    assert found["average"] != pytest.approx(found["last"], rel=1e-4)
    assert evaluated["sets"]["average/same"]["loss"] != evaluated["sets"]["same"]["loss"]
    with pytest.raises(CheckpointError, match="holds no average of the weights"):
        load_model(job, str(path / "base" / "checkpoints"), step=None, report=lambda *_: None, part=AVERAGES)


def test_another_average_is_another_run(begun: tuple[Path, list[str]]) -> None:
    """It is refused by its field; so is none."""
    path, words = begun
    with pytest.raises(RunDirectoryError, match=r"optimizer.average.decay: was 0.6, is now 0.9"):
        run_here(path / "base", *words, "training.optimizer.average.decay=0.9")
    with pytest.raises(RunDirectoryError, match=r"optimizer.average.decay: was 0.6, is now null"):
        run_here(path / "base", *_without(words))


@pytest.mark.long  # its rule is the one of other weights, below
def test_a_fork_that_averages_begins_with_the_weights(begun: tuple[Path, list[str]]) -> None:
    """A run that had none is refused it, unless it is forked: then it is of the steps from there on, and says so."""
    path, words = begun
    run, said = folder(path, "fork"), io.StringIO()
    assert run_here(run, *_without(words), "training.steps=3") == ExitCode.OK
    with pytest.raises(RunDirectoryError, match=r"optimizer.average.decay: was null, is now 0.6"):
        run_here(run, *words)
    assert run_here(run, *words, "training.steps=4", fork=True, said=said) == ExitCode.OK

    assert "step 3: holds no average of the weights, which begins anew from here" in said.getvalue()
    assert "arrays that it lacks" not in said.getvalue()
    last = {name.removeprefix(PARAMS): x for name, x in load_numpy(str(run / "checkpoints"), 4, PARAMS)}
    for name, mean in _averages(run, 4).items():
        np.testing.assert_allclose(mean, last[name], rtol=1e-5, atol=1e-8, err_msg=name)


def test_weights_of_another_run_begin_an_average_anew(begun: tuple[Path, list[str]]) -> None:
    """Evaluated before the next step it would be those weights; of that run's average nothing is left."""
    path, words = begun
    run = folder(path, "tuned")
    assert (
        run_here(run, *words, f"training.startFrom={{path: {path / 'base'}, step: 6}}", "training.steps=1")
        == ExitCode.OK
    )

    last = {name.removeprefix(PARAMS): x for name, x in load_numpy(str(run / "checkpoints"), 1, PARAMS)}
    for name, mean in _averages(run, 1).items():
        np.testing.assert_allclose(mean, last[name], rtol=1e-5, atol=1e-8, err_msg=name)
    assert losses(run)[1] < losses(path / "base")[1] - 0.5


def test_a_step_that_is_skipped_moves_nothing(begun: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the average nor the number of steps that it is of."""
    path, words = begun
    batch = Loader.batch

    def poisoned(loader: Loader, step: int) -> Any:
        made = batch(loader, step)
        return made._replace(weights=made.weights * np.nan) if loader.number(step) == 3 else made

    monkeypatch.setattr(Loader, "batch", poisoned)
    run = folder(path, "skips")
    assert run_here(run, *words, "training.badSteps.nonFinite=skip", "training.evaluation={}") == ExitCode.OK

    digests = [_digests(run, step) for step in (3, 4, 5)]
    assert digests[0] == digests[1]
    assert not {*digests[1].items()} & {*digests[2].items()}
    assert int(dict(load_numpy(str(run / "checkpoints"), 6, "average.steps"))["average.steps"]) == 5


def _train(program: Program, num_steps: int) -> tuple[list[Weights], State]:
    """The float32 weights after each of some steps, and the last state."""
    with program.lowering():
        options = program.compiler_options(runs_once=True)
        state = jax.jit(program.init, out_shardings=program.shardings(), compiler_options=options).lower().compile()()
    compiled = lower_step(program).compile()
    controls = jax.device_put(np.zeros(program.layout.mesh.size, np.int32), program.layout.control)
    after = []
    for step in range(num_steps):
        state, _ = compiled(state, batch_of(program, step), controls)
        after.append(jax.tree.map(np.array, {**state["params"], **program.rule.masters(state["optimizer"])}))
    return after, state


def _loss(program: Program, params: Any) -> float:
    sums = lower_evaluation(program).compile()(params, batch_of(program, 0))
    return float(sums.cross_entropy / sums.weight)


def _without(words: list[str]) -> list[str]:
    return [word for word in words if OF_AVERAGE not in word]


def _digest(run: Path) -> str:
    return str(json.loads((run / "summary.json").read_text())["digest"])


def _digests(run: Path, step: int) -> dict[str, str]:
    arrays = read_manifest(str(run / "checkpoints"), step).arrays
    return {path: entry.digest for path, entry in arrays.items() if path.startswith(f"{AVERAGE}.")}


def _averages(run: Path, step: int) -> Weights:
    return {path.removeprefix(AVERAGES): x for path, x in load_numpy(str(run / "checkpoints"), step, AVERAGES)}
