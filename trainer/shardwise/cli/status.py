"""`shardwise status`: a run as its directory and its leader show it. No JAX, and nothing is changed."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from shardwise.cli.command import Json, trainer_imports
from shardwise.cli.in_cluster import Context, Namespace, job_in_cluster, print_status
from shardwise.cli.run_directory import RunOrJob, shown
from shardwise.cli.run_files import RunOverview, read_overview
from shardwise.cli.screen_lines import plain
from shardwise.launcher.output import describe
from shardwise.page.events import launcher_events
from shardwise.protocol.errors import UsageError
from shardwise.protocol.eta import clock
from shardwise.protocol.evaluated import HELD_OUT, answered, rewarded
from shardwise.protocol.run_status import HostStatus, RunStatus

Plot = Annotated[bool, typer.Option("--plot", help="Draw the loss curve too.")]

# The page of a run has words for the same ones.
STATUSES = {
    "starting": ("yellow", "on its way to the first step"),
    "running": ("green", "training"),
    "recovering": ("yellow", "its processes are started again"),
    "stopped": ("yellow", "{stopped}"),
    "complete": ("green", ""),
    "failed": ("red", "the same command {goes_on}, once the cause is gone"),
    "nonfinite": ("red", "the loss or a gradient was not a number"),
    "dead": ("red", "its process ended without a word; the same command {goes_on}"),
    "ready": ("yellow", "never started"),
}
_MOST_HOSTS, _MOST_CHECKPOINTS = 16, 12


def command(
    directory: RunOrJob,
    *,
    as_json: Json = False,
    plot: Plot = False,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Show how a run stands: step, loss, speed, checkpoints, time left.

    A run whose process is gone though it never ended is called dead: the same `run` command goes on with it.
    """
    if job := job_in_cluster(directory, namespace, context):
        if plot:
            raise UsageError(f"{directory}: a job's status holds no curve; --plot goes with a run directory")
        known = job.status
        if as_json:
            typer.echo(known.model_dump_json(by_alias=True, exclude_none=True, indent=2))
        else:
            print_status(f"{job.name} in namespace {job.namespace}", known, Console(highlight=False))
        return
    run = read_overview(directory, whole=plot)
    if as_json:
        typer.echo(json.dumps(run.as_json(), indent=2))
        return
    console = Console(highlight=False)
    console.print(_table(run))
    if plot:
        with trainer_imports():
            from shardwise.train.plot import plot_text

            entropy = {plain(name): value for name, value in run.summary.get("entropy", {}).items()}
            console.print(plot_text(run.records, entropy, width=min(console.width, 100)), markup=False)


def meaning_of(status: str, *, step: int, saved: Sequence[int] | None) -> tuple[str, str]:
    """Return the colour of a status, and what it means for a run.

    Args:
        status: the run's.
        step: its last one.
        saved: the steps of its checkpoints, ascending; None if they are not known.

    """
    colour, meaning = STATUSES.get(status, ("yellow", ""))
    goes_on = "goes on from the last checkpoint" if saved or saved is None else "begins anew"
    return colour, meaning.format(goes_on=goes_on, stopped=_stopped(step, saved))


def _stopped(step: int, saved: Sequence[int] | None) -> str:
    """Say of a stopped run whether it is saved; a program may have saved by itself, or not at all."""
    if saved is None:
        return "on request; the same command goes on"
    if not saved:
        return "on request; the same command starts it again"
    if saved[-1] >= step:
        return "saved on request; the same command goes on"
    return f"on request; the same command goes on from step {saved[-1]:,}"


def _table(run: RunOverview) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _lines(run):
        # Somebody else may have written the directory. The lines of an error stay lines.
        table.add_row(name, "\n".join(plain(line) for line in text.split("\n")))
    return table


def _lines(run: RunOverview) -> Iterator[tuple[str, str]]:
    """Return what a person wants to know, the first things first; text is rich markup."""
    known = run.as_json()
    yield "run", f"{escape(str(known['name'] or ''))} in {escape(shown(run.directory))}"
    yield "status", _status(run)
    if known["error"]:
        yield "error", escape(known["error"])
    yield from _hosts(run.live)
    if any(known["restarts"].values()):
        yield "restarts", ", ".join(f"{cause} {count}" for cause, count in known["restarts"].items() if count)
        yield from _last_restart(run.directory)
    yield "step", f"{run.step:,}" + (f" of {run.num_steps:,}" if run.num_steps else "")
    if run.records and "loss" in run.records[-1]:
        yield "loss", _loss(known["loss"])
    if known["evaluated"]:
        yield "evaluated", escape(_evaluated(**known["evaluated"]))
        yield from _answered(known["evaluated"]["sets"])
        yield from _rewarded(known["evaluated"]["sets"])
    if known["tokensPerSecond"] is not None:
        mfu = "" if known["mfu"] is None else f", MFU {known['mfu']:.1%}"
        yield "speed", f"{known['tokensPerSecond']:,.0f} tokens/s{mfu}"
    if known["etaSeconds"] is not None:
        yield "time left", clock(known["etaSeconds"])
    yield from _damage(run)
    yield "checkpoints", escape(_checkpoints(run))
    yield from _saves(run.live)
    if known["phases"]:
        yield "seconds", ", ".join(f"{name} {seconds:.1f}" for name, seconds in known["phases"].items())
    for label, key in (("initial digest", "initialDigest"), ("digest", "digest")):
        if known[key]:
            yield label, known[key]


def _status(run: RunOverview) -> str:
    colour, meaning = meaning_of(run.status, step=run.step, saved=run.checkpoints)
    if run.recovery:
        meaning = run.recovery.words(time.time())
    return f"[{colour}]{escape(run.status)}[/]{f' ({escape(meaning)})' if meaning else ''}"


def _evaluated(step: int, sets: Mapping[str, Mapping[str, float | None]]) -> str:
    """Return the losses of the newest evaluation; of a set whose loss was not a number, that it was none."""
    losses = {_called(name): values["loss"] for name, values in sets.items() if "loss" in values}
    words = ", ".join(f"{name} {_loss(loss)}" for name, loss in losses.items())
    return f"at step {step:,}{': loss ' if losses else ''}{words}"


def _answered(sets: Mapping[str, Mapping[str, float | None]]) -> Iterator[tuple[str, str]]:
    for name, (share, count) in answered(sets).items():
        yield "answered right", escape(f"{share:.1%} of {count:,} of {name}")


def _rewarded(sets: Mapping[str, Mapping[str, float | None]]) -> Iterator[tuple[str, str]]:
    for name, (reward, count) in rewarded(sets).items():
        yield "reward", escape(f"{reward:.4f}, the mean of {count:,} prompts of {_called(name)}")


def _called(name: str) -> str:
    return "held-out" if name == HELD_OUT else name


def _loss(value: float | None) -> str:
    return "nan" if value is None else f"{value:.4f}"


def _hosts(live: RunStatus | None) -> Iterator[tuple[str, str]]:
    if live is None:
        return
    yield "phase", escape(": ".join(part for part in (live.phase, live.reason) if part))
    # Of many those that say most: the slow one first, then those that are furthest behind.
    first = sorted(live.hosts, key=lambda host: (host.host != live.slowest_host, host.step))[:_MOST_HOSTS]
    for host in sorted(first, key=lambda host: host.host):
        yield f"host {host.host}", _host(host, slowest=live.slowest_host)
    if left := len(live.hosts) - len(first):
        yield "other hosts", f"{left:,}, none of them slower or further behind"


def _last_restart(directory: Path) -> Iterator[tuple[str, str]]:
    """Yield why the processes were last started again, and how it went on, in the words of `shardwise run`."""
    newest: list[str] = []
    for event in launcher_events(directory):
        if event["event"] == "restarting":
            newest = []
        if event["event"] in ("restarting", "running") and (text := describe(event)):
            newest.append(text)
    if newest:
        yield "last restart", escape("; ".join(newest))


def _damage(run: RunOverview) -> Iterator[tuple[str, str]]:
    if run.damage:
        yield "damaged", escape(run.damage)


def _saves(live: RunStatus | None) -> Iterator[tuple[str, str]]:
    if live and live.checkpoint and live.checkpoint.age_seconds is not None:
        yield "newest saved", f"{clock(live.checkpoint.age_seconds)} ago"
    if live and live.local_step is not None:
        yield "on the hosts", f"the local checkpoint of step {live.local_step}"
    if live and live.failed_saves:
        yield "failed saves", escape(f"{live.failed_saves.in_a_row} since then: {live.failed_saves.reason}")


def _host(host: HostStatus, *, slowest: int | None) -> str:
    if host.trainer_pid is None:
        return "no trainer"
    if host.doing:
        return escape(f"{host.phase}: {host.doing}")
    slow = "  the slowest" if slowest == host.host else ""
    return f"{host.phase}, step {host.step}, {host.step_seconds:.2f} s a step{slow}"


def _checkpoints(run: RunOverview) -> str:
    if run.checkpoints is None:
        return f"in {run.root}, which could not be listed ({run.unlisted})"
    if not run.checkpoints:
        return f"none yet in {run.root}"
    if len(run.checkpoints) == 1:
        return f"step {run.checkpoints[0]} in {run.root}"
    earlier = len(run.checkpoints) - _MOST_CHECKPOINTS
    newest = ", ".join(map(str, run.checkpoints[-_MOST_CHECKPOINTS:]))
    steps = f"{earlier:,} earlier ones, {newest}" if earlier > 0 else newest
    return f"step {run.checkpoints[-1]} is the newest of {steps} in {run.root}"
