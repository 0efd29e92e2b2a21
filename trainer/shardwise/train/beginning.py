"""What the rank that writes records when a run begins: the job, the first event, and what each device holds."""

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from shardwise.job.accelerators import xla_flags
from shardwise.job.load import dump
from shardwise.job.paths import with_absolute_paths
from shardwise.job.spec import TrainingJob
from shardwise.job.topology import mesh_shape
from shardwise.train.executables import code_digest, versions
from shardwise.train.git_state import git_state
from shardwise.train.memory import DeviceMemory, device_memory
from shardwise.train.report import Report, open_report
from shardwise.train.run_directory import RunDirectory
from shardwise.train.start import Start
from shardwise.train.summary import Summary
from shardwise.train.view import memory_table


def begin_report(
    ready: Start, directory: RunDirectory, summary: Summary, hosts: list[str], console: Console, stack: ExitStack
) -> Report:
    """Write down what begins: the job, the head of the summary, the first events and what each device holds."""
    if line := _other_mesh(ready, directory.read_job()):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    directory.write_job(dump(with_absolute_paths(ready.job)))
    summary.running(ready)
    memory = device_memory(ready.program, ready.step)
    report = stack.enter_context(open_report(ready.job, directory, console, first_step=ready.first_step))
    if ready.set_aside:
        report.event({"event": "setAside", "step": ready.first_step, "steps": ready.set_aside})
    report.event(_first_event(ready, directory.attempt, memory, hosts))
    console.print(memory_table(memory, ready.program.layout.mesh.size))
    return report


def _other_mesh(ready: Start, before: TrainingJob | None) -> str | None:
    """Return a line for a person if the run goes on, on another mesh than that of its last start."""
    if ready.own_step is None or before is None:
        return None
    was, now = mesh_shape(before), mesh_shape(ready.job)
    if was is None or now is None or was == now:
        return None
    return f"step {ready.own_step}: restored on the mesh {now.words}; the run's last start had {was.words}"


def _first_event(ready: Start, attempt: int, memory: list[DeviceMemory], hosts: list[str]) -> dict[str, Any]:
    event: dict[str, Any] = {
        "event": "restored" if ready.first_step else "started",
        "step": ready.first_step,
        "attempt": attempt,
    }
    if ready.first_step and ready.restored_from:
        event["savedAt"] = ready.restored_from.created.timestamp()
        if ready.restored_locally:
            event["local"] = True
    if attempt == 0 and (repository := git_state(Path.cwd())):  # a restarted trainer has no time to ask again
        event["git"] = repository._asdict()
    mesh = ready.program.layout.mesh
    return event | {
        "devices": mesh.size,
        "mesh": dict(mesh.shape),
        "xlaFlags": xla_flags(ready.job),
        "hosts": hosts,
        "versions": versions(),
        "code": code_digest(),
        "memory": [asdict(row) for row in memory],
    }
