"""One process of a run, from its command line to its exit code: what the launcher and `shardwise run` start.

`run` is called in a process whose environment already says which devices JAX sees (`shardwise.train.environment`). It
holds the run directory, starts, loops, and writes the summary, whatever the end.
"""

import json
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import psutil
from rich.console import Console

from shardwise.job.contract import ExitCode, progress_name
from shardwise.job.errors import NonFiniteError, ShardwiseError
from shardwise.job.load import dump
from shardwise.job.spec import TrainingJob
from shardwise.train.checkpoint import CheckpointWriter
from shardwise.train.control import Controls, StoppedError
from shardwise.train.flops import flops_per_token, measured_peak_flops
from shardwise.train.loop import Loop, Outcome
from shardwise.train.memory import DeviceMemory, device_memory
from shardwise.train.metrics import MetricsLog, records, steps
from shardwise.train.phases import Phases
from shardwise.train.plot import plot_png
from shardwise.train.run_directory import RunDirectory
from shardwise.train.start import Options, Start, start
from shardwise.train.trackers import trackers
from shardwise.train.view import View, memory_table

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
    with RunDirectory.held(directory) as held, controls.signals():
        phases = Phases(held.logs / progress_name(RANK), incarnation=held.incarnation, rank=RANK, pid=os.getpid())
        phases.add("interpreter", time.time() - psutil.Process().create_time() - imports_seconds)
        phases.add("imports", imports_seconds)
        summary = _Summary(held, job, phases)
        try:
            return _run(job, held, phases, summary, controls, options, console)
        except StoppedError:
            summary.not_begun("stopped")
            console.print("stopped before the first step; there was nothing to save")
            return ExitCode.SAVED
        except ShardwiseError as error:
            summary.failed(error)
            raise


def _run(
    job: TrainingJob,
    held: RunDirectory,
    phases: Phases,
    summary: "_Summary",
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
        writer = CheckpointWriter(
            began.root,
            keep=job.spec.training.checkpoint.keep,
            run=job.metadata.name,
            incarnation=held.incarnation,
            fence=held.fence,
        )
        stack.callback(writer.close)
        others = trackers(job, held.logs)
        for tracker in others:
            stack.callback(tracker.close)
        view = stack.enter_context(View(console, steps=job.spec.training.steps, first_step=began.first_step))
        loop = Loop(
            began,
            controls=controls,
            phases=phases,
            log=log,
            view=view,
            trackers=others,
            writer=writer,
            mfu_of_one_token_a_second=flops_per_token(began.program.config) / measured_peak_flops(),
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
    return event | {"devices": mesh.size, "mesh": dict(mesh.shape), "memory": [vars_of(row) for row in memory]}


def _plot(job: TrainingJob, held: RunDirectory, floors: Mapping[str, float]) -> None:
    drawn = steps(held.metrics)
    if drawn:
        events = [record for record in records(held.metrics) if "event" in record]
        evaluations = [record for record in events if record["event"] == "evaluated"]
        restarts = [record["step"] for record in events if record["event"] == "restored"]
        plot_png(drawn, floors, held.plot, title=job.metadata.name, evaluations=evaluations, restarts=restarts)


class _Summary:
    """summary.json, rewritten as the run passes through its life."""

    def __init__(self, held: RunDirectory, job: TrainingJob, phases: Phases) -> None:
        self._held, self._job, self._phases = held, job, phases
        self._before = held.read_summary()
        self._initial: str | None = self._before.get("initialDigest")
        self._begun = False
        self.write("starting")

    def began(self, began: Start) -> None:
        self._begun = True
        self._initial = began.initial_digest
        self._phases.step = began.first_step
        self.write("running", data=[vars_of(source) for source in began.data.sources], sample=began.first_step)

    def ended(self, outcome: Outcome, drawn: list[dict[str, Any]], entropy: Mapping[str, float]) -> None:
        status = "stopped" if outcome.stopped else "complete"
        self.write(status, finalLoss=drawn[-1]["loss"] if drawn else None, digest=outcome.digest, entropy=entropy)

    def failed(self, error: ShardwiseError) -> None:
        status = "nonfinite" if isinstance(error, NonFiniteError) else "failed"
        if self._begun:
            self.write(status, error=str(error))
        else:
            self.not_begun(status, error=str(error))

    def not_begun(self, status: str, **more: object) -> None:
        """A start that came to nothing says so only where no run has ended before: what that one reached stays."""
        if self._before.get("status") in ("complete", "stopped"):
            self._held.write_summary(self._before)
        else:
            self.write(status, **more)

    def write(self, status: str, **more: object) -> None:
        summary = {
            "name": self._job.metadata.name,
            "status": status,
            "steps": self._phases.step,
            "of": self._job.spec.training.steps,
            "phases": {str(name): round(seconds, 4) for name, seconds in self._phases.seconds.items()},
            "initialDigest": self._initial,
            "jax": jax.__version__,
        }
        self._held.write_summary(summary | more)


def vars_of(source: object) -> Mapping[str, Any]:
    """A summary dataclass as JSON values."""
    return json.loads(json.dumps(vars(source)))  # type: ignore[no-any-return]
