"""The job that a command reads a run with: the run's own if its devices are here, or else one that fits any machine.

It is chosen before JAX is imported. Weights read back on any devices; what differs is the time.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from shardwise.cli.command import trainer_imports
from shardwise.job.accelerators import accelerator_of, offered
from shardwise.job.device_words import hardware_words
from shardwise.job.resolve import resolve
from shardwise.job.spec import Hardware, Mesh, TrainingJob
from shardwise.job.topology import num_hosts
from shardwise.protocol.errors import DeviceError
from shardwise.protocol.strict_model import StrictModel

_SIMULATED = "cpu-sim"

Section = TypeVar("Section", bound=StrictModel)


def on_the_processor(job: TrainingJob) -> TrainingJob:
    """Return the same model on one simulated device: without its accelerator's kernels and XLA options."""
    training = job.spec.training
    kernels = offered()[_SIMULATED].spec.kernels
    model = training.model if training.model.attention in kernels else _copy(training.model, attention="auto")
    training = _copy(training, model=model, mesh=Mesh(replica=1), xla_flags=())
    hardware = Hardware(accelerator=_SIMULATED, topology="1x1")
    return resolve(job.with_spec(hardware=hardware, training=training))


def on_this_machine(job: TrainingJob, *, live: bool, tell: Callable[[str], None]) -> TrainingJob:
    """Return the job itself if its devices are real and of this machine, or else it `on_the_processor`.

    Simulated devices share the processor: one of them has all of it, and one copy of the weights.

    Args:
        job: of the run.
        live: whether the run has its devices at the moment.
        tell: gets a line for a person if the real devices are not taken.
    """
    hardware = job.spec.hardware
    simulated = accelerator_of(hardware).spec.platform == "cpu"
    if num_hosts(hardware) == 1 and not simulated and not live and _are_here(job):
        return job
    if not simulated:
        why = "are in use by the run" if live else "are not on this machine"
        tell(f"the run's {hardware_words(hardware)} {why}: on the processor instead, which is slower")
    return on_the_processor(job)


def _are_here(job: TrainingJob) -> bool:
    with trainer_imports():
        from shardwise.launcher.machine import look

    try:
        return look(job).are_those_of(job)
    except DeviceError:
        return False


def _copy(section: Section, **changes: Any) -> Section:
    return section.model_copy(update=changes)
