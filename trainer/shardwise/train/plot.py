"""The loss curve, as loss.png and in the terminal, next to the entropies that counting the data's tokens reaches.

It is drawn from the records of metrics.jsonl alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shardwise.page.curves import Curve, thinned
from shardwise.protocol.evaluated import HELD_OUT, results

Records = Sequence[Mapping[str, Any]]


@contextmanager
def picture(path: Path, size: tuple[float, float], dpi: int) -> Iterator[Any]:
    """Yield the axes of a figure of this size, in inches, and write it as a PNG when the block ends."""
    import matplotlib as mpl  # noqa: PLC0415  half a second that only pictures need

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=size, layout="constrained")
    yield axes
    figure.savefig(path, dpi=dpi)
    plt.close(figure)


def plot_png(
    records: Records,
    floors: Mapping[str, float],
    path: Path,
    *,
    title: str,
    evaluations: Records = (),
    restarts: Sequence[int] = (),
) -> None:
    """Write the curve of `loss`, and of the losses of evaluations, over `step`.

    Args:
        records: step records, in order.
        floors: entropies by name, in nats per token, drawn as lines, e.g. {"unigram": 3.1}.
        path: the PNG to write.
        title: above the picture.
        evaluations: their events; for a step that was repeated after a restart, the last one counts.
        restarts: steps at which the run was resumed.

    """
    sets: dict[str, dict[int, float]] = {}
    for event in evaluations:
        for name, values in results(event).items():
            if "loss" not in values:  # of prompts
                continue
            loss = values["loss"]
            sets.setdefault(name, {})[event["step"]] = float("nan") if loss is None else loss
    resumed = ", ".join(map(str, restarts[:4])) + (" ..." if len(restarts) > 4 else "")
    with picture(path, (8, 4.5), dpi=100) as axes:
        axes.plot([r["step"] for r in records], [r.get("loss") for r in records], label="training loss", linewidth=1.2)
        for name, losses in sets.items():
            what = "held-out loss" if name == HELD_OUT else f"loss on {name}"
            axes.plot(*zip(*sorted(losses.items()), strict=True), "o-", label=what, markersize=3)
        for (name, value), style in zip(floors.items(), ("--", ":", "-.") * len(floors), strict=False):
            axes.axhline(value, color="gray", linestyle=style, linewidth=1, label=f"{name} entropy {value:.2f}")
        for number, step in enumerate(restarts):
            label = f"resumed at step {resumed}" if number == 0 else None
            axes.axvline(step, color="tab:red", linewidth=0.8, alpha=0.6, label=label)
        axes.set(xlabel="step", ylabel="loss (nats per token)" if floors else "loss", title=title)
        axes.legend(frameon=False)


def plot_text(records: Records, floors: Mapping[str, float], *, width: int = 90, height: int = 18) -> str:
    """Return the same curve in characters, without steps that have no loss; words if none has one.

    Of a long run the lowest and the highest losses are drawn, since plotext needs kilobytes for each point. A loss
    without floors is an own program's, of whatever unit.
    """
    import plotext  # noqa: PLC0415

    every = Curve()
    for record in records:
        if record.get("loss") is not None:
            every.add(record["step"], record["loss"])
    if not every.steps:
        return "no step has a loss to draw"
    figure = plotext.figure
    figure.clear()
    figure.theme("colorless")
    figure.plot_size(width, height)
    drawn = thinned("loss", every)
    curve = figure.signal(drawn.steps, drawn.values)
    curve.label("training loss")
    curve.lines()
    figure.draw(curve)
    for name, value in floors.items():
        figure.line(value, label=f"{name} entropy {value:.2f}")
    figure.label("step", "x")
    figure.label("nats per token" if floors else "loss", "y")
    figure.legend(x=drawn.steps[-1], y=max([*drawn.values, *floors.values()]), ha="right", va="top", relative=True)
    return str(plotext.uncolorize(str(figure.build())))
