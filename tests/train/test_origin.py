"""A run that begins from another run's checkpoint: its weights alone, or all of its state."""

import io
import math
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from tests.cli.conftest import QUICKSTART
from tests.long import all_but
from tests.train.conftest import run_here, runs_here

from shardwise.job.load import load
from shardwise.job.resolve import resolve
from shardwise.protocol.contract import ExitCode
from shardwise.protocol.errors import CheckpointError
from shardwise.train.checkpoint import Restored, load_numpy, read_manifest, steps
from shardwise.train.metrics import records
from shardwise.train.origin import Origin, origin_below, refuse_other_model

LEVEL = "training.optimizer.schedule={kind: warmup-stable-decay, decaySteps: 2, finalRatio: 0}"
HALF = "training.precision={params: bfloat16, compute: bfloat16}"


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """A run of 6 steps with checkpoints at 2, 4 and 6, and the words of its job."""
    tmp_path = tmp_path_factory.mktemp("origin")
    text = tmp_path / "text.txt"
    text.write_text("all work and no play " * 2000)
    words = ["training.model.layers=1", f"training.data.train.0.paths=[{text}]", LEVEL]
    words += ["training.checkpoint.everySteps=2", "training.steps=6"]
    with runs_here(tmp_path):
        assert run_here(folder(tmp_path, "trunk"), *words) == ExitCode.OK
        yield tmp_path, words


def folder(parent: Path, name: str) -> Path:
    """Make the directory of a run."""
    (parent / name / "logs").mkdir(parents=True)
    return parent / name


def params(directory: Path, step: int) -> dict[str, np.ndarray]:
    """All parameters of a checkpoint."""
    return dict(load_numpy(str(directory / "checkpoints"), step, "params."))


def losses(directory: Path) -> dict[int, float]:
    """The loss of each step in the metrics."""
    return {record["step"]: record["loss"] for record in records(directory / "metrics.jsonl") if "event" not in record}


def test_a_decay_begins_from_any_checkpoint(begun: tuple[Path, list[str]]) -> None:
    """With all of its state a run branches off: to the trunk's last step bit for bit as the trunk, or as a decay."""
    tmp_path, words = begun
    trunk = tmp_path / "trunk"
    words = [*words, f"training.startFrom={{path: {trunk}, step: 4, restore: all}}"]
    same = folder(tmp_path, "same")
    assert run_here(same, *words) == ExitCode.OK
    assert losses(same) == {step: loss for step, loss in losses(trunk).items() if step > 4}
    assert all(np.array_equal(x, params(trunk, 6)[path]) for path, x in params(same, 6).items())

    assert run_here(same, *words) == ExitCode.OK  # goes on from its own
    assert [record["step"] for record in records(same / "metrics.jsonl") if record.get("event") == "restored"] == [4, 6]

    decay = folder(tmp_path, "decay")
    words[-1] = f"training.startFrom={{path: {trunk}, step: 2, restore: all}}"
    assert run_here(decay, *words, "training.steps=4") == ExitCode.OK
    rates = [record["learningRate"] for record in records(decay / "metrics.jsonl") if "event" not in record]
    assert rates == pytest.approx([1e-3, 5e-4])
    assert steps(str(decay / "checkpoints")) == [4]
    assert steps(str(trunk / "checkpoints")) == [2, 4, 6]


@pytest.mark.parametrize("kind", all_but(["cosine"], ["cosine", "linear"]))
def test_a_decay_of_another_kind_begins_from_a_checkpoint(begun: tuple[Path, list[str]], kind: str) -> None:
    """With all of the state the new schedule is read at the steps that follow, to the new last one."""
    tmp_path, words = begun
    words = [*words, f"training.startFrom={{path: {tmp_path / 'trunk'}, step: 4, restore: all}}", "training.steps=7"]
    words += [f"training.optimizer.schedule={{kind: {kind}, finalRatio: 0}}"]
    directory = folder(tmp_path, f"decay-{kind}")
    assert run_here(directory, *words) == ExitCode.OK
    rates = {r["step"]: r["learningRate"] for r in records(directory / "metrics.jsonl") if "event" not in r}

    def share(done: float) -> float:
        return 1 - done if kind == "linear" else (1 + math.cos(math.pi * done)) / 2

    assert rates == {step: pytest.approx(1e-3 * share((step - 1) / 7), rel=1e-5) for step in (5, 6, 7)}


@pytest.mark.parametrize(("override", "is_other"), [("training.batch.sequences=8", True), ("training.steps=5", False)])
def test_a_decay_on_other_batches_says_so(
    begun: tuple[Path, list[str]], tmp_path: Path, override: str, *, is_other: bool
) -> None:
    """With all of the state the data go on from its step; a batch of another size has other tokens there."""
    place, words = begun
    words = [*words, f"training.startFrom={{path: {place / 'trunk'}, step: 4, restore: all}}"]
    said = io.StringIO()
    assert run_here(folder(tmp_path, "decay"), *words, override, said=said) == ExitCode.OK
    told = "goes on with other batches than that run would have: spec.training.batch.sequences: was "
    assert (told in " ".join(said.getvalue().split())) == is_other


def test_weights_alone_begin_a_run_of_their_own(begun: tuple[Path, list[str]]) -> None:
    """Steps, data and moments begin anew; nothing to do still saves what it began with."""
    tmp_path, words = begun
    words = [*words, f"training.startFrom.path={tmp_path / 'trunk' / 'checkpoints'}"]
    tuned = folder(tmp_path, "tuned")
    assert run_here(tuned, *words) == ExitCode.OK
    assert sorted(losses(tuned)) == [1, 2, 3, 4, 5, 6]
    assert losses(tuned)[1] < losses(tmp_path / "trunk")[1] - 0.1

    assert run_here(folder(tmp_path, "all"), *words, "training.startFrom.restore=all") == ExitCode.OK
    assert steps(str(tmp_path / "all" / "checkpoints")) == [6]


@pytest.mark.parametrize("fork", [False, True])
def test_weights_of_float32_begin_a_run_in_bfloat16(begun: tuple[Path, list[str]], *, fork: bool) -> None:
    """By startFrom or as a fork: the parameters are those weights, rounded, and the optimizer has them as they were."""
    tmp_path, words = begun
    trunk, directory = tmp_path / "trunk", tmp_path / f"rounded-{fork}"
    if fork:
        shutil.copytree(trunk, directory)
    else:
        folder(tmp_path, directory.name)
        words = [*words, f"training.startFrom.path={trunk}"]
    words = [*words, HALF, "training.steps=7"]
    words += ["training.optimizer.groups=[{match: '*', rateFactor: 0}]"]  # nothing moves

    assert run_here(directory, *words, fork=fork) == ExitCode.OK

    held, rounded = params(trunk, 6), params(directory, 7)
    assert all(x.dtype == jnp.bfloat16 for x in rounded.values())
    assert all(np.array_equal(x, held[path].astype(jnp.bfloat16)) for path, x in rounded.items())
    for path, x in load_numpy(str(directory / "checkpoints"), 7, "optimizer.weights."):
        assert np.array_equal(x, held[path.replace("optimizer.weights.", "params.")]), path


@pytest.fixture(scope="module")
def half(begun: tuple[Path, list[str]]) -> tuple[Path, list[str]]:
    """The run of the same job with bfloat16 parameters, in `half`, and the words of the job."""
    tmp_path, words = begun
    assert run_here(folder(tmp_path, "half"), *words, HALF) == ExitCode.OK
    return tmp_path, words


@pytest.mark.parametrize("fork", [False, True])
def test_weights_of_bfloat16_begin_a_run_in_float32(half: tuple[Path, list[str]], *, fork: bool) -> None:
    """By startFrom or as a fork: the parameters are what the optimizer had added its updates to."""
    tmp_path, words = half
    begin, directory = tmp_path / "half", tmp_path / f"widened-{fork}"
    if fork:
        shutil.copytree(begin, directory)
    else:
        folder(tmp_path, directory.name)
        words = [*words, f"training.startFrom.path={begin}"]
    words = [*words, "training.precision.compute=bfloat16", "training.steps=7"]
    words += ["training.optimizer.groups=[{match: '*', rateFactor: 0}]"]  # nothing moves

    assert run_here(directory, *words, fork=fork) == ExitCode.OK

    held = dict(load_numpy(str(begin / "checkpoints"), 6, "optimizer.weights."))
    rounded, widened = params(begin, 6), params(directory, 7)
    assert all(x.dtype == jnp.float32 for x in widened.values())
    assert all(np.array_equal(x, held[path.replace("params.", "optimizer.weights.")]) for path, x in widened.items())
    assert any(not np.array_equal(x, rounded[path].astype(jnp.float32)) for path, x in widened.items())


@pytest.mark.parametrize(("begin", "precision"), [("half", "training.seed=0"), ("trunk", HALF)])
def test_the_state_of_another_precision_is_refused_by_its_field(
    half: tuple[Path, list[str]], begin: str, precision: str
) -> None:
    """The optimizer has other arrays; what was asked for and what to do are said."""
    tmp_path, words = half
    asked = f"training.startFrom={{path: {tmp_path / begin}, restore: all}}"
    error = r"spec\.training\.precision\.params: was .*, is now .*Set precision\.params .*startFrom\.restore: weights"
    for step in ("", "training.startFrom.step=4"):
        directory = folder(tmp_path, f"whole-{begin}-{step}")
        with pytest.raises(CheckpointError, match=error):
            run_here(directory, *words, precision, asked, *filter(None, [step]))
        assert steps(str(directory / "checkpoints")) == []


def test_the_state_of_another_optimizer_is_refused_by_its_field(begun: tuple[Path, list[str]]) -> None:
    """Its arrays are others, or have the same names and mean another thing, as Lion's momentum beside AdamW's."""
    tmp_path, words = begun
    words = [*words, f"training.startFrom={{path: {tmp_path / 'trunk'}, restore: all}}"]
    error = (
        r"another optimizer: spec\.training\.optimizer\.name: was .adamw., is now .lion.\. "
        r"Set optimizer\.name .*startFrom\.restore: weights"
    )
    directory = folder(tmp_path, "whole-lion")
    with pytest.raises(CheckpointError, match=error):
        run_here(directory, *words, "training.optimizer.name=lion")
    assert steps(str(directory / "checkpoints")) == []


def test_imported_weights_are_the_runs_own_through_a_link(tmp_path: Path) -> None:
    """By whatever path the job and the run have come to the folder: else retention would delete them."""
    (tmp_path / "disk" / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    roots = [str(tmp_path / place / "run" / "checkpoints") for place in ("disk", "link", "link/../disk")]
    for given in [*roots, str(tmp_path / "link" / "run")]:
        job = resolve(load(QUICKSTART, [f"training.startFrom={{path: {given}, step: 0}}"]))
        assert [origin_below(job, root) for root in roots] == [0, 0, 0]
        assert origin_below(job, str(tmp_path / "disk" / "other" / "checkpoints")) is None
    job = resolve(load(QUICKSTART, ["training.startFrom={path: s3://bucket/run, step: 0}"]))
    assert (origin_below(job, "s3://bucket/run"), origin_below(job, roots[0])) == (0, None)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("{{path: {0}/nothing}}", r"nothing holds no checkpoint; .*startFrom\.path"),
        ("{{path: {0}/trunk, step: 3}}", r"step-00000003 cannot be used.*2, 4, 6"),
    ],
)
def test_a_checkpoint_that_is_not_there_is_refused(begun: tuple[Path, list[str]], given: str, error: str) -> None:
    """Nothing is trained from drawn weights: the error names the folder or the step."""
    tmp_path, words = begun
    directory = folder(tmp_path, f"refused-{len(given)}")
    with pytest.raises(CheckpointError, match=error):
        run_here(directory, *words, f"training.startFrom={given.format(tmp_path)}")
    assert steps(str(directory / "checkpoints")) == []


def test_a_checkpoint_of_another_model_is_refused(begun: tuple[Path, list[str]]) -> None:
    """By its fields, where the shapes are the same; what a model may be trained on with is told."""
    tmp_path, _ = begun
    root = str(tmp_path / "trunk" / "checkpoints")
    manifest = read_manifest(root, 6)
    restored = Restored(step=6, arrays={}, manifest=manifest, refused=[], missing=[])
    lines: list[str] = []

    def refuse(**fields: object) -> None:
        identity = {**manifest.identity, **{f"spec.training.model.{name}": value for name, value in fields.items()}}
        origin = Origin(root=root, step=6, partial=False, is_own=False, identity=identity)
        refuse_other_model(origin, restored, lines.append)

    with pytest.raises(CheckpointError, match=r"(?s)step 6 is of another model.*model\.activation: was null, is now"):
        refuse(activation="gelu-exact")
    refuse(normEpsilon=1e-3)
    assert lines == [
        f"beginning with the state of step 6 of {root}",
        "which differs from the job in spec.training.model.normEpsilon: was 1e-05, is now 0.001",
    ]


def test_a_mixture_may_be_trained_with_another_balance(begun: tuple[Path, list[str]]) -> None:
    """It is a part of what is minimised, and not of the model, as the number of experts is."""
    tmp_path, _ = begun
    root = str(tmp_path / "trunk" / "checkpoints")
    experts = {"spec.training.model.experts.count": 4, "spec.training.model.experts.balance": 0.01}
    manifest = read_manifest(root, 6).model_copy(update={"identity": experts})
    restored = Restored(step=6, arrays={}, manifest=manifest, refused=[], missing=[])
    lines: list[str] = []
    for name, value in (("balance", 0.001), ("count", 8)):
        identity = {**experts, f"spec.training.model.experts.{name}": value}
        origin = Origin(root=root, step=6, partial=False, is_own=False, identity=identity)
        with (
            nullcontext()
            if name == "balance"
            else pytest.raises(CheckpointError, match=r"experts\.count: was 4, is now 8")
        ):
            refuse_other_model(origin, restored, lines.append)
    assert "experts.balance: was 0.01, is now 0.001" in lines[-1]
