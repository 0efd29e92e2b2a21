"""shardwise.page.curves: metrics.jsonl as curves, whole and thinned."""

import json
import math
import random
from pathlib import Path

from tests.page.building import BEGAN, METRICS, lines, make_program_run, saved, started, step

from shardwise.page.curves import MOST_OTHERS, MOST_POINTS, Curve, Metrics, thinned
from shardwise.protocol.contract import METRICS as METRICS_FILE
from shardwise.train.metrics import steps


def read(path: Path, text: str) -> Metrics:
    """Return the metrics of a file with this text."""
    path.write_text(text, encoding="utf-8")
    return Metrics(path)


def test_curves_are_the_steps_that_count(tmp_path: Path) -> None:
    """Of a step that was repeated the last record counts, as for `shardwise status`; evaluations are a curve too."""
    path = tmp_path / "metrics.jsonl"
    metrics = read(path, lines(METRICS))
    loss = metrics.curves["loss"]
    assert dict(zip(loss.steps, loss.values, strict=True)) == {record["step"]: record["loss"] for record in steps(path)}
    assert list(metrics.curves["heldOutLoss"].steps) == [2, 4]
    assert (metrics.last_step, metrics.last("loss"), metrics.recent("tokensPerSecond")) == (6, 60.0, 1003.5)


def test_steps_beyond_a_restart_are_forgotten(tmp_path: Path) -> None:
    """After a start from a checkpoint, or anew, there is no step beyond it until it is made again."""
    text = lines([started(0, 0), *(step(number) for number in range(1, 9)), started(4, 1)])
    metrics = read(tmp_path / "metrics.jsonl", text)
    assert (list(metrics.curves["loss"].steps), metrics.last_step) == ([1, 2, 3, 4], 4)
    metrics = read(tmp_path / "metrics.jsonl", text + lines([started(0, 2), step(1, 7.0)]))
    assert (list(metrics.curves["loss"].steps), metrics.last("loss")) == ([1], 7.0)


def test_what_is_no_number_is_no_point(tmp_path: Path) -> None:
    """A loss that JSON cannot hold, and a line that a kill has cut short, leave no point; the others stay."""
    text = lines([step(1), {**step(2), "loss": None}, step(3)]) + json.dumps(step(4))[:20]
    metrics = read(tmp_path / "metrics.jsonl", text)
    assert list(metrics.curves["loss"].steps) == [1, 3]
    assert list(metrics.curves["mfu"].steps) == [1, 2, 3]
    assert metrics.last_step == 3


def test_the_newest_value_may_be_no_number(tmp_path: Path) -> None:
    """It is NaN then, not the number before it; a number after it, and a start from before it, end that."""
    begun, evaluated = started(0, 0), {"event": "evaluated", "step": 2, "heldOutLoss": None}
    first = [begun, step(1, 7.0), {**evaluated, "step": 1, "heldOutLoss": 2.4}]
    bad = [*first, {**step(2), "loss": None}, evaluated]
    metrics = read(tmp_path / "metrics.jsonl", lines(bad))
    assert [math.isnan(metrics.last(name) or 0.0) for name in ("loss", "heldOutLoss")] == [True, True]
    assert (metrics.last("mfu"), metrics.recent("tokensPerSecond")) == (0.25, 1001.5)
    metrics = read(tmp_path / "metrics.jsonl", lines([*bad, step(3, 6.5)]))
    assert metrics.last("loss") == 6.5
    metrics = read(tmp_path / "metrics.jsonl", lines([*bad, started(1, 1)]))
    assert (metrics.last("loss"), metrics.last("heldOutLoss")) == (7.0, 2.4)
    metrics = read(tmp_path / "metrics.jsonl", lines([begun, step(1), {"step": 2, "stepSeconds": 0.5}]))
    assert metrics.last("loss") == 1.0, "a step that has no loss does not say that it was no number"


def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    """What is appended later is taken in, half a line once it is whole: the result is that of one reading."""
    path, text = tmp_path / "metrics.jsonl", lines(METRICS)
    metrics = read(path, text[:700])
    metrics.read()
    with path.open("a", encoding="utf-8") as file:
        file.write(text[700:])
    metrics.read()
    assert metrics.series() == Metrics(path).series()
    assert metrics.events == Metrics(path).events


def test_no_file_has_no_curve(tmp_path: Path) -> None:
    """A run that has not made a step has no series."""
    metrics = Metrics(tmp_path / "metrics.jsonl")
    assert (metrics.series(), metrics.events, metrics.last("loss"), metrics.recent("mfu")) == ([], [], None, None)


def test_a_long_curve_keeps_its_ends_and_its_spikes() -> None:
    """Of 100,000 steps as many points stay as a screen shows, with the first, the last, the lowest and the highest."""
    curve, numbers = Curve(), random.Random(0)
    for number in range(1, 100_001):
        curve.add(number, 1e6 if number == 31_415 else -1e6 if number == 27_182 else numbers.random())
    series = thinned("loss", curve)
    points = dict(zip(series.steps, series.values, strict=True))
    assert MOST_POINTS / 2 <= len(points) <= MOST_POINTS
    assert series.count == 100_000
    assert (series.steps[0], series.steps[-1]) == (1, 100_000)
    assert (points[31_415], points[27_182]) == (1e6, -1e6)
    assert series.steps == sorted(series.steps)


def test_a_short_curve_keeps_every_point() -> None:
    """Up to the limit nothing is left out, and values have six digits."""
    curve = Curve()
    for number in range(1, MOST_POINTS + 1):
        curve.add(number, number + 1 / 3)
    series = thinned("loss", curve)
    assert (len(series.steps), series.values[0], series.values[-1]) == (MOST_POINTS, 1.33333, 2000.33)


def test_each_set_has_a_curve(tmp_path: Path) -> None:
    """The losses of named sets lie beside those of held-out documents; one that was no number is NaN, and no point."""
    sets = [
        {"event": "evaluated", "step": at, "sets": {"books": {"loss": loss, "accuracy": 0.5}}}
        for at, loss in ((1, 3.0), (2, None))
    ]
    metrics = read(tmp_path / "metrics.jsonl", lines([step(1), sets[0], step(2), sets[1]]))
    assert (list(metrics.set_losses()), math.isnan(metrics.set_losses()["books"])) == (["books"], True)
    assert [series.name for series in metrics.series() if series.name.startswith("books")] == ["books/loss"]
    metrics = read(tmp_path / "metrics.jsonl", lines([step(1), sets[0], started(0, 1)]))
    assert metrics.set_losses() == {}


def test_each_set_of_questions_has_a_curve_of_right_answers(tmp_path: Path) -> None:
    """Text has none: how often its next token is the likeliest is not what it is evaluated for."""
    of_text, of_questions = {"loss": 3.0, "accuracy": 0.5}, {"loss": 2.0, "accuracy": 0.25, "questions": 8}
    evaluated = {"event": "evaluated", "step": 1, "sets": {"books": of_text, "asked": of_questions}}
    metrics = read(tmp_path / "metrics.jsonl", lines([step(1), evaluated]))
    assert (metrics.set_losses(), metrics.set_answered()) == ({"books": 3.0, "asked": 2.0}, {"asked": 0.25})
    names = {series.name for series in metrics.series()}
    assert {"books/loss", "asked/loss", "asked/accuracy"} <= names
    assert "books/accuracy" not in names


def test_each_set_of_prompts_has_a_curve_of_rewards(tmp_path: Path) -> None:
    """So have those that are held out; neither has a loss."""
    of_prompts = {"reward": 0.5, "prompts": 8, "completionTokens": 3.5, "cutCompletions": 0.0}
    evaluated = {
        "event": "evaluated",
        "step": 1,
        "sets": {"heldOut": of_prompts, "sums": {**of_prompts, "reward": -1.5}},
    }
    metrics = read(tmp_path / "metrics.jsonl", lines([step(1), evaluated]))
    assert metrics.set_rewards() == {"heldOut": 0.5, "sums": -1.5}
    assert metrics.set_losses() == {}
    assert {"heldOutReward", "sums/reward"} <= {series.name for series in metrics.series()}


def test_the_numbers_of_an_own_program(tmp_path: Path) -> None:
    """What it reports is a curve, as many as there is room for; a trainer's other numbers are none."""
    metrics = Metrics(make_program_run(tmp_path / "run", loss=1.0, heldOutLoss=2.0, **{"val/loss": 3.0}) / METRICS_FILE)
    assert (metrics.last("val/loss"), metrics.last("heldOutLoss"), metrics.set_losses()) == (3.0, 2.0, {})
    many = {f"number{count}": 1.0 for count in range(MOST_OTHERS + 1)}
    metrics = Metrics(make_program_run(tmp_path / "many", **many) / METRICS_FILE)
    assert metrics.others == list(many)[:MOST_OTHERS]
    metrics = read(tmp_path / "metrics.jsonl", lines([started(0, 0), {**step(1), "accuracy": 0.5}]))
    assert (metrics.of_program, "accuracy" in metrics.curves) == (False, False)


def test_a_file_that_has_become_shorter_is_read_anew(tmp_path: Path) -> None:
    """A run directory that was put back as it was before: what was read of the longer file counts no more."""
    path = tmp_path / "metrics.jsonl"
    metrics = read(path, lines(METRICS))
    restored = [started(0, 0), *(step(number, 9.0) for number in (1, 2)), saved(2, BEGAN)]
    path.write_text(lines(restored), encoding="utf-8")
    metrics.read()
    with path.open("a", encoding="utf-8") as file:
        file.write(lines([step(3, 8.0)]))
    metrics.read()

    assert (list(metrics.curves["loss"].steps), metrics.last("loss"), metrics.last_step) == ([1, 2, 3], 8.0, 3)
    assert ([event["event"] for event in metrics.events], list(metrics.evaluations)) == (["started", "saved"], [])
