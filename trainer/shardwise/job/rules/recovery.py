"""Rules on what a run goes on with: the fewest slices are some of the job's, and the batch divides over them."""

from collections.abc import Iterator

from shardwise.job.document import wrong
from shardwise.job.fewer_slices import counts_from
from shardwise.job.rules.training import batch_divides
from shardwise.job.spec import TrainingJob
from shardwise.job.topology import mesh_shape
from shardwise.protocol.errors import Problem
from shardwise.protocol.text import any_of

_PATH = "spec.recovery.minSlices"


def fewest_slices_are_some(job: TrainingJob) -> Iterator[Problem]:
    """Require that the fewest slices are no more than all."""
    least, slices = job.spec.recovery.min_slices, job.spec.hardware.slices
    if least is not None and least > slices:
        yield wrong(_PATH, least, f"at most the {slices} of hardware.slices")


def fewest_slices_can_train(job: TrainingJob) -> Iterator[Problem]:
    """Require that the run can go on with the fewest slices."""
    least, slices = job.spec.recovery.min_slices, job.spec.hardware.slices
    mesh = mesh_shape(job)
    if least is None or least >= slices or mesh is None:
        return
    if mesh.replica % slices or any(True for _ in batch_divides(job)):  # which other rules refuse
        return
    counts = counts_from(job, 1)
    if least not in counts:
        sequences = job.spec.training.batch.sequences
        yield wrong(_PATH, least, f"slices over which {sequences} sequences divide: {any_of(sorted(counts))}")


RULES = (fewest_slices_are_some, fewest_slices_can_train)
