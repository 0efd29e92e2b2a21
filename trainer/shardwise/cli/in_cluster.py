"""Jobs in a cluster, for the commands that take a run directory or `tj/NAME`, as kubectl names a training job."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from shardwise.cli.screen_lines import plain
from shardwise.protocol.errors import UsageError
from shardwise.protocol.job_status import JobStatus

if TYPE_CHECKING:
    from shardwise.client import Cluster, ClusterJob

Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="The job's namespace in the cluster; else the context's.", metavar="NAME"),
]
Context = Annotated[
    str | None, typer.Option("--context", help="Which context of the kubeconfig; else the current one.", metavar="NAME")
]
_COLOURS = {"Complete": "green", "Running": "green", "Failed": "red"}
_KIND = "tj"
_FEWER_SLICES = "FewerSlices"  # the condition of a job that goes on without some


def job_in_cluster(target: Path, namespace: str | None, context: str | None) -> "ClusterJob | None":
    """Return the job that `tj/NAME` names; None for a run directory, which `./tj/NAME` is too."""
    if len(target.parts) != 2 or target.parts[0] != _KIND:
        if namespace or context:
            raise UsageError(f"{target}: --namespace and --context go with a job in a cluster, written tj/NAME")
        return None
    return cluster(namespace, context).job(target.parts[1])


def cluster(namespace: str | None, context: str | None) -> "Cluster":
    """Return the cluster of the kubeconfig; UsageError if the extra is missing."""
    with _cluster_imports():
        from shardwise.client import Cluster
    return Cluster(namespace=namespace, context=context)


def print_status(name: str, status: JobStatus, console: Console) -> None:
    """Print how a job stands, the first things first; what the cluster does not know is left out."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in _lines(name, status):
        table.add_row(label, readable(text))
    console.print(table)


def readable(text: str) -> str:
    """Return what a job's hosts have said without anything that would steer the terminal; its lines stay lines."""
    return "\n".join(plain(line) for line in text.split("\n"))


def one_line(status: JobStatus) -> str:
    """Return phase, reason, step and figures in one line."""
    progress = status.progress
    reason = f" ({status.reason})" if status.reason else ""
    step = f"  step {_step(status)}" if progress and progress.step is not None else ""
    loss = f"  loss {progress.loss}" if progress and progress.loss else ""
    left = f"  {progress.eta} left" if progress and progress.eta else ""
    return plain(f"{status.phase or 'Pending'}{reason}{step}{loss}{left}")


def _lines(name: str, status: JobStatus) -> Iterator[tuple[str, str]]:
    phase = status.phase or "Pending"
    yield "job", escape(name)
    why = ": ".join(part for part in (status.reason, status.message) if part)
    yield "phase", f"[{_COLOURS.get(phase, 'yellow')}]{phase}[/]" + (f" ({escape(why)})" if why else "")
    yield from _hosts(status)
    if status.restart_count:
        yield "restarts", ", ".join(f"{escape(cause)} {count}" for cause, count in status.restarts.items() if count)
    progress = status.progress
    if progress and progress.step is not None:
        yield "step", _step(status)
        figures = {
            "loss": progress.loss,
            "held-out loss": progress.held_out_loss,
            "tokens/s": progress.tokens_per_second,
            "MFU": progress.mfu,
        }
        for label, text in figures.items():
            if text:
                yield label, escape(text)
        if progress.eta:
            yield "time left", escape(progress.eta)
    yield from _saves(status)
    for label, text in (("goodput", status.goodput), ("digest", status.digest)):
        if text:
            yield label, escape(text)


def _hosts(status: JobStatus) -> Iterator[tuple[str, str]]:
    if status.hosts:
        yield "hosts", f"{status.hosts.ready} of {status.hosts.of} have joined"
    for condition in status.conditions:
        if condition.type == _FEWER_SLICES and condition.status == "True":
            yield "slices", escape(condition.message)


def _saves(status: JobStatus) -> Iterator[tuple[str, str]]:
    if status.checkpoint:
        yield "checkpoint", f"step {status.checkpoint.step:,}"
    if status.failed_saves:
        yield "failed saves", escape(f"{status.failed_saves.in_a_row} since then: {status.failed_saves.reason}")


def _step(status: JobStatus) -> str:
    progress = status.progress
    assert progress is not None
    return f"{progress.step:,}" + (f" of {progress.of:,}" if progress.of else "")


@contextmanager
def _cluster_imports() -> Iterator[None]:
    """Import the client inside this block: if its library is not installed, raise an error that says so."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "kubernetes":
            raise
        raise UsageError(
            'jobs in a cluster need the Kubernetes client, which is not installed: pip install "shardwise[cluster]"'
        ) from error
