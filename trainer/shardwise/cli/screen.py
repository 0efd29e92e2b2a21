"""One screen of a run for `shardwise top`: what its page says, in as many lines and columns as a terminal has."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shardwise.cli.command import trainer_imports
from shardwise.cli.screen_lines import facts, notice_line, plain
from shardwise.cli.status import meaning_of
from shardwise.page.document import PageDocument
from shardwise.protocol.eta import clock
from shardwise.protocol.run_status import WELL_SPENT, HostStatus, RunStatus

_CURVE_LINES = 12
_MOST_NOTICES = 4
_FIXED_LINES = 12
"""Lines that every screen may have beside the curve, the hosts, the notices and what is said in one line each."""
_HOST_LINES = 5
"""Of a small terminal: two hosts, with the head of their table and the count of the others, and an empty line."""
_COLOURS = ("green", "cyan", "yellow", "magenta", "blue", "red")


class Size(NamedTuple):
    """Of a terminal."""

    columns: int
    lines: int


def screen(document: PageDocument, live: RunStatus | None, size: Size) -> RenderableType:
    """Return a run as one screen: figures, curve, goodput, checkpoints, mesh, restarts, hosts, what happened last.

    Args:
        document: the run's page.
        live: what its leader says, None without one.
        size: of the terminal. The curve is left out where it is too small for it; of more hosts than there is room for
            the slow one and those that are behind are shown.

    """
    notices = [notice_line(one) for one in document.notices[-_MOST_NOTICES:]]
    room = size.lines - _FIXED_LINES - len(notices)
    told = facts(document, room - _HOST_LINES)
    room -= len(told)
    curve = _curve(document, size.columns) if room >= 2 * _CURVE_LINES else None
    hosts = _hosts(live, room - (_CURVE_LINES if curve else 0)) if live and live.hosts else None
    parts: list[RenderableType | None] = [_head(document), _progress(document), _figures(document), curve]
    parts += [_goodput(document, size.columns), *told, hosts, *notices]
    return Group(*(part for part in parts if part is not None))


def _head(document: PageDocument) -> Text:
    saved = [save.step for save in document.saves if save.kept is not False]
    colour, meaning = meaning_of(document.status, step=document.step, saved=saved)
    text = Text.assemble(
        (plain(document.name), "bold"), "  ", (plain(document.status), colour), no_wrap=True, overflow="ellipsis"
    )
    phase = None if document.phase == document.status else document.phase
    what = ": ".join(part for part in (phase or meaning, document.reason or document.error) if part)
    return text.append(f" ({plain(what)})" if what else "").append(f"  {plain(document.directory)}", "dim")


def _progress(document: PageDocument) -> RenderableType:
    of = f" of {document.num_steps:,}" if document.num_steps else ""
    left = f", {clock(document.eta_seconds)} left" if document.eta_seconds is not None else ""
    row = Table.grid(expand=True, padding=(0, 2))
    row.add_column(no_wrap=True)
    row.add_column(ratio=1)
    row.add_row(f"step {document.step:,}{of}{left}", ProgressBar(document.num_steps or 1, document.step))
    return row


def _figures(document: PageDocument) -> Text:
    """Return the figures that are known, in one line if there is room."""
    restarts = ", ".join(f"{plain(cause)} {count}" for cause, count in document.restarts.items() if count)
    saved = [save.step for save in document.saves if save.kept is not False]
    known = {
        "loss": _figure(document.loss, "{:.4f}"),
        "held-out loss": _figure(document.held_out_loss, "{:.4f}"),
        "tokens/s": _figure(document.tokens_per_second, "{:,.0f}"),
        "MFU": _figure(document.mfu, "{:.1%}"),
        "saved at step": f"{saved[-1]:,}" if saved else "",
        "attempts": f"{document.attempts_made}" if document.attempts_made > 1 else "",
        "restarts": restarts,
    }
    pairs = [((f"{name} ", "dim"), f"{text}   ") for name, text in known.items() if text]
    return Text.assemble(*(part for pair in pairs for part in pair))


def _figure(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _curve(document: PageDocument, columns: int) -> Text | None:
    """Return the loss over the steps; None before the second step."""
    losses = next((series for series in document.series if series.name == "loss"), None)
    if losses is None or len(losses.steps) < 2:
        return None
    with trainer_imports():
        from shardwise.train.plot import plot_text
    records = [{"step": step, "loss": loss} for step, loss in zip(losses.steps, losses.values, strict=True)]
    return Text(plot_text(records, document.entropy, width=columns, height=_CURVE_LINES).rstrip("\n"))


def _goodput(document: PageDocument, columns: int) -> RenderableType | None:
    """Return where the wall time went, as a bar with its legend; steps that counted come first."""
    total = sum(document.goodput.values())
    if not total:
        return None
    ordered = sorted(document.goodput.items(), key=lambda item: (item[0] != WELL_SPENT, -item[1]))
    bar, legend = Text(no_wrap=True, overflow="crop"), Text()
    for at, (name, seconds) in enumerate(ordered):
        colour = _COLOURS[min(at, len(_COLOURS) - 1)]
        bar.append("█" * round(columns * seconds / total), colour)
        if seconds:
            legend.append("■ ", colour).append(f"{plain(name)} {seconds / total:.0%}   ")
    return Group(bar, legend)


def _hosts(live: RunStatus, lines: int) -> Table:
    """Return a row for each host that there is room for: the slow one first, then those that are furthest behind."""
    shown = sorted(live.hosts, key=lambda host: (host.host != live.slowest_host, host.step, host.host))
    room = max(1, lines - 2)  # beside the header, and the line that counts the others
    shown, left_out = shown[:room], len(shown) - room
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
    for name in ("host", "phase", "step", "s a step", "own work, ms", "last sign, s"):
        table.add_column(name, justify="left" if name in ("host", "phase") else "right")
    for host in sorted(shown, key=lambda host: host.host):
        table.add_row(*_cells(host), style="yellow" if host.host == live.slowest_host else None)
    if left_out > 0:
        table.add_row("", f"and {left_out:,} more hosts", style="dim")
    return table


def _cells(host: HostStatus) -> Sequence[str]:
    if host.trainer_pid is None:
        return str(host.host), "no trainer", "", "", "", ""
    own = "" if host.own_seconds is None else _milliseconds(host.own_seconds)
    return str(host.host), str(host.phase), f"{host.step:,}", f"{host.step_seconds:.2f}", own, f"{host.age_seconds:.1f}"


def _milliseconds(seconds: float) -> str:
    """Return a short time with as many digits as tell two hosts apart: a small model's own work takes microseconds."""
    milliseconds = 1000 * seconds
    return f"{milliseconds:.1f}" if milliseconds >= 1 else f"{milliseconds:.3f}"
