"""`shardwise status`: how a run stands, from its directory and its launcher. No JAX, and nothing is changed."""

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from shardwise.cli.arguments import RunDir
from shardwise.cli.extras import trainer_imports
from shardwise.cli.run_files import RunStatus, read_status

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead; null is what is not known.")]
Plot = Annotated[bool, typer.Option("--plot", help="Draw the loss curve too.")]

_COLOURS = {"running": "green", "complete": "green", "failed": "red", "nonfinite": "red", "dead": "red"}
_MEANING = {
    "starting": "on its way to the first step",
    "running": "training",
    "stopped": "saved on request; the same command goes on",
    "complete": "",
    "failed": "the same command goes on from the last checkpoint, once the cause is gone",
    "nonfinite": "the loss or a gradient was not a number",
    "dead": "its process ended without a word; the same command goes on from the last checkpoint",
    "ready": "never started",
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("status", epilog="Example: shardwise status runs/first --plot")(_status)


def _status(directory: RunDir, *, as_json: Json = False, plot: Plot = False) -> None:
    """Show how a run stands: step, loss, speed, checkpoints, time left.

    A run whose process is gone though it never ended is called dead: the same `run` command goes on with it.
    """
    status = read_status(directory)
    if as_json:
        typer.echo(json.dumps(status.as_json(), indent=2))
        return
    console = Console(highlight=False)
    console.print(_table(status))
    if plot and status.records:
        with trainer_imports():
            from shardwise.train.plot import plot_text

            console.print(
                plot_text(status.records, status.summary.get("entropy", {}), width=min(console.width, 100)),
                markup=False,
            )


def _table(status: RunStatus) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _lines(status):
        table.add_row(name, text)
    return table


def _lines(status: RunStatus) -> Iterator[tuple[str, str]]:
    """What a person wants to know, the first things first; text is rich markup."""
    known = status.as_json()
    word, meaning = status.status, _MEANING.get(status.status, "")
    colour = _COLOURS.get(word, "yellow")
    yield "run", f"{escape(str(known['name'] or ''))} in {escape(str(status.directory))}"
    yield "status", f"[{colour}]{escape(word)}[/]{f' ({meaning})' if meaning else ''}"
    if known["error"]:
        yield "error", escape(known["error"])
    yield from _launcher_lines(known)
    yield "step", f"{status.step:,}" + (f" of {status.num_steps:,}" if status.num_steps else "")
    if known["loss"] is not None:
        yield "loss", f"{known['loss']:.4f}"
    if known["tokensPerSecond"] is not None:
        yield "speed", f"{known['tokensPerSecond']:,.0f} tokens/s, MFU {known['mfu']:.1%}"
    if known["etaSeconds"] is not None:
        yield "time left", _clock(known["etaSeconds"])
    yield "checkpoints", escape(_checkpoints(status))
    if known["checkpoint"] and "ageSeconds" in known["checkpoint"]:
        yield "newest saved", f"{_clock(known['checkpoint']['ageSeconds'])} ago"
    if known["failedSaves"]:
        yield "failed saves", escape("{inARow} since then: {reason}".format_map(known["failedSaves"]))
    if known["phases"]:
        yield "seconds", ", ".join(f"{name} {seconds:.1f}" for name, seconds in known["phases"].items())
    for label, key in (("initial digest", "initialDigest"), ("digest", "digest")):
        if known[key]:
            yield label, known[key]


def _launcher_lines(known: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What the launcher knows: of a live run where each host stands, of any run what it has survived."""
    if known["phase"]:
        yield "phase", escape(": ".join(part for part in (known["phase"], known["reason"]) if part))
    for host in known["hosts"]:
        yield f"host {host['host']}", _host(host, slowest=known["slowestHost"])
    if any(known["restarts"].values()):
        yield "restarts", ", ".join(f"{cause} {count}" for cause, count in known["restarts"].items() if count)


def _host(host: Mapping[str, Any], *, slowest: int | None) -> str:
    if host["trainerPid"] is None:
        return "no trainer"
    slow = "  the slowest" if slowest == host["host"] else ""
    return f"{host['phase']}, step {host['step']}, {host['stepSeconds']:.2f} s a step{slow}"


def _checkpoints(status: RunStatus) -> str:
    if status.checkpoints is None:
        return f"in {status.root}, which could not be listed ({status.unlisted})"
    if not status.checkpoints:
        return f"none yet in {status.root}"
    steps = ", ".join(map(str, status.checkpoints))
    return f"step {status.checkpoints[-1]} is the newest of {steps} in {status.root}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
