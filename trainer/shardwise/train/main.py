"""One process of a run, from its command line to its exit code: what the launcher and `shardwise run` start.

`run` is called in a process whose environment already says which devices JAX sees (`shardwise.job.environment`). It
holds the run directory, starts, loops, and writes the summary, whatever the end.
"""

import errno
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import jax
import psutil
from rich.console import Console

from shardwise.job.contract import ExitCode, progress_name
from shardwise.job.errors import OutOfMemoryError, RunDirectoryError, ShardwiseError
from shardwise.job.load import dump
from shardwise.job.spec import TrainingJob
from shardwise.train.checkpoint import CheckpointWriter, SaveTicket
from shardwise.train.control import Controls, StoppedError
from shardwise.train.flops import flops_per_token, measured_peak_flops
from shardwise.train.loop import Loop, Outcome
from shardwise.train.memory import DeviceMemory, device_memory
from shardwise.train.metrics import MetricsLog, records, steps
from shardwise.train.phases import Phases
from shardwise.train.plot import plot_png
from shardwise.train.run_directory import RunDirectory
from shardwise.train.start import Options, Start, start
from shardwise.train.summary import Summary
from shardwise.train.trackers import trackers
from shardwise.train.view import View, memory_table

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
RANK = 0  # one process for now; the launcher will give each of its trainers a rank


def run(job: TrainingJob, directory: Path, options: Options, console: Console, *, imports_seconds: float) -> ExitCode:
    """Start the run in this directory, or go on with it, to its end or to a stop.

    Args:
        job: checked and resolved.
        directory: the run directory; made if needed.
        options: what the command line adds.
        console: where a person looks.
        imports_seconds: how long this process took to import what it needs, for the start-up table.

    Returns:
        OK, or SAVED after a stop.

    Raises:
        ShardwiseError: with the exit code of its class; the summary has been written.

    """
    deadline = job.spec.deadline.seconds if job.spec.deadline else None
    every = job.spec.training.checkpoint.every
    controls = Controls(
        time.monotonic, save_every_seconds=every.seconds if every else None, stop_after_seconds=deadline
    )
    with _in_words(directory), RunDirectory.held(directory) as held, controls.signals():
        phases = Phases(held.logs / progress_name(RANK), incarnation=held.incarnation, rank=RANK, pid=os.getpid())
        phases.add("interpreter", time.time() - psutil.Process().create_time() - imports_seconds)
        phases.add("imports", imports_seconds)
        summary = Summary(held, job, phases)
        try:
            with _in_words(directory):
                return _run(job, held, phases, summary, controls, options, console)
        except StoppedError:
            summary.not_begun("stopped")
            console.print("stopped before the first step; there was nothing to save")
            return ExitCode.SAVED
        except ShardwiseError as error:
            with suppress(OSError):  # a full disk has no room for the summary either, and the error itself is raised
                summary.failed(error)
            raise


def _run(
    job: TrainingJob,
    held: RunDirectory,
    phases: Phases,
    summary: Summary,
    controls: Controls,
    options: Options,
    console: Console,
) -> ExitCode:
    began = start(
        job, held, phases, options, lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True)
    )
    held.write_job(dump(job))
    summary.began(began)
    with ExitStack() as stack:
        log = MetricsLog(held.metrics)
        stack.callback(log.close)
        memory = device_memory(began.program, began.step)
        log.write(_first_event(began, held.incarnation, memory))
        console.print(memory_table(memory))
        token_flops, peak_flops = flops_per_token(began.program.config), measured_peak_flops()
        console.print(_mfu_words(token_flops, peak_flops), highlight=False, soft_wrap=True)
        others = trackers(job, held.logs)
        for tracker in others:
            stack.callback(tracker.close)
        view = stack.enter_context(View(console, steps=job.spec.training.steps, first_step=began.first_step))
        writer = CheckpointWriter(
            began.root,
            keep=job.spec.training.checkpoint.keep,
            run=job.metadata.name,
            incarnation=held.incarnation,
            fence=held.fence,
            on_commit=partial(_saved, log, view),
        )
        stack.callback(writer.close)
        loop = Loop(
            began,
            controls=controls,
            phases=phases,
            log=log,
            view=view,
            trackers=others,
            writer=writer,
            mfu_of_one_token_a_second=token_flops / peak_flops,
        )
        outcome = loop.run()
        log.write(
            {"event": "stopped" if outcome.stopped else "complete", "step": outcome.steps, "digest": outcome.digest}
        )
    floors = {"unigram": began.data.unigram_entropy(), "bigram": began.data.bigram_entropy()}
    summary.ended(outcome, steps(held.metrics), floors)
    _plot(job, held, floors)
    console.print(_last_words(began, outcome), highlight=False, soft_wrap=True)
    return ExitCode.SAVED if outcome.stopped else ExitCode.OK


def _mfu_words(token_flops: int, peak_flops: float) -> str:
    """How the MFU of the lines to come is made."""
    return (
        f"MFU: {token_flops / 1e6:.1f} MFLOP a token (6 per parameter in a matrix + 6 layers x position x embed; "
        f"recomputation not counted) over {peak_flops / 1e9:.0f} GFLOP/s, the float32 matrix product measured just now"
    )


@contextmanager
def _in_words(directory: Path) -> Iterator[None]:
    """A full disk and a lack of memory, as errors for a person; a fault of our own keeps its traceback."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        raise RunDirectoryError(
            f"{directory}: cannot be written ({error.strerror}). Committed checkpoints are untouched: make room, then "
            "run the same command again to go on from the newest"
        ) from error
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        first_line = str(error).strip().split("\n", 1)[0] or "the host has no memory left"
        raise OutOfMemoryError(
            f"out of memory: {first_line}. Raise batch.microbatches, lower batch.sequences or model.seqLen, "
            "or use more devices; committed checkpoints are untouched"
        ) from error


def _saved(log: MetricsLog, view: View, ticket: SaveTicket) -> None:
    """A checkpoint is committed; told by the thread that wrote it."""
    seconds = {"blockedSeconds": ticket.blocked_seconds, "durableSeconds": ticket.durable_seconds}
    log.write({"event": "saved", "step": ticket.step, **seconds, "digest": ticket.digest})
    view.saved(ticket.step)


def _last_words(began: Start, outcome: Outcome) -> str:
    if outcome.stopped:
        how = "stopped and saved at"
    else:
        how = "complete:" if outcome.steps > began.first_step else "nothing to do: the run was complete already at"
    return f"{how} step {outcome.steps}, state digest {outcome.digest}"


def _first_event(began: Start, incarnation: int, memory: list[DeviceMemory]) -> dict[str, Any]:
    event = {
        "event": "restored" if began.first_step else "started",
        "step": began.first_step,
        "incarnation": incarnation,
    }
    mesh = began.program.layout.mesh
    return event | {"devices": mesh.size, "mesh": dict(mesh.shape), "memory": [asdict(row) for row in memory]}


def _plot(job: TrainingJob, held: RunDirectory, floors: Mapping[str, float]) -> None:
    drawn = steps(held.metrics)
    if drawn:
        events = [record for record in records(held.metrics) if "event" in record]
        evaluations = [record for record in events if record["event"] == "evaluated"]
        restarts = [record["step"] for record in events if record["event"] == "restored"]
        plot_png(drawn, floors, held.plot, title=job.metadata.name, evaluations=evaluations, restarts=restarts)
