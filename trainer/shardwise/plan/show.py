"""A plan for people, in the terminal; `pictures` draws the same."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardwise.plan.result import Moved, Plan
from shardwise.plan.search import Found

_BAR = 48
_MOST_ROWS = 12
_MIB, _GIB = 1 << 20, 1 << 30
_KINDS = {
    "parameters": "cyan",
    "optimizer": "blue",
    "gradients": "magenta",
    "activations": "yellow",
    "temporaries": "red",
    "batch": "green",
    "program": "white",
}


def show(plan: Plan, console: Console) -> None:
    """Print a plan."""
    console.print(_head(plan))
    console.print(_verdict(plan))
    if plan.change:
        console.print(f"  with [bold]{plan.change}[/] it does")
    if plan.memory is not None:
        console.print(_bar(plan))
        console.print(_memory(plan))
    if plan.compiled_for == "hardware" and plan.collectives:
        console.print(_wire(plan))
        console.print(_collectives(plan))
    for line in _lines(plan):
        console.print(line)
    for note in plan.notes:
        console.print(f"[dim]note: {note}[/]", soft_wrap=True)


def show_search(found: Sequence[Found], console: Console) -> None:
    """Print the candidates of a search, best first, and why the best is best."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="Layouts, best first", title_justify="left")
    for name in ("layout", "fits", "GiB", "least step", "MFU at most", "binds"):
        table.add_column(name, justify="left" if name in ("layout", "fits", "binds") else "right")
    for one in found:
        bound = one.plan.bound
        table.add_row(
            one.choice.words + (" (the job's own)" if one.is_own else ""),
            "yes" if one.plan.fits else "no",
            f"{one.plan.needed_bytes / _GIB:,.1f}",
            f"{bound.seconds * 1000:,.0f} ms" if bound else "",
            f"{bound.mfu:.1%}" if bound else "",
            bound.binds if bound else "",
        )
    console.print(table)
    console.print(why(found))


def why(found: Sequence[Found]) -> str:
    """Return why the best layout of a search is best, beside the job's own."""
    best, own = found[0], next(one for one in found if one.is_own)
    if best.is_own or best.plan.bound is None:
        return "The job's own layout is the best of them."
    if own.plan.bound is None:
        return f"The job does not fit as it is; {best.choice.words} does."
    gains = _gains(best.plan, own.plan)
    share = 1 - best.plan.bound.seconds / own.plan.bound.seconds
    return f"{best.choice.words}: the least step is {share:.0%} shorter than the job's own, by {' and '.join(gains)}."


def _gains(best: Plan, own: Plan) -> Iterator[str]:
    assert best.bound is not None
    assert own.bound is not None
    if best.bound.compute_seconds < own.bound.compute_seconds * 0.99:
        seconds = best.bound.compute_seconds, own.bound.compute_seconds
        yield f"less arithmetic ({seconds[0] * 1000:,.0f} for {seconds[1] * 1000:,.0f} ms)"
    waits = sum(best.bound.synchronous_seconds.values()), sum(own.bound.synchronous_seconds.values())
    if waits[0] < waits[1] * 0.99:
        yield f"less waiting for other devices ({waits[0] * 1000:,.0f} for {waits[1] * 1000:,.0f} ms)"
    beside = sum(best.bound.asynchronous_seconds.values()), sum(own.bound.asynchronous_seconds.values())
    if beside[0] < beside[1] * 0.99:
        yield f"less that moves beside it ({beside[0] * 1000:,.0f} for {beside[1] * 1000:,.0f} ms)"


def _head(plan: Plan) -> Table:
    table = Table.grid(padding=(0, 2))
    slices = f"{plan.slices} slices of " if plan.slices > 1 else ""
    inner = plan.mesh["dataInner"]
    steps = f" ({plan.mesh['data'] // inner} x {inner})" if inner > 1 else ""
    table.add_row("job", plan.job)
    table.add_row("devices", f"{plan.devices} ({slices}{plan.accelerator} {plan.topology})")
    table.add_row(
        "mesh", f"replica {plan.mesh['replica']} x data {plan.mesh['data']}{steps} x tensor {plan.mesh['tensor']}"
    )
    table.add_row("step", f"attention {plan.attention}, remat {plan.remat}, {plan.microbatches} microbatches")
    if plan.xla_flags:
        table.add_row("XLA", "\n".join(plan.xla_flags))
    return table


def _verdict(plan: Plan) -> str:
    needed = size_of(plan.needed_bytes)
    if plan.limit_bytes is None:
        process = "the class does not say how much there is"
        if plan.resident_bytes is not None:
            process = f"the process of each host needs {size_of(plan.resident_bytes)}"
        return f"\n[bold]needs {needed} a device[/]; {process}"
    limit = size_of(plan.limit_bytes)
    if plan.fits:
        return f"\n[bold green]fits[/]: {needed} of {limit} a device ({plan.needed_bytes / plan.limit_bytes:.0%})"
    missing = size_of(plan.needed_bytes - plan.limit_bytes)
    return f"\n[bold red]does not fit[/]: needs {needed} a device, {missing} more than the {limit} that there are"


def _bar(plan: Plan) -> Text:
    """Return the kinds of memory side by side, against what the device has."""
    assert plan.memory is not None
    whole = max(plan.memory.total, plan.limit_bytes or 0)
    bar = Text("  ")
    for kind, colour in _KINDS.items():
        bar.append("█" * round(_BAR * getattr(plan.memory, kind) / whole), style=colour)
    return bar.append("░" * max(0, _BAR + 2 - len(bar)), style="dim")


def _memory(plan: Plan) -> Table:
    assert plan.memory is not None
    table = Table.grid(padding=(0, 2))
    for kind, colour in _KINDS.items():
        table.add_row(Text("  ■", style=colour), kind, Text(size_of(getattr(plan.memory, kind)), justify="right"))
    return table


def _wire(plan: Plan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="On the wire, a device and step", title_justify="left")
    for name in ("axis", "moved", "least", "ratio"):
        table.add_column(name, justify="left" if name == "axis" else "right")
    for axis, wire in plan.wire.items():
        least = "" if wire.least is None else size_of(wire.least)
        ratio = "" if wire.ratio is None else f"{wire.ratio:.3f}"
        table.add_row(axis, size_of(wire.bytes), least, ratio)
    return table


def _collectives(plan: Plan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="Collectives", title_justify="left")
    for name in ("kind", "over", "link", "format", "times", "moved", "asynchronous"):
        table.add_column(name, justify="right" if name in ("times", "moved", "asynchronous") else "left")
    for row in plan.collectives[:_MOST_ROWS]:
        moved, over = size_of(row.wire_bytes), " + ".join(row.axes)
        table.add_row(row.kind, over, row.link, row.dtype, f"{row.count:,}", moved, _beside(row))
    rest = plan.collectives[_MOST_ROWS:]
    if rest:
        moved = size_of(sum(row.wire_bytes for row in rest))
        table.add_row("others", "", "", "", f"{sum(row.count for row in rest):,}", moved, "")
    return table


def size_of(number: float) -> str:
    """Return bytes for people: GiB from a tenth of one on, else MiB."""
    return f"{number / _GIB:,.2f} GiB" if number >= _GIB / 10 else f"{number / _MIB:,.2f} MiB"


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
    if plan.bound is not None:
        yield (
            f"least time of a step: [bold]{plan.bound.seconds * 1000:,.0f} ms[/], so an MFU of at most "
            f"[bold]{plan.bound.mfu:.1%}[/]; what binds is {plan.bound.binds}"
        )
        yield f"  {_terms(plan)}"
    if plan.compile_seconds:
        yield f"compiled in {plan.compile_seconds:.0f} s"


def _terms(plan: Plan) -> str:
    assert plan.bound is not None
    terms = {"arithmetic": plan.bound.compute_seconds, "memory": plan.bound.memory_seconds}
    for link, seconds in plan.bound.asynchronous_seconds.items():
        terms[f"{link} beside"] = seconds
    for link, seconds in plan.bound.synchronous_seconds.items():
        terms[f"{link} alone"] = seconds
    return ", ".join(f"{name} {seconds * 1000:,.1f} ms" for name, seconds in terms.items())
