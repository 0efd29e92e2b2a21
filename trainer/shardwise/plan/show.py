"""A plan for people, in the terminal; `pictures` draws the same."""

from collections.abc import Container, Iterable, Iterator

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from shardwise.plan.result import Completions, HostMemory, Moved, Plan
from shardwise.protocol.text import MIB, size
from shardwise.train.mesh import DATA
from shardwise.train.work import Work

_BAR = 48
_MOST_ROWS = 12
KINDS = {
    "parameters": ("cyan", "#4477aa"),
    "optimizer": ("blue", "#66ccee"),
    "gradients": ("magenta", "#aa3377"),
    "activations": ("yellow", "#ccbb44"),
    "temporaries": ("red", "#ee6677"),
    "batch": ("green", "#228833"),
    "program": ("white", "#bbbbbb"),
}
"""The kinds of memory, with their colours in the terminal and in a picture."""


def show(plan: Plan, console: Console, *, weights: bool = False) -> None:
    """Print a plan, with a row for each of its weights if they are asked for."""
    console.print(_head(plan))
    console.print(_verdict(plan))
    if plan.change:
        console.print(f"  with [bold]{escape(plan.change)}[/] it does")
    if plan.memory is not None:
        console.print(_bar(plan))
        console.print(_memory(plan))
    if weights:
        console.print(_weights(plan))
    if plan.compiled_for == "hardware" and plan.collectives:
        console.print(_wire(plan))
        console.print(_collectives(plan))
    for line in _lines(plan):
        console.print(line)
    for note in plan.notes:
        console.print(Text(f"note: {note}", style="dim"), soft_wrap=True)


def table_of(title: str, columns: Iterable[str], left: Container[str]) -> Table:
    """Return a table of numbers, but for the columns on the left."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right")
    return table


def _head(plan: Plan) -> Table:
    table = Table.grid(padding=(0, 2))
    slices = f"{plan.slices} slices of " if plan.slices > 1 else ""
    inner = plan.mesh["dataInner"]
    experts = ", experts over the last" if "expert" in plan.mesh else ""
    steps = f" ({plan.mesh['data'] // inner} x {inner}{experts})" if inner > 1 else ""
    table.add_row("job", plan.job)
    table.add_row("devices", f"{plan.devices} ({slices}{plan.accelerator} {plan.topology})")
    more = "".join(f" x {name} {plan.mesh[name]}" for name in ("context", "pipeline") if name in plan.mesh)
    table.add_row(
        "mesh",
        f"replica {plan.mesh['replica']} x data {plan.mesh['data']}{steps}{more} x tensor {plan.mesh['tensor']}",
    )
    table.add_row("step", f"attention {plan.attention}, remat {plan.remat}, microbatches {plan.microbatches}")
    if plan.xla_flags:
        table.add_row("XLA", Text("\n".join(plan.xla_flags)))
    return table


def _verdict(plan: Plan) -> str:
    needed = size(plan.needed_bytes, 2)
    if plan.limit_bytes is None:
        process = "the class does not say how much there is"
        if plan.resident_bytes is not None:
            process = f"the process of each host needs {size(plan.resident_bytes, 2)}"
        return f"\n[bold]needs {needed} a device[/]; {process}"
    limit = size(plan.limit_bytes, 2)
    if plan.fits:
        return f"\n[bold green]fits[/]: {needed} of {limit} a device ({plan.needed_bytes / plan.limit_bytes:.0%})"
    missing = plan.needed_bytes - plan.limit_bytes
    needs = "needs" if plan.refused in (None, Work.STEP) else f"{plan.refused} needs"
    if plan.refusal and missing < MIB:  # the compiler rounds what it says
        return (
            f"\n[bold red]does not fit[/]: {needs} {needed} of {limit} a device, and the compiler finds no room for it"
        )
    more = size(missing, 2)
    return f"\n[bold red]does not fit[/]: {needs} {needed} a device, {more} more than the {limit} that there are"


def _bar(plan: Plan) -> Text:
    """Return the kinds of memory side by side, against what the device has."""
    assert plan.memory is not None
    whole = max(plan.memory.total, plan.limit_bytes or 0)
    bar = Text("  ")
    for kind, (colour, _) in KINDS.items():
        bar.append("█" * round(_BAR * getattr(plan.memory, kind) / whole), style=colour)
    return bar.append("░" * max(0, _BAR + 2 - len(bar)), style="dim")


def _memory(plan: Plan) -> Table:
    assert plan.memory is not None
    table = Table.grid(padding=(0, 2))
    for kind, (colour, _) in KINDS.items():
        table.add_row(Text("  ■", style=colour), kind, Text(size(getattr(plan.memory, kind), 2), justify="right"))
    return table


def _weights(plan: Plan) -> Table:
    left = ("weight", "axes / what splits them")
    table = table_of("Weights", (*left, "a device's part", "bytes of it"), left)
    for row in plan.weights:
        splits = {axis: f" / {by}" for axis, by in row.split.items()}
        words = ", ".join(f"{axis} {length}{splits.get(axis, '')}" for axis, length in row.axes.items())
        table.add_row(row.name, words, " x ".join(map(str, row.part)), f"{row.part_bytes:,}")
    return table


def _wire(plan: Plan) -> Table:
    table = table_of("On the wire, a device and step", ("axis", "moved", "least", "ratio"), left=("axis",))
    for axis, wire in plan.wire.items():
        least = "" if wire.least is None else size(wire.least, 2)
        ratio = "" if wire.ratio is None else f"{wire.ratio:.3f}"
        table.add_row(axis, size(wire.bytes, 2), least, ratio)
    return table


def _collectives(plan: Plan) -> Table:
    left = ("kind", "over", "link", "format")
    table = table_of("Collectives", (*left, "times", "moved", "asynchronous"), left)
    for row in plan.collectives[:_MOST_ROWS]:
        moved, over = size(row.wire_bytes, 2), _over(row, plan.mesh["dataInner"])
        table.add_row(row.kind, over, row.link, row.dtype, f"{row.count:,}", moved, _beside(row))
    rest = plan.collectives[_MOST_ROWS:]
    if rest:
        moved = size(sum(row.wire_bytes for row in rest), 2)
        table.add_row("others", "", "", "", f"{sum(row.count for row in rest):,}", moved, "")
    return table


def _over(row: Moved, inner: int) -> str:
    """Return the axes of a row as a job file calls them; `data` has two steps if there is an inner one."""
    whole = inner == 1 or set(DATA) <= set(row.axes)
    words = dict.fromkeys(DATA, "data") if whole else dict(zip(DATA, ("data / dataInner", "dataInner"), strict=True))
    return " + ".join(dict.fromkeys(words.get(axis, axis) for axis in row.axes))


def _beside(row: Moved) -> str:
    return "all" if row.asynchronous == row.count else f"{row.asynchronous:,} of {row.count:,}"


def _lines(plan: Plan) -> Iterator[str]:
    if plan.synchronous_gathers and plan.resident_bytes is None:
        yield f"[yellow]{plan.synchronous_gathers:,} gathers of weights do not run beside computation[/]"
    if plan.rematerialised:
        yield (
            f"[yellow]XLA computes {plan.rematerialised:,} values again of its own accord, because memory is short: "
            "more microbatches or remat full cost less[/]"
        )
    if plan.flops is not None:
        ratio = plan.flops.program / plan.flops.model
        yield f"arithmetic: {plan.flops.program / 1e12:,.3g} TFLOP a step, {ratio:.2f} x the model's formula"
    if plan.bubble is not None:
        yield (
            f"bubble: stages of the pipeline idle {plan.bubble.idle_share:.1%} of {plan.bubble.ticks} ticks, "
            "which the arithmetic includes"
        )
    if plan.bound is not None:
        yield (
            f"least time of a step: [bold]{plan.bound.seconds * 1000:,.0f} ms[/], so an MFU of at most "
            f"[bold]{plan.bound.mfu:.1%}[/]; what binds is {plan.bound.binds}"
        )
        yield f"  {_terms(plan)}"
    if plan.completions:
        yield f"completions before each step: {_completed(plan.completions)}"
    if plan.host_memory:
        yield f"in the memory of each host: {_on_host(plan.host_memory)}"
    if plan.local_checkpoint_bytes:
        yield f"local checkpoints: {size(plan.local_checkpoint_bytes, 2)} of each host's memory at most"
    if plan.compile_seconds:
        yield f"compiled in {plan.compile_seconds:.0f} s"


def _completed(made: Completions) -> str:
    what = "weights, gathered block by block for want of memory," if made.gathers else "weights"
    time = "" if made.seconds is None else f"; at least {made.seconds:,.1f} s if each has maxTokens, beside the step's"
    return (
        f"{made.rows:,} at once, with {size(made.weights, 2)} of {what} and {size(made.caches, 2)} of caches a device, "
        f"{size(made.total, 2)} with the state and all programs{time}"
    )


def _on_host(held: HostMemory) -> str:
    parts = {"state": held.state, "activations": held.activations}
    words = " and ".join(f"{size(there, 2)} of {name}" for name, there in parts.items() if there)
    return f"{words}; {size(held.moved, 2)} a device and step move to it and back, which the least time leaves out"


def _terms(plan: Plan) -> str:
    assert plan.bound is not None
    terms = {
        "arithmetic": plan.bound.compute_seconds,
        "memory": plan.bound.memory_seconds,
        **{f"{link} beside": seconds for link, seconds in plan.bound.asynchronous_seconds.items()},
        **{f"{link} alone": seconds for link, seconds in plan.bound.synchronous_seconds.items()},
    }
    return ", ".join(f"{name} {seconds * 1000:,.1f} ms" for name, seconds in terms.items())
