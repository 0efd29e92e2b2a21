"""What the job file can already say and this version cannot do yet.  Each rule goes when the thing comes."""

from collections.abc import Iterator

from shardwise.job.document import shown
from shardwise.job.errors import Problem
from shardwise.job.spec import TrainingJob
from shardwise.job.topology import topology_of


def one_host(job: TrainingJob) -> Iterator[Problem]:
    """A run is one process on one host."""
    hardware = job.spec.hardware
    topology = topology_of(hardware)
    if topology is not None and topology.hosts * hardware.slices > 1:
        yield Problem(
            path="spec.hardware.slices" if topology.hosts == 1 else "spec.hardware.topology",
            given=f"{topology.hosts} hosts and {hardware.slices} slices",
            expected="1 host and 1 slice: runs over several hosts are not supported yet",
            hint=f"the same devices on one host are topology 1x{topology.num_devices * hardware.slices} with slices 1",
        )


def no_context_axis(job: TrainingJob) -> Iterator[Problem]:
    """Sequences are not split over devices."""
    context = job.spec.training.mesh.context
    if context > 1:
        yield Problem(
            path="spec.training.mesh.context",
            given=shown(context),
            expected="1: splitting a sequence over devices is not supported yet",
            hint="for longer sequences take more tensor ways or more microbatches",
        )


def no_pipeline_axis(job: TrainingJob) -> Iterator[Problem]:
    """Layers are not split over devices."""
    pipeline = job.spec.training.mesh.pipeline
    if pipeline > 1:
        yield Problem(
            path="spec.training.mesh.pipeline",
            given=shown(pipeline),
            expected="1: splitting the layers over devices is not supported yet",
            hint="fsdp and tensor split every layer's weights",
        )


RULES = (no_context_axis, no_pipeline_axis)
