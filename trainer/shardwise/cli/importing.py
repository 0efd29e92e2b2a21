"""Published weights as a run's first checkpoint, for `import`.

It imports JAX: import it after the environment is set, inside `trainer_imports`.
"""

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from math import prod
from pathlib import Path

import jax

from shardwise.cli.model import PARAMS
from shardwise.job.spec import Mesh, TrainingJob
from shardwise.protocol import takeover
from shardwise.train import weights
from shardwise.train.checkpoint import CheckpointWriter, Lease
from shardwise.train.config import GptConfig
from shardwise.train.digest import Digester
from shardwise.train.layout import Layout
from shardwise.train.run_directory import RunDirectory
from shardwise.train.state import Abstract, Program

_MODEL = "spec.training.model"


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What was imported; the padding of the token table counts."""

    num_parameters: int
    bytes: int


def save_weights(
    job: TrainingJob,
    directory: Path,
    root: str,
    config: GptConfig,
    parameters: Iterable[tuple[str, weights.Stored]],
    tell: Callable[[str], None],
) -> Saved:
    """Write the parameters as the checkpoint of step 0 below `root`, while holding `directory` and `root`.

    A fine-tuning run starts from it as it is: its identity names the model alone. One device holds the weights on their
    way, since a checkpoint reads back on any mesh.

    Raises:
        DataError: the job's model is not the weights' model.
        CheckpointError: a checkpoint of step 0 with other values is there, or it cannot be written.
        RunDirectoryError: a live run holds the directory or the folder of checkpoints.

    """
    training = job.spec.training.model_copy(update={"mesh": Mesh(replica=1)})
    program = Program.of(training, Layout.of(training, jax.devices()[:1]), config)
    weights.check_fits(GptConfig.of(training, tokenizer_size=config.vocab_size, platform="cpu"), config)
    with takeover.hold(directory):
        run = RunDirectory(directory, takeover.next_attempt(directory))
        lease = Lease(root, run=run.run_id(), name=job.metadata.name, directory=str(directory))
        placed = weights.place(program, config, parameters)
        arrays = {PARAMS + path: array for path, array in placed.items()}
        digester = Digester({path: Abstract(a.shape, a.dtype, sharding=a.sharding) for path, a in arrays.items()})
        writer = CheckpointWriter(
            root,
            keep=training.checkpoint.keep,
            run=job.metadata.name,
            attempt=run.attempt,
            fence=run.commit,
        )
        with lease.held(tell), closing(writer):
            ticket = writer.save(0, arrays, digester=digester, identity=_identity(config), kind="weights")
    return Saved(num_parameters=sum(prod(a.shape) for a in arrays.values()), bytes=ticket.bytes)


def _identity(config: GptConfig) -> dict[str, str | int | float | bool | None]:
    free, section = weights.free_keys(config), weights.model_section(config)
    return {f"{_MODEL}.{key}": value for key, value in section.items() if key not in free}
