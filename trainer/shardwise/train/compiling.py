"""Which programs a run's steps and evaluations need, loaded or compiled in threads while the rest is prepared."""

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from jax.stages import Compiled

from shardwise.job.batch_sizes import BatchSizes
from shardwise.job.spec import Training
from shardwise.train.digest import Digester
from shardwise.train.evaluation import asked_for
from shardwise.train.executables import Executables
from shardwise.train.state import Program, flat, without_base
from shardwise.train.step import lower_step


def compiling(
    program: Program, pool: ThreadPoolExecutor, kept: Executables
) -> tuple[dict[int, Future[Compiled]], dict[str, Future[Compiled]], Future[Digester]]:
    """Load or compile the steps, the evaluation and the digests in threads.

    XLA holds no lock of Python while it compiles, and loading a kept program waits for the disk. What a ramp began with
    is last: by then it may be known that the run is past it.
    """
    sizes = sizes_of(program.training)
    steps = {sizes.last: pool.submit(kept.get, "step", partial(lower_step, program))}
    digester = pool.submit(Digester, flat(without_base(program.abstract())), kept.get)
    due = asked_for(program.training) if program.training.evaluation.every_steps is not None else {}
    evaluation = {
        name: pool.submit(kept.get, f"evaluation-{name}", partial(lower, program)) for name, lower in due.items()
    }
    for size in reversed(sizes.sizes(0, program.training.steps)[:-1]):
        steps[size] = pool.submit(kept.get, f"step-{size}", partial(lower_step, program, size))
    return steps, evaluation, digester


def sizes_of(training: Training) -> BatchSizes:
    """Return the sequences of each of a run's batches."""
    return BatchSizes.of(training.batch.sequences, training.batch.ramp_up)
