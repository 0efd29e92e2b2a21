"""Rules on the batch and its sources."""

from collections import Counter
from collections.abc import Iterator

from shardwise.job.document import shown
from shardwise.job.spec import TrainingJob
from shardwise.job.topology import divisors, mesh_shape, multiples_near
from shardwise.protocol.errors import Problem
from shardwise.protocol.text import any_of


def batch_divides(job: TrainingJob) -> Iterator[Problem]:
    """Each device gets the same whole number of sequences in each microbatch."""
    mesh, batch = mesh_shape(job), job.spec.training.batch
    if mesh is None:
        return
    ways = mesh.replica * mesh.data
    if batch.sequences % (ways * batch.microbatches) == 0:
        return
    share, rest = divmod(batch.sequences, ways)
    fits = "" if rest else f"; or microbatches {any_of(divisors(share))} with {batch.sequences} sequences"
    yield Problem(
        path="spec.training.batch.sequences",
        given=shown(batch.sequences),
        expected=f"a multiple of data {mesh.data} x replica {mesh.replica} x microbatches {batch.microbatches}",
        hint=f"take {' or '.join(map(str, multiples_near(batch.sequences, ways * batch.microbatches)))}{fits}",
    )


def source_names_are_unique(job: TrainingJob) -> Iterator[Problem]:
    """Metrics and messages tell sources apart by name."""
    seen: Counter[str] = Counter()
    for index, source in enumerate(job.spec.training.data.train):
        if seen[source.name]:
            yield Problem(
                path=f"spec.training.data.train.{index}.name",
                given=shown(source.name),
                expected="a name that no other source has",
            )
        seen[source.name] += 1


RULES = (batch_divides, source_names_are_unique)
