"""The same run on fewer slices: the same batches in microbatches as large, and in each slice the same mesh.

A slice holds whole copies of the weights, so with fewer of them there are fewer copies, and nothing else of the mesh
changes, but for the steps of FSDP (`dataInner`) where one slice is left. What a device holds stays within what it held:
each step has more microbatches.
"""

import math
from copy import deepcopy
from typing import Any

from shardwise.job.spec import TrainingJob
from shardwise.job.topology import divisors, mesh_shape, num_hosts


def slice_counts(job: TrainingJob) -> tuple[int, ...]:
    """Return the numbers of slices that a resolved job can run on: its own, then fewer, down to recovery.minSlices."""
    least = job.spec.recovery.min_slices
    return counts_from(job, job.spec.hardware.slices if least is None else least)


def counts_from(job: TrainingJob, least: int) -> tuple[int, ...]:
    """Return the numbers of slices from `least` on that the job could run on, its own first."""
    slices = job.spec.hardware.slices
    return (slices, *(fewer for fewer in range(slices - 1, least - 1, -1) if _can_run(job, fewer)))


def on_slices(spec: dict[str, Any], job: TrainingJob, slices: int) -> dict[str, Any]:
    """Return the spec of a job, as its author wrote it, on one of its `slice_counts`; `job` is the same, resolved."""
    if slices == job.spec.hardware.slices:
        return spec
    changed = deepcopy(spec)
    changed["hardware"]["slices"] = slices
    if job.spec.training_if_any is not None:
        changed["training"]["batch"]["microbatches"] = _microbatches(job, slices)
        if "replica" in changed["training"].get("mesh", {}):
            changed["training"]["mesh"]["replica"] = _replica(job, slices)
        _leave_out_ranks(changed["training"], num_hosts(job.spec.hardware) // job.spec.hardware.slices * slices)
    return changed


def _can_run(job: TrainingJob, slices: int) -> bool:
    return job.spec.training_if_any is None or _microbatches(job, slices) is not None


def _leave_out_ranks(training: dict[str, Any], hosts: int) -> None:
    """Trace those that are there; without any there is nothing to trace."""
    ranks = training.get("profile", {}).get("ranks")
    if ranks is None or max(ranks) < hosts:
        return
    if there := [rank for rank in ranks if rank < hosts]:
        training["profile"]["ranks"] = there
    else:
        del training["profile"]


def _microbatches(job: TrainingJob, slices: int) -> int | None:
    """Return the least microbatches of a step that are no larger than on all slices; None if nothing divides."""
    batch, mesh = job.spec.training.batch, mesh_shape(job)
    if mesh is None:
        return None
    ways = _replica(job, slices) * mesh.data
    # A ramp has the same microbatches, which are smaller.
    share, rest = divmod(math.gcd(batch.sequences, *(part.sequences for part in batch.ramp_up)), ways)
    if rest:
        return None
    least = batch.microbatches * job.spec.hardware.slices / slices
    return next((parts for parts in divisors(share) if parts >= least and parts % mesh.pipeline == 0), None)


def _replica(job: TrainingJob, slices: int) -> int:
    all_slices = job.spec.hardware.slices
    return (job.spec.training.mesh.replica or all_slices) // all_slices * slices
