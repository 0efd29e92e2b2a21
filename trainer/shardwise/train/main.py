"""One process of a run, from its orders to its exit code: what `shardwise.train.child` runs.

It joins the other processes, starts, loops, and at the end writes what is written once, if it is the one that writes.
"""

import errno
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jaxlib.version
from rich.console import Console

from shardwise.job.accelerators import xla_flags
from shardwise.job.contract import WORK_LIMIT_HANGS, ExitCode, Phase, checkpoint_root
from shardwise.job.errors import (
    CompilerError,
    DeviceError,
    OutOfMemoryError,
    PeerError,
    RunDirectoryError,
    ShardwiseError,
)
from shardwise.job.flags import options
from shardwise.job.load import dump
from shardwise.job.orders import Orders
from shardwise.job.spec import TrainingJob
from shardwise.job.storage import in_words, may_pass
from shardwise.train.checkpoint import CheckpointWriter, Lease
from shardwise.train.control import Controls, StoppedError
from shardwise.train.executables import machine
from shardwise.train.flops import Peak, flops_per_token, measured_flops, peak
from shardwise.train.loop import Loop, Outcome
from shardwise.train.memory import DeviceMemory, device_memory
from shardwise.train.metrics import records, steps
from shardwise.train.phases import Phases
from shardwise.train.plot import plot_png
from shardwise.train.processes import WRITER, Processes
from shardwise.train.report import Report, Silence, speaking
from shardwise.train.run_directory import RunDirectory
from shardwise.train.start import Options, Start, start
from shardwise.train.summary import Summary
from shardwise.train.view import memory_table

_REFUSED = (errno.EFBIG, errno.EROFS)
_BOOT = Path("/proc/sys/kernel/random/boot_id")  # the same for all processes of one machine, in pods too
_PEER_IS_GONE = ("Gloo", "closed by peer", "NCCL", "nccl")
_DEVICE_HAS_FAILED = re.compile(
    r"Unable to initialize backend|core halted|CUDA_ERROR_(ECC_UNCORRECTABLE|NVLINK_UNCORRECTABLE|DEVICE_UNAVAILABLE"
    r"|NO_DEVICE|DEVICES_UNAVAILABLE|HARDWARE_STACK_ERROR|CONTAINED|EXTERNAL_DEVICE|SYSTEM_NOT_READY"
    r"|SYSTEM_DRIVER_MISMATCH|UNKNOWN)\b"
)
"""Words of JAX, the TPU runtime and CUDA's driver for what no program does. An illegal address is not among them."""
_WRONG_FLAG = re.compile(r"No such compile option: '(\w+)'|While setting option (\w+), .*")  # XLA's words


def run(job: TrainingJob, orders: Orders, console: Console, *, spent: Mapping[str, float]) -> ExitCode:
    """Start the run in its directory, or go on with it, to its end or to a stop.

    Args:
        job: checked and resolved.
        orders: this process's part.
        console: where the process that speaks does.
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
        measures=orders.num_processes > 1,
    )
    directory = RunDirectory(Path(orders.directory), orders.incarnation)
    with _in_words(job, directory.path), controls.signals():
        phases = Phases(Path(orders.progress), incarnation=orders.incarnation, rank=orders.rank, pid=os.getpid())
        for name, seconds in spent.items():
            phases.add(name, seconds)
        speaks = orders.rank == WRITER
        summary = Summary(directory, job, phases) if speaks else None
        try:
            with _in_words(job, directory.path):
                with phases.entered(Phase.JOIN):
                    # Which rank hangs is for the watchdog to say; JAX wants a limit all the same.
                    limit = WORK_LIMIT_HANGS * job.spec.recovery.hang_after.seconds
                    processes = Processes.join(orders, limit_seconds=limit)
                outcome = _run(job, directory, phases, summary, controls, orders, processes, console)
        except StoppedError:
            if summary:
                summary.not_begun("stopped")
            console.print("stopped before the first step; there was nothing to save")
            return ExitCode.SAVED
        except ShardwiseError as error:
            if summary:
                with suppress(OSError):  # a full disk has no room for the summary, and the error itself is raised
                    summary.failed(error)
            raise
        processes.leave()
    return ExitCode.SAVED if outcome.stopped else ExitCode.OK


def _run(
    job: TrainingJob,
    directory: RunDirectory,
    phases: Phases,
    summary: Summary | None,
    controls: Controls,
    orders: Orders,
    processes: Processes,
    console: Console,
) -> Outcome:
    def tell(text: str) -> None:
        if summary:
            console.print(text, highlight=False, markup=False, soft_wrap=True)

    options = Options(fork=orders.fork, step=orders.step, committed=orders.committed)
    with ExitStack() as stack:
        fence = stack.enter_context(_fence(job, directory, phases, tell)) if summary else directory.commit
        began = start(job, directory, phases, options, processes, tell)
        token_flops = flops_per_token(began.program.config)
        can = _peak(job, directory, began, processes)
        report: Report = Silence()
        mfu = 0.0
        if summary:
            directory.write_job(dump(job))
            summary.began(began)
            memory = device_memory(began.program, began.step)
            report = stack.enter_context(speaking(job, directory, console, first_step=began.first_step))
            if began.set_aside:
                report.event({"event": "setAside", "step": began.first_step, "steps": began.set_aside})
            report.event(_first_event(began, orders.incarnation, memory))
            console.print(memory_table(memory))
            tell(_mfu_words(token_flops, can))
            mfu = token_flops / can.flops_per_second
        phases.step = began.first_step
        writer = CheckpointWriter(
            began.root,
            keep=job.spec.training.checkpoint.keep,
            run=job.metadata.name,
            incarnation=orders.incarnation,
            fence=fence,
            processes=processes,
            listener=report,
            restored=began.first_step > 0,
        )
        stack.callback(writer.close)
        loop = Loop(
            began,
            directory=directory,
            controls=controls,
            phases=phases,
            report=report,
            writer=writer,
            processes=processes,
            mfu_of_one_token_a_second=mfu,
        )
        outcome = loop.run()
        report.event(
            {"event": "stopped" if outcome.stopped else "complete", "step": outcome.steps, "digest": outcome.digest}
        )
    if summary:
        floors = {"unigram": began.data.unigram_entropy(), "bigram": began.data.bigram_entropy()}
        summary.ended(outcome, steps(directory.metrics), floors)
        _plot(job, directory, floors)
    tell(_last_words(began, outcome))
    return outcome


@contextmanager
def _fence(
    job: TrainingJob, directory: RunDirectory, phases: Phases, tell: Callable[[str], None]
) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Hold the folder of checkpoints; what surrounds each commit, so that no other start or run has it by then."""
    root = checkpoint_root(job.spec.training.checkpoint.path, directory.path)
    lease = Lease(root, run=directory.run_id(), name=job.metadata.name, directory=str(directory.path))

    @contextmanager
    def commit() -> Iterator[None]:
        with directory.commit():
            lease.renew()
            yield

    with lease.held(tell, beat=lambda: phases.be(Phase.START)):  # to wait for another run is no hang
        yield commit


def _peak(job: TrainingJob, directory: RunDirectory, began: Start, processes: Processes) -> Peak:
    """What the devices of the run can do; every process must call it."""
    simulated = jax.default_backend() == "cpu"
    machines = len(set(processes.exchange("machine", _BOOT.read_text(encoding="utf-8")))) if simulated else 1

    def measured(dtype: str) -> float:
        return directory.peak_flops(f"{machine()} {dtype}", partial(measured_flops, dtype)) if processes.writes else 1.0

    return peak(job, began.program.layout.mesh.size, machines, measured)


def _mfu_words(token_flops: int, can: Peak) -> str:
    """How the MFU of the lines to come is made."""
    return (
        f"MFU: {token_flops / 1e6:.1f} MFLOP a token (6 per parameter in a matrix + 6 layers x position x embed; "
        f"recomputation not counted) over {can.words}"
    )


@contextmanager
def _in_words(job: TrainingJob, directory: Path) -> Iterator[None]:
    """What the machine did, and a wrong flag, as errors for a person; a fault of ours keeps its traceback."""
    try:
        yield
    except OSError as error:
        if not may_pass(error) and error.errno not in _REFUSED:
            raise
        words = (
            f"{directory}: cannot be used ({error.strerror}). Committed checkpoints are untouched: make room, or mend "
            "what is wrong, then run the same command again to go on from the newest"
        )
        raise in_words(error, words, RunDirectoryError) from error
    except (MemoryError, RuntimeError) as error:
        if _DEVICE_HAS_FAILED.search(str(error)):
            raise DeviceError(f"a device of {socket.gethostname()} has failed: {_first_line(error)}") from error
        if any(words in str(error) for words in _PEER_IS_GONE):
            raise PeerError(f"another process of the run is gone: {_first_line(error)}") from error
        if wrong := _WRONG_FLAG.search(str(error)):
            raise CompilerError(_flag_words(job, wrong)) from error
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise OutOfMemoryError(
            f"out of memory: {_first_line(error) or 'the host has no memory left'}. Raise batch.microbatches, lower "
            "batch.sequences or model.seqLen, or use more devices; committed checkpoints are untouched"
        ) from error


def _flag_words(job: TrainingJob, wrong: re.Match[str]) -> str:
    name = wrong[1] or wrong[2]
    own = name in options(job.spec.training.xla_flags)
    whose = "training.xlaFlags" if own else f"compiler.flags of the class {job.spec.hardware.accelerator}"
    compiler = f"XLA's compiler for {jax.default_backend().upper()}s in jaxlib {jaxlib.version.__version__}"
    reason = "has no such option" if wrong[1] else "says: " + wrong[0].rstrip(".")
    return f"{whose}: given --{name}, and {compiler} {reason}; correct it, or leave it out"


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]


def _last_words(began: Start, outcome: Outcome) -> str:
    if outcome.stopped:
        how = "stopped and saved at"
    else:
        how = "complete:" if outcome.steps > began.first_step else "nothing to do: the run was complete already at"
    return f"{how} step {outcome.steps}, state digest {outcome.digest}"


def _first_event(began: Start, incarnation: int, memory: list[DeviceMemory]) -> dict[str, Any]:
    event: dict[str, Any] = {
        "event": "restored" if began.first_step else "started",
        "step": began.first_step,
        "incarnation": incarnation,
    }
    if began.first_step and began.restored_from:
        event["savedAt"] = began.restored_from.created.timestamp()
    mesh = began.program.layout.mesh
    return event | {
        "devices": mesh.size,
        "mesh": dict(mesh.shape),
        "xlaFlags": xla_flags(began.job),
        "memory": [asdict(row) for row in memory],
    }


def _plot(job: TrainingJob, run: RunDirectory, floors: Mapping[str, float]) -> None:
    drawn = steps(run.metrics)
    if drawn:
        events = [record for record in records(run.metrics) if "event" in record]
        evaluations = [record for record in events if record["event"] == "evaluated"]
        restarts = [record["step"] for record in events if record["event"] == "restored"]
        plot_png(drawn, floors, run.plot, title=job.metadata.name, evaluations=evaluations, restarts=restarts)
