"""The loss curve, as loss.png and in the terminal, against what counting the data's tokens would reach.

Called at the end of a run and by the demo. Reads metrics.jsonl records only.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Records = Sequence[Mapping[str, Any]]


def plot_png(records: Records, floors: Mapping[str, float], path: Path, *, title: str, restarts: Sequence[int] = ()) -> None:
    """Write the curve of `loss` (and `heldOutLoss` where measured) over `step`.

    Args:
        records: step records, in order.
        floors: horizontal lines by name, nats a token, e.g. the data's unigram entropy.
        path: the PNG to write.
        title: above the picture.
        restarts: steps at which the run was resumed.

    """
    import matplotlib  # noqa: PLC0415  half a second that only the end of a run needs

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    axes.plot([r["step"] for r in records], [r["loss"] for r in records], label="training loss", linewidth=1.2)
    held_out = [r for r in records if "heldOutLoss" in r]
    if held_out:
        axes.plot([r["step"] for r in held_out], [r["heldOutLoss"] for r in held_out], "o-", label="held-out loss", markersize=3)
    for (name, value), style in zip(floors.items(), ("--", ":", "-.") * len(floors), strict=False):
        axes.axhline(value, color="gray", linestyle=style, linewidth=1, label=f"{name} {value:.2f}")
    for step in restarts:
        axes.axvline(step, color="tab:red", linewidth=0.8, alpha=0.6, label=f"resumed at step {step}")
    axes.set(xlabel="step", ylabel="loss (nats per token)", title=title)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def plot_text(records: Records, floors: Mapping[str, float], *, width: int = 90, height: int = 18) -> str:
    """The same curve in characters."""
    import plotext  # noqa: PLC0415

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(width, height)
    xs = [r["step"] for r in records]
    plotext.plot(xs, [r["loss"] for r in records], label="training loss")
    for name, value in floors.items():
        plotext.plot([xs[0], xs[-1]], [value, value], label=f"{name} {value:.2f}")
    plotext.xlabel("step")
    plotext.ylabel("nats per token")
    return str(plotext.build())
