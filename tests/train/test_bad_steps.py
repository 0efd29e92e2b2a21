"""Steps that are not to be trained on: which they are, and that what becomes of them can be repeated bit for bit."""

import errno
import json
import math
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import pytest
from tests.train.conftest import SMALL, run_here

from shardwise.job.load import loads
from shardwise.job.resolve import resolve
from shardwise.job.spec import BadSteps
from shardwise.protocol.contract import ExitCode
from shardwise.protocol.errors import JobError, NonFiniteError, StorageError
from shardwise.train.bad_steps import NO_PAST, Judge
from shardwise.train.checkpoint import read_manifest
from shardwise.train.loader import Loader
from shardwise.train.metrics import MetricsLog, records
from shardwise.train.metrics import steps as steps_of
from shardwise.train.run_directory import RunDirectory

_BAD_BATCH = 4
_SPIKE = BadSteps(loss_spike="skip", sigmas=3.0, window=8)


def _judged(losses: list[float], settings: BadSteps = _SPIKE) -> list[bool]:
    judge = Judge(settings)
    return [judge.judge(step, loss, 1.0) is not None for step, loss in enumerate(losses, 1)]


def test_a_spike_lies_far_above_the_losses_before_it() -> None:
    """Far is in standard deviations; it is not looked for before half a window is known, and a fall is none."""
    steady = [2.0, 2.1, 1.9, 2.0, 2.1, 1.9]

    assert _judged([*steady, 2.2, 3.0, 0.5, 2.0]) == [False] * 7 + [True, False, False]
    assert _judged([2.0, 2.1, 9.0]) == [False] * 3
    assert [_judged([*steady[:known], 9.0])[-1] for known in (4, 5)] == [False, True]
    assert _judged([*steady, 3.0], BadSteps()) == [False] * 7


def test_a_spike_is_no_measure_of_the_next_one() -> None:
    """The second of two in a row lies as far above the good losses as the first."""
    assert _judged([2.0, 2.1, 1.9, 2.0, 2.1, 1.9, 5.0, 5.0, 2.0])[6:] == [True, True, False]


def test_what_is_no_number_is_bad_whatever_was_before() -> None:
    """Of the loss as of the gradient, at the first step too."""
    judge = Judge(BadSteps(non_finite="skip"))

    for loss, norm in ((math.nan, 1.0), (math.inf, 1.0), (2.0, math.nan), (2.0, math.inf)):
        verdict = judge.judge(1, loss, norm)
        assert verdict is not None
        assert verdict.action == "skip"
    assert judge.judge(1, 2.0, 1.0) is None


def test_the_limit_of_a_step_does_not_depend_on_when_it_is_asked_for() -> None:
    """The step before may be known by then, after a save, or not; and another judge goes on from what is kept."""
    judge = Judge(_SPIKE)
    for step in range(1, 40):
        before = judge.limit(step + 1)
        judge.judge(step, 2.0 + 0.01 * math.sin(step), 1.0)
        assert judge.limit(step + 1) == before
        assert judge.limit(step + 2) == Judge(_SPIKE, judge.past).limit(step + 2)
    assert math.isfinite(judge.limit(40))


@pytest.mark.parametrize(("action", "held_back"), [("skip", True), ("rollBack", False), (None, False)])
def test_only_a_run_that_skips_spikes_holds_their_updates_back(action: Any, *, held_back: bool) -> None:
    """Else the program makes them, and the run ends or goes back; one that looks for none keeps no losses."""
    judge = Judge(BadSteps(loss_spike=action, window=8))
    for step in range(1, 9):
        judge.judge(step, 2.0 + 0.1 * (step % 2), 1.0)

    assert math.isfinite(judge.limit_of_updates(9)) == held_back
    assert (judge.judge(9, 9.0, 1.0) is not None) == (action is not None)
    assert bool(judge.past.losses) == (action is not None)


def test_the_last_losses_count_and_no_others_are_kept() -> None:
    """They are a window up to two steps before; with all of a long run's, each checkpoint would be larger."""
    judge = Judge(_SPIKE)
    losses = [4.0 - 0.01 * step * step for step in range(1, 31)]
    for step, loss in enumerate(losses, 1):
        assert judge.judge(step, loss, 1.0) is None

    assert judge.limit(30) == np.float32(fmean(losses[20:28]) + 3.0 * pstdev(losses[20:28]))
    assert judge.past.losses == tuple(enumerate(losses, 1))[-10:]


def test_a_phase_is_judged_by_its_own_losses() -> None:
    """From its first step, which left-out batches bring forward; and a judge that goes on within it, the same."""
    words = ["training.data.train=[{name: a, paths: [a]}, {name: b, paths: [b]}]"]
    words += ["training.data.phases=[{fromStep: 13, weights: {b: 1}}, {fromStep: 40, weights: {a: 1}}]"]
    words += ["training.badSteps={lossSpike: skip, sigmas: 3, window: 8}", "training.steps=50"]
    training = resolve(loads(SMALL, words)).spec.training
    whole = Judge.of(training, NO_PAST, {3, 50})  # batch 13 is the 13th that is trained on
    bad = []
    for step in range(1, 50):
        parts = Judge.of(training, whole.past, {3, 50})
        level = 9.0 if 13 <= step < 40 else 2.0
        assert parts.limit(step + 1) == whole.limit(step + 1)
        assert math.isinf(whole.limit(step)) == (step < 6 or 13 <= step < 18 or 40 <= step < 45)
        if whole.judge(step, level + 0.1 * (step % 2) + 9.0 * (step in (20, 21)), 1.0):
            bad.append(step)
    assert bad == [20, 21]


def test_only_so_many_steps_are_skipped() -> None:
    """Between two saves, whatever lies between them; and one after the other, saves and another judge or not."""
    settings = BadSteps(non_finite="skip", max_skips=3)

    def actions(steps: str, *, going_on: str = "") -> list[str | None]:
        judge = Judge(settings)
        found: list[str | None] = []
        for step, kind in enumerate(steps, 1):
            if kind in "|/":
                judge.saved()
            if kind == "/":
                judge = Judge(settings, judge.past)
            if kind in ".x":
                verdict = judge.judge(step, math.nan if kind == "x" else 2.0, 1.0)
                said = going_on and verdict.reason.partition(going_on)[2] if verdict else ""
                found.append(verdict.action + said if verdict else None)
        return found

    assert actions("x.x.xx") == ["skip", None, "skip", None, "skip", "stop"]
    assert actions("x.x.x|x.x") == ["skip", None, "skip", None, "skip", "skip", None, "skip"]
    for save in "|/":
        assert actions(f"x{save}x{save}x{save}x") == ["skip"] * 3 + ["stop"]
        assert actions(f"xx{save}x.{save}xxx{save}") == ["skip"] * 3 + [None] + ["skip"] * 3
    assert actions("xxxx", going_on=" numbers")[-1] == "stop, and 3 were skipped since the last save"
    assert actions("x/x|xx", going_on=" numbers")[-1] == "stop, and the 3 steps before it were skipped"


def test_going_back_wants_a_budget() -> None:
    """Without one the first bad step would end the run all the same."""
    words = "training.badSteps.nonFinite=rollBack"
    with pytest.raises(JobError, match=r"recovery.restarts.nonfinite is 0"):
        resolve(loads(SMALL, [words]))
    resolve(loads(SMALL, [words, "recovery.restarts.nonfinite=2"]))


class Run:
    """A run on one text in which one batch is poisoned, in this process."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._text = folder / "text.txt"
        self._text.write_text("".join(f"{number} green bottles, and no more. " for number in range(1500)))
        batch = Loader.batch

        def poisoned(loader: Loader, step: int) -> Any:
            made = batch(loader, step)
            return made._replace(weights=made.weights * math.nan) if loader.number(step) == _BAD_BATCH else made

        monkeypatch.setattr(Loader, "batch", poisoned)

    def __call__(self, name: str, *overrides: str, steps: int = 8, fork: bool = False) -> ExitCode:
        """Start it, or go on with it."""
        directory = self._folder / name
        (directory / "logs").mkdir(parents=True, exist_ok=True)
        job = (
            "training.model.layers=1",
            f"training.data.train.0.paths=[{self._text}]",
            "training.checkpoint.everySteps=2",
            "training.checkpoint.keep.last=10",
            f"training.steps={steps}",
            "recovery.restarts.nonfinite=2",
        )
        return run_here(directory, *job, *overrides, fork=fork)

    def digests(self, name: str, step: int) -> dict[str, str]:
        """What a checkpoint's arrays are, but for the count of steps."""
        manifest = read_manifest(str(self._folder / name / "checkpoints"), step)
        return {path: entry.digest for path, entry in manifest.arrays.items() if path != "step"}

    def losses(self, name: str) -> list[float]:
        """The loss of each step."""
        return [one["loss"] for one in records(self._folder / name / "metrics.jsonl") if "event" not in one]

    def events(self, name: str) -> list[tuple[str, int]]:
        """What the run says of bad steps."""
        found = records(self._folder / name / "metrics.jsonl")
        return [(one["event"], one["batch"]) for one in found if "event" in one and "batch" in one]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_a_trainer: None) -> Run:  # noqa: ARG001
    """Return the run of this test."""
    return Run(tmp_path, monkeypatch)


def test_a_run_ends_at_a_step_that_is_no_number(run: Run, tmp_path: Path) -> None:
    """That is the default; what was saved before stays, and the same run goes on with another word."""
    with pytest.raises(NonFiniteError, match=r"step 5: the loss is nan .* set training.badSteps"):
        run("one")
    assert run.events("one") == [("nonfinite", _BAD_BATCH)]
    assert json.loads((tmp_path / "one" / "summary.json").read_text())["status"] == "nonfinite"

    assert run("one", "training.badSteps.nonFinite=skip") == ExitCode.OK


def test_a_full_disk_is_not_why_a_run_ends_at_a_bad_step(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody would look at the data of a run that says it ended for want of room; one that is whole does say that."""

    def full(_: MetricsLog) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(MetricsLog, "_flush", full)
    with pytest.raises(NonFiniteError, match="step 5: the loss is nan"):
        run("one")
    assert json.loads((tmp_path / "one" / "summary.json").read_text())["status"] == "nonfinite"
    lost = [line for line in capsys.readouterr().err.splitlines() if "metrics.jsonl" in line]
    assert lost == ["metrics.jsonl: the last 8 lines are lost (No space left on device)"]

    with pytest.raises(StorageError, match="No space left on device"):
        run("two", f"training.data.leaveOut=[{_BAD_BATCH}]")


def test_a_skipped_step_moves_nothing(run: Run) -> None:
    """Weights and moments are the same bits before and after it, and the run goes on; an interrupted one, the same."""
    skip = ("training.badSteps.nonFinite=skip", "training.checkpoint.everySteps=1")

    assert run("whole", *skip) == ExitCode.OK
    assert run.events("whole") == [("skipped", _BAD_BATCH)]
    assert run.digests("whole", 5) == run.digests("whole", 4)
    assert run.digests("whole", 6) != run.digests("whole", 5)
    assert run("parts", *skip, steps=5) == ExitCode.OK
    assert run("parts", *skip) == ExitCode.OK
    assert run.digests("parts", 8) == run.digests("whole", 8)


def test_a_run_without_bad_steps_is_the_same_whether_it_would_skip_them(run: Run) -> None:
    """But for last bits: the programs are two, and the compiler orders their sums differently."""
    clean = f"training.data.leaveOut=[{_BAD_BATCH}]"
    assert run("skips", clean, "training.badSteps={nonFinite: skip, lossSpike: skip, window: 4}") == ExitCode.OK
    assert run("stops", clean) == ExitCode.OK

    assert run.events("skips") == []
    assert run.losses("skips") == pytest.approx(run.losses("stops"), rel=2e-6)


@pytest.mark.long  # the judge's budget is tested alone above
def test_more_skips_than_allowed_end_the_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """They count from the last save on, unless all steps before that were skipped too, by this start or the last."""
    monkeypatch.setattr(Loader, "number", lambda _loader, step: _BAD_BATCH if step >= 2 else step)
    with pytest.raises(NonFiniteError, match=r"step 6: .*, and 3 were skipped since the last save"):
        run("one", "training.badSteps={nonFinite: skip, maxSkips: 3}", "training.checkpoint.everySteps=100")
    with pytest.raises(NonFiniteError, match=r"step 6: .*, and the 3 steps before it were skipped\. Nothing"):
        run("other", "training.badSteps={nonFinite: skip, maxSkips: 3}")
    assert run("parts", "training.badSteps={nonFinite: skip, maxSkips: 3}", steps=4) == ExitCode.OK
    with pytest.raises(NonFiniteError, match=r"step 6: .*, and the 3 steps before it were skipped\. Nothing"):
        run("parts", "training.badSteps={nonFinite: skip, maxSkips: 3}")
    assert run.events("parts") == run.events("other") == [("skipped", _BAD_BATCH)] * 3 + [("nonfinite", _BAD_BATCH)]

    monkeypatch.setattr(Loader, "number", lambda _loader, step: _BAD_BATCH if step >= 2 and step % 4 else step + 20)
    assert run("good between", "training.badSteps={nonFinite: skip, maxSkips: 3}", steps=12) == ExitCode.OK
    assert len(run.events("good between")) == 8


def test_who_goes_back_leaves_the_batch_out(run: Run, tmp_path: Path) -> None:
    """The next start goes on from the newest checkpoint, in the order of a fresh run of a job without that batch."""
    back = "training.badSteps.nonFinite=rollBack"
    with pytest.raises(NonFiniteError, match=rf"goes back to its newest checkpoint, and leaves out batch {_BAD_BATCH}"):
        run("one", back)
    assert run("one", back) == ExitCode.OK
    assert run.events("one") == [("rolledBack", _BAD_BATCH)]
    assert run("fresh", f"training.data.leaveOut=[{_BAD_BATCH}]") == ExitCode.OK
    assert run.digests("one", 8) == run.digests("fresh", 8)

    # Wherever the checkpoints are gone on with, they know what was left out: the directory's own note may be lost.
    (tmp_path / "one" / "logs" / "left-out.json").unlink()
    assert run("one", back, steps=10) == ExitCode.OK
    assert run("fresh", f"training.data.leaveOut=[{_BAD_BATCH}]", steps=10) == ExitCode.OK
    assert run.digests("one", 10) == run.digests("fresh", 10)


@pytest.mark.parametrize("is_saved", [False, pytest.param(True, marks=pytest.mark.long)], ids=["noted", "saved"])
def test_a_fork_with_another_order_leaves_nothing_out_of_it(run: Run, tmp_path: Path, *, is_saved: bool) -> None:
    """Its batch of that number has other rows: neither the directory's note nor the checkpoint's is about them."""
    back = "training.badSteps.nonFinite=rollBack"
    with pytest.raises(NonFiniteError, match="goes back"):
        run("one", back)
    if is_saved:
        assert run("one", back, steps=6) == ExitCode.OK
    assert run("one", back, "training.seed=7", f"training.data.leaveOut=[{_BAD_BATCH}]", fork=True) == ExitCode.OK

    assert RunDirectory(tmp_path / "one", 0).read_left_out() == []
    assert read_manifest(str(tmp_path / "one" / "checkpoints"), 8).history.left_out == ()


def test_a_fork_in_the_same_order_leaves_out_what_the_run_before_it_did(run: Run, tmp_path: Path) -> None:
    """The batch of that number has the same rows, and would end the fork as it ended the run."""
    back = "training.badSteps.nonFinite=rollBack"
    with pytest.raises(NonFiniteError, match="goes back"):
        run("one", back)
    assert run("one", back, "training.optimizer.learningRate=2e-3", fork=True) == ExitCode.OK

    assert run.events("one") == [("rolledBack", _BAD_BATCH)]
    assert read_manifest(str(tmp_path / "one" / "checkpoints"), 8).history.left_out == (_BAD_BATCH,)


@pytest.mark.long  # a fork in the same order, and a run's own batches, are here
def test_a_fork_keeps_the_batches_that_it_leaves_out_itself(run: Run, tmp_path: Path) -> None:
    """A restart of it, before it has saved anything, knows its own from those of the run before it."""
    back = ("training.badSteps.nonFinite=rollBack", "training.seed=7", "training.checkpoint.everySteps=100")
    assert run("one", steps=2) == ExitCode.OK
    RunDirectory(tmp_path / "one", 0).leave_out(0)
    with pytest.raises(NonFiniteError, match=f"leaves out batch {_BAD_BATCH}"):
        run("one", *back, fork=True)
    assert RunDirectory(tmp_path / "one", 0).read_left_out() == [_BAD_BATCH]
    assert run("one", *back, fork=True) == ExitCode.OK
    assert RunDirectory(tmp_path / "one", 0).read_left_out() == [_BAD_BATCH]


def test_a_run_stopped_before_a_spike_judges_it_like_one_that_was_not(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the limit is made of is in the checkpoint."""
    spike = "training.badSteps={lossSpike: skip, window: 4, sigmas: 3}"
    number = Loader.number
    batch = Loader.batch
    monkeypatch.setattr(Loader, "number", lambda loader, step: number(loader, step) + (step >= _BAD_BATCH))

    def noisy(loader: Loader, step: int) -> Any:
        made = batch(loader, step)
        return made._replace(targets=(made.targets * 7 + 31) % 250) if step == 8 else made

    monkeypatch.setattr(Loader, "batch", noisy)
    for name, pieces in (("whole", [12]), ("parts", [8, 12])):
        for steps in pieces:
            assert run(name, spike, "training.optimizer.learningRate=1e-2", steps=steps) == ExitCode.OK
    assert [event for event, _ in run.events("whole")] == ["skipped"]
    assert run.events("parts") == run.events("whole")
    assert run.digests("parts", 12) == run.digests("whole", 12)


@pytest.mark.long  # a fork in the same order, and a run's own judgement, are here
@pytest.mark.usefixtures("as_a_trainer")
def test_a_fork_onto_other_data_is_judged_by_its_own_losses(tmp_path: Path) -> None:
    """Beside those of text that was learnt by heart every loss of another text would be a spike."""
    (tmp_path / "logs").mkdir()
    one, other = tmp_path / "one.txt", tmp_path / "other.txt"
    one.write_text("all alike. " * 8000)
    other.write_bytes(bytes(np.random.default_rng(0).integers(32, 127, 80_000, np.uint8)))
    words = (
        "training.model.layers=1",
        "training.optimizer.learningRate=0.01",
        "training.badSteps={nonFinite: stop, lossSpike: skip, window: 16}",
    )
    assert run_here(tmp_path, *words, f"training.data.train.0.paths=[{one}]", "training.steps=40") == ExitCode.OK
    learnt = steps_of(tmp_path / "metrics.jsonl")[-1]["loss"]
    changed = (f"training.data.train.0.paths=[{other}]", "training.steps=60")
    assert run_here(tmp_path, *words, *changed, fork=True) == ExitCode.OK

    found = records(tmp_path / "metrics.jsonl")
    assert [record for record in found if record.get("event") == "skipped"] == []
    assert steps_of(tmp_path / "metrics.jsonl")[-1]["loss"] > 2 * learnt


@pytest.mark.usefixtures("as_a_trainer")
@pytest.mark.parametrize("action", ["skip", "rollBack"])
def test_a_phase_of_harder_text_is_trained_on(tmp_path: Path, action: str) -> None:
    """Its losses are no spikes beside those of the phase before, and are what one in it is a spike above.

    So it is in a run that was stopped within the first steps of the phase, bit for bit.
    """
    easy, hard = tmp_path / "easy.txt", tmp_path / "hard.txt"
    easy.write_text("ab" * 20_000)
    hard.write_bytes(bytes(np.random.default_rng(0).integers(32, 127, 40_000, np.uint8)))
    words = (
        "training.model.layers=1",
        "training.optimizer.learningRate=0.01",
        f"training.data.train=[{{name: easy, paths: [{easy}]}}, {{name: hard, paths: [{hard}], weight: 0}}]",
        "training.data.phases=[{fromStep: 20, weights: {hard: 1}}]",
        f"training.badSteps={{lossSpike: {action}, window: 8}}",
        "training.checkpoint.everySteps=5",
        "recovery.restarts.nonfinite=2",
    )
    digests = []
    for name, pieces in (("whole", [32]), ("parts", [22, 32])):
        (tmp_path / name / "logs").mkdir(parents=True)
        for steps in pieces:
            assert run_here(tmp_path / name, *words, f"training.steps={steps}") == ExitCode.OK
        losses = {record["step"]: record["loss"] for record in steps_of(tmp_path / name / "metrics.jsonl")}
        assert [*losses] == [*range(1, 33)]
        assert losses[21] > 3 * losses[20]
        history = read_manifest(str(tmp_path / name / "checkpoints"), 32).history
        assert history.losses == tuple((step, losses[step]) for step in range(23, 33))
        digests.append(json.loads((tmp_path / name / "summary.json").read_text())["digest"])
    assert digests[0] == digests[1]
