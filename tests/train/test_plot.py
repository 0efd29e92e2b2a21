"""The plot says what the run's metrics say: curve, evaluations, floors and restarts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotext
import pytest

from shardwise.page.curves import MOST_POINTS
from shardwise.train.plot import Records, plot_png, plot_text

RECORDS = [{"step": step, "loss": 4 / step} for step in range(1, 6)]
FLOORS = {"unigram": 3.0, "bigram": 2.0}


def test_png(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One curve for training, one for evaluations (the last of equal steps), a line for each floor and restart."""
    from matplotlib import pyplot as plt  # noqa: PLC0415  half a second that other tests need not pay

    monkeypatch.setattr(plt, "close", lambda _figure: None)
    evaluations = [{"step": 4, "heldOutLoss": 3.0}, {"step": 2, "heldOutLoss": 2.5}, {"step": 4, "heldOutLoss": 1.5}]

    plot_png(RECORDS, FLOORS, tmp_path / "loss.png", title="a run", evaluations=evaluations, restarts=[2, 4])

    lines = {line.get_label(): line.get_xydata().tolist() for line in plt.gca().get_lines()}  # type: ignore[union-attr]
    monkeypatch.undo()
    plt.close()
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert lines["training loss"] == [[record["step"], record["loss"]] for record in RECORDS]
    assert lines["held-out loss"] == [[2, 2.5], [4, 1.5]]
    assert {"unigram entropy 3.00", "bigram entropy 2.00", "resumed at step 2, 4"} <= lines.keys()
    assert sum(xs[0][0] == xs[1][0] for xs in lines.values()) == 2


def test_text() -> None:
    """In the terminal the floors are named with their values, and no line is wider than asked."""
    drawn = plot_text(RECORDS, FLOORS, width=70, height=15)

    assert "unigram entropy 3.00" in drawn
    assert "bigram entropy 2.00" in drawn
    assert "nats per token" in drawn
    assert max(map(len, drawn.splitlines())) <= 70


def test_text_of_an_own_program() -> None:
    """A loss of which no entropy is known has no unit."""
    assert "nats" not in plot_text(RECORDS, {}, width=70, height=15)


def test_text_of_steps_without_a_loss() -> None:
    """A step whose loss is not reported, or was not a number, is left out; where all are, that is said."""
    without: Records = [{"step": 6}, {"step": 7, "loss": None}]
    assert plot_text([*RECORDS, *without], FLOORS, width=70, height=15) == plot_text(
        RECORDS, FLOORS, width=70, height=15
    )
    assert "no step has a loss" in plot_text(without, FLOORS, width=70, height=15)


def test_text_of_a_run_of_weeks(monkeypatch: pytest.MonkeyPatch) -> None:
    """plotext, which takes twelve kilobytes for each point, gets few of a long curve; a spike of one step is in it."""
    given: list[Sequence[float]] = []
    signal = plotext.figure.signal

    def noting(steps: Sequence[float], losses: Sequence[float]) -> Any:
        given.append(losses)
        return signal(steps, losses)

    monkeypatch.setattr(plotext.figure, "signal", noting)
    losses = [2.0 + step % 2 for step in range(20_000)]
    losses[7_777] = 9.0
    records: Records = [{"step": step, "loss": loss} for step, loss in enumerate(losses, 1)]

    assert "9.0" in plot_text(records, {}, width=70, height=15)

    (drawn,) = given
    assert len(drawn) <= MOST_POINTS
    assert max(drawn) == 9.0
