"""What the job file can already say and this version cannot do yet.  Each rule goes when the thing comes."""

from collections.abc import Iterator

from shardwise.job.document import shown
from shardwise.job.errors import Problem
from shardwise.job.spec import TrainingJob


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
