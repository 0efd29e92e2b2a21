"""A plan as pictures: memory by kind, bytes on the wire by axis, and what one device of the mesh holds."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.plan.result import Plan
from shardwise.plan.show import KINDS
from shardwise.protocol.text import GIB, size
from shardwise.train.plot import picture

_MOST_DEVICES = 1024
_MOST_LABELS = 32


def draw(plan: Plan, folder: Path) -> list[Path]:
    """Write `memory.png`, `wire.png` and `mesh.png` as far as the plan has the data; make the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, painter, inches, is_known in (
        ("memory.png", _memory, (8, 2.4), plan.memory is not None),
        ("wire.png", _wire, (8, 3.2), bool(plan.wire) and plan.compiled_for == "hardware"),
        ("mesh.png", _mesh, (8, 4.6), plan.devices <= _MOST_DEVICES),
    ):
        if is_known:
            with picture(folder / name, inches, dpi=110) as axes:
                painter(plan, axes)
            drawn.append(folder / name)
    return drawn


def _title(plan: Plan) -> str:
    slices = f"{plan.slices} x " if plan.slices > 1 else ""
    return f"{plan.job} on {slices}{plan.accelerator} {plan.topology}"


def _memory(plan: Plan, axes: Any) -> None:
    assert plan.memory is not None
    left = 0.0
    for kind, (_, colour) in KINDS.items():
        part = getattr(plan.memory, kind) / GIB
        axes.barh(0, part, left=left, color=colour, label=f"{kind} {part:,.2f}")
        left += part
    if plan.limit_bytes is not None:
        axes.axvline(plan.limit_bytes / GIB, color="black", linewidth=1.5)
        axes.annotate("memory", (plan.limit_bytes / GIB, 0.42), xytext=(-4, 0), textcoords="offset points", ha="right")
    axes.set(yticks=[], xlabel="GiB on one device at the peak of a step", title=_title(plan), ylim=(-0.5, 0.55))
    axes.legend(ncol=4, fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.35))


def _wire(plan: Plan, axes: Any) -> None:
    names = [name for name, wire in plan.wire.items() if wire.least]
    beside = dict.fromkeys(names, 0.0)
    for row in plan.collectives:
        if row.axis in beside:
            beside[row.axis] += row.asynchronous_wire_bytes
    at = np.arange(len(names))
    whole = np.array([plan.wire[name].bytes for name in names]) / GIB
    asynchronous = np.array([beside[name] for name in names]) / GIB
    axes.barh(at, asynchronous, color="#66ccee", label="beside computation")
    axes.barh(at, whole - asynchronous, left=asynchronous, color="#ee6677", label="computation waits")
    for place, name in zip(at, names, strict=True):
        least = (plan.wire[name].least or 0.0) / GIB
        axes.plot(
            [least, least], [place - 0.42, place + 0.42], color="black", label="the least" if place == 0 else None
        )
    axes.set(yticks=at, yticklabels=names, xlabel="GiB that one device sends in a step", title=_title(plan))
    axes.invert_yaxis()
    axes.legend(fontsize=8, frameon=False)


def _mesh(plan: Plan, axes: Any) -> None:
    """Draw devices as squares, coloured by their part of the weights, with a line between replicas."""
    replica, data, tensor = (plan.mesh[name] for name in ("replica", "data", "tensor"))
    inner = plan.mesh["dataInner"]
    across = {"context": plan.mesh.get("context", 1), "pipeline": plan.mesh.get("pipeline", 1), "tensor": tensor}
    tensor = math.prod(across.values())  # one beside the other in the picture
    rows = replica * data // inner
    parts = np.tile(np.arange(data * tensor).reshape(data // inner, inner * tensor), (replica, 1))
    axes.pcolormesh(parts, cmap="viridis", edgecolors="white", linewidth=0.6)
    for row in range(1, replica):
        axes.axhline(row * rows // replica, color="black", linewidth=2)
    axes.invert_yaxis()
    for axis, number in ((axes.xaxis, inner * tensor), (axes.yaxis, rows)):
        axis.set_ticks(np.arange(number) + 0.5, labels=np.arange(number))
        axis.set_tick_params(length=0, labelsize=6 if number > _MOST_LABELS // 2 else 8)
        if number > _MOST_LABELS:
            axis.set_ticks([])
    held = f"\na device: 1/{replica * data} of a batch"
    if plan.memory is not None:
        weights, optimizer = size(plan.memory.parameters, 2), size(plan.memory.optimizer, 2)
        held = f"\na colour: 1/{data * tensor} of the weights ({weights}) and of the optimizer ({optimizer}){held}"
    second = f"FSDP's second step over {inner}" if inner > 1 else ""
    split = " x ".join(f"{name} over {ways}" for name, ways in across.items() if ways > 1)
    first = f"FSDP's first step over {data // inner}" if inner > 1 else f"FSDP over {data}"
    axes.set(
        xlabel=" x ".join(filter(None, (second, split))),
        ylabel=f"{replica} replicas x {first}" if replica > 1 else first,
        title=f"{_title(plan)}{held}",
    )
    axes.title.set_fontsize(9)
    axes.set_aspect("equal" if parts.shape[0] < 4 * parts.shape[1] < 16 * parts.shape[0] else "auto")
