"""A run's model without its optimizer, read from a checkpoint onto the devices of the run's job.

It imports JAX: import it after the environment is set, inside `trainer_imports`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax

from shardwise.job.spec import TrainingJob
from shardwise.protocol.errors import CheckpointError
from shardwise.train.checkpoint import restore
from shardwise.train.devices import devices_of
from shardwise.train.digest import Digester
from shardwise.train.start import build
from shardwise.train.state import Program, flat

PARAMS = "params."


@dataclass(frozen=True, kw_only=True)
class Model:
    """A program, and the parameters of one checkpoint by path, laid out as the program stores them."""

    program: Program
    params: dict[str, jax.Array]
    step: int


def load_model(job: TrainingJob, root: str, *, step: int | None, report: Callable[[int, str], None]) -> Model:
    """Load the model of a resolved job from the newest usable checkpoint below `root`, or from that of `step`.

    Raises:
        CheckpointError: nothing was saved yet, or what was saved cannot be used.
    """
    program = build(job, devices_of(job))
    abstract = {path: leaf for path, leaf in flat(program.abstract()).items() if path.startswith(PARAMS)}
    restored = restore(root, abstract, step=step, digester=Digester(abstract), report=report)
    if restored is None:
        raise nothing_saved(root)
    params = {path.removeprefix(PARAMS): array for path, array in restored.arrays.items()}
    return Model(program=program, params=params, step=restored.step)


def nothing_saved(root: str) -> CheckpointError:
    """Return the error of a run without a checkpoint."""
    return CheckpointError(f"{root}: no checkpoint has been saved yet; run the job until its first save")
