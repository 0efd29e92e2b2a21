"""One process of a run, from its orders to its exit code.

It joins the other processes, prepares everything up to the first step, trains, and, on the rank that writes, records
the result. `shardwise.train.child` runs it.
"""

import os
import platform
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from rich.console import Console

from shardwise.job.accelerators import accelerator_of
from shardwise.job.spec import Training, TrainingJob
from shardwise.protocol.contract import WORK_LIMIT_HANGS, ExitCode, Phase, checkpoint_root
from shardwise.protocol.errors import ShardwiseError
from shardwise.protocol.orders import Orders
from shardwise.protocol.storage import passing_over
from shardwise.train.beginning import begin_report
from shardwise.train.checkpoint import CheckpointWriter
from shardwise.train.checkpoint.save import Fence
from shardwise.train.control import Controls, StoppedError
from shardwise.train.devices import simulated
from shardwise.train.executables import machine
from shardwise.train.fence import fenced
from shardwise.train.flops import Peak, flops_per_token, measured_flops, peak
from shardwise.train.host_memory import not_moved
from shardwise.train.local_checkpoints import LocalWriter, Neighbours, hosts_apart, neighbours
from shardwise.train.loop import Loop
from shardwise.train.metrics import Recorded, recorded
from shardwise.train.origin import origin_below
from shardwise.train.peers import WRITER, Peers
from shardwise.train.phases import Phases
from shardwise.train.plot import plot_png
from shardwise.train.report import Report
from shardwise.train.run_directory import RunDirectory
from shardwise.train.saves import Saves
from shardwise.train.start import Start, start
from shardwise.train.summary import Outcome, Summary
from shardwise.train.user_errors import user_errors

_BOOT = Path("/proc/sys/kernel/random/boot_id")  # the same for all processes of one machine, in pods too


def run(job: TrainingJob, orders: Orders, console: Console, *, spent: Mapping[str, float]) -> ExitCode:
    """Start the run in its directory, or resume it, and train to its end or to a stop.

    Args:
        job: checked and resolved.
        orders: this process's part.
        console: the log of this process.
        spent: {phase: seconds} of this process before it had orders, for the start-up table.

    Returns:
        OK, or SAVED after a stop.

    Raises:
        ShardwiseError: with the exit code of its class; the summary has been written.

    """
    every = job.spec.training.checkpoint.every
    controls = Controls(
        time.monotonic,
        save_every_seconds=every.seconds if every else None,
        stop_after_seconds=orders.deadline_seconds,
        # Simulated devices compute as the processor does, and one host has none to be compared with.
        measures=orders.num_processes > 1 or accelerator_of(job.spec.hardware).spec.platform != "cpu",
    )
    directory = RunDirectory(Path(orders.directory), orders.attempt)
    with user_errors(job, directory.path), controls.signals():
        summary = None
        try:
            # Inside of the other one as well: the summary records the error as the user gets it.
            with user_errors(job, directory.path):
                phases = Phases(Path(orders.progress), attempt=orders.attempt, rank=orders.rank, pid=os.getpid())
                for name, seconds in spent.items():
                    phases.add(name, seconds)
                summary = Summary(directory, job, phases) if orders.rank == WRITER else None
                with phases.entered(Phase.JOIN):
                    # The watchdog decides which rank hangs; JAX needs a limit all the same.
                    limit = WORK_LIMIT_HANGS * job.spec.recovery.hang_after.seconds
                    peers = Peers.join(orders, limit_seconds=limit)
                outcome = _run(job, directory, phases, summary, controls, orders, peers, console)
        except StoppedError:
            if summary:
                summary.not_started("stopped")
            console.print("stopped before the first step; there was nothing to save")
            return ExitCode.SAVED
        except ShardwiseError as error:
            if summary:
                with suppress(OSError):  # a full disk has no room for the summary, and the error itself is raised
                    summary.failed(error)
            raise
        peers.leave()
    return ExitCode.SAVED if outcome.stopped else ExitCode.OK


def _run(
    job: TrainingJob,
    directory: RunDirectory,
    phases: Phases,
    summary: Summary | None,
    controls: Controls,
    orders: Orders,
    peers: Peers,
    console: Console,
) -> Outcome:
    def show(text: str) -> None:
        if summary:
            console.print(text, highlight=False, markup=False, soft_wrap=True)

    with ExitStack() as stack:
        # Before the start reads any checkpoint: another run may be writing to the same folder.
        fence = directory.hold_attempt
        if summary:
            root = checkpoint_root(job.spec.training.checkpoint.path, directory.path)
            beat = partial(phases.switch_to, Phase.START)  # waiting for another run is no hang
            fence = stack.enter_context(fenced(root, directory, job.metadata.name, show=show, beat=beat))
        near = _neighbours(job, orders, peers, stack)
        ready = start(job, directory, phases, orders, peers, show, near)
        token_flops = flops_per_token(ready.program.config, job.spec.training)
        hardware = _peak(job, directory, ready, peers)
        hosts = list(dict.fromkeys(peers.exchange("host", platform.node())))
        report = begin_report(ready, directory, summary, hosts, console, stack) if summary else Report()
        show(_mfu_text(token_flops, hardware, job.spec.training))
        if told := not_moved(job.spec.training, ready.program.layout.mesh.devices.flat[0].platform):
            show(told)
        phases.step = ready.first_step
        if ready.completions:
            stack.callback(ready.completions.close)
        writer = _checkpoint_writer(ready, directory, fence, peers, report)
        # The stack unwinds backwards: the writer ends its last save, then the report closes, then the lease is freed.
        stack.callback(writer.close)
        writer.keep_origin(origin_below(ready.job, ready.root))
        local = None
        if near:
            local = LocalWriter(near, run=job.metadata.name, attempt=orders.attempt, listener=report)
            stack.callback(local.close)
        loop = Loop(
            ready,
            directory=directory,
            controls=controls,
            phases=phases,
            report=report,
            saves=Saves(ready, writer, phases, peers, local),
            peers=peers,
            mfu_of_one_token_a_second=token_flops / hardware.flops_per_second if summary else 0.0,
        )
        outcome = loop.run()
        report.event(
            {"event": "stopped" if outcome.stopped else "complete", "step": outcome.steps, "digest": outcome.digest}
        )
    if summary:
        known = _complete(ready, directory, summary, outcome)
        if known.damage:
            show(known.damage)
    show(_end_text(ready, outcome))
    return outcome


def _neighbours(job: TrainingJob, orders: Orders, peers: Peers, stack: ExitStack) -> Neighbours | None:
    """Return the keepers of local checkpoints, until the stack ends; None if the job makes none."""
    if job.spec.training.checkpoint.local is None or orders.local is None:
        return None
    keepers = neighbours(orders.local, orders.attempt, peers, apart=hosts_apart(job.spec.hardware))
    return stack.enter_context(keepers)


def _checkpoint_writer(
    ready: Start, directory: RunDirectory, fence: Fence, peers: Peers, report: Report
) -> CheckpointWriter:
    return CheckpointWriter(
        ready.root,
        keep=ready.job.spec.training.checkpoint.keep,
        run=ready.job.metadata.name,
        attempt=directory.attempt,
        fence=fence,
        processes=peers,
        listener=report,
        restored=ready.saved_step is not None,
    )


def _complete(ready: Start, directory: RunDirectory, summary: Summary, outcome: Outcome) -> Recorded:
    """Complete the summary, and draw what was trained; return what was recorded of it."""
    # Of pairs of answers and completions the loss is none of tokens: what counting tokens reaches says nothing of it.
    training = ready.job.spec.training
    floors = {} if training.learns_preferences or training.reinforcement else ready.data.entropies()
    known = recorded(directory.metrics)
    summary.ended(outcome, known, floors)
    if known.steps:
        with passing_over():  # the run is complete, and its state is saved, on a full disk too
            _plot(ready.job, directory, known, floors)
    return known


def _peak(job: TrainingJob, directory: RunDirectory, ready: Start, peers: Peers) -> Peak:
    """Return what the devices of the run can do together. Every process must call it."""
    machines = len(set(peers.exchange("machine", _BOOT.read_text(encoding="utf-8")))) if simulated() else 1

    def measured(dtype: str) -> float:
        return directory.peak_flops(f"{machine()} {dtype}", partial(measured_flops, dtype)) if peers.writes else 1.0

    return peak(job, ready.program.layout.mesh.size, machines, measured)


def _mfu_text(token_flops: int, hardware: Peak, training: Training) -> str:
    """Explain how the MFU of the log lines is computed."""
    reference = training.more_forwards  # these go forward alone
    of_a_parameter, of_a_key = (4 if training.lora else 6) + 2 * reference, 12 + 4 * reference
    return (
        f"MFU: {token_flops / 1e6:.1f} MFLOP a token ({of_a_parameter} per parameter in a matrix + {of_a_key} x heads "
        f"x head size x keys seen; recomputation not counted) over {hardware.source}"
    )


def _end_text(ready: Start, outcome: Outcome) -> str:
    if outcome.stopped:
        how = "stopped and saved at"
    else:
        how = "complete:" if outcome.steps > ready.first_step else "nothing to do: the run was complete already at"
    return f"{how} step {outcome.steps}, state digest {outcome.digest}"


def _plot(job: TrainingJob, run: RunDirectory, known: Recorded, floors: Mapping[str, float]) -> None:
    restarts = [record["step"] for record in known.events if record["event"] == "restored"]
    plot_png(known.steps, floors, run.plot, title=job.metadata.name, evaluations=known.evaluations, restarts=restarts)
