"""A run's model without its optimizer: read from a checkpoint, or published weights written as the first one.

It imports JAX: import it after the environment is set, inside `trainer_imports`.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from shardwise.bucket.lease import Lease
from shardwise.cli.adapted_model import (
    adapted_model,
    adapters_in,
    model_with_reference,
    read_part,
    whole_parameters,
)
from shardwise.job.identity import without_younger_fields
from shardwise.job.spec import Mesh, TrainingJob
from shardwise.job.spec.training import Lora
from shardwise.protocol import takeover
from shardwise.protocol.contract import checkpoint_name
from shardwise.protocol.errors import CheckpointError, DataError
from shardwise.train import weights
from shardwise.train.balance import PICK_BIAS
from shardwise.train.checkpoint import CheckpointWriter, restore, steps
from shardwise.train.config import GptConfig
from shardwise.train.devices import devices_of
from shardwise.train.digest import Digester
from shardwise.train.layout import Layout, axis_names
from shardwise.train.lora import initial
from shardwise.train.optimizer import Names
from shardwise.train.origin import AVERAGES, PARAMS
from shardwise.train.run_directory import RunDirectory
from shardwise.train.start import build
from shardwise.train.state import Abstract, Program, flat

_MODEL = "spec.training.model"


@dataclass(frozen=True, kw_only=True)
class Model:
    """A program, and the parameters of one checkpoint by path, laid out as the program stores them."""

    program: Program
    params: dict[str, jax.Array]
    step: int


def load_model(
    job: TrainingJob, root: str, *, step: int | None, report: Callable[[int, str], None], part: str = PARAMS
) -> Model:
    """Load the model of a resolved job from the newest usable checkpoint below `root`, or from that of `step`.

    `part` is which of its weights: PARAMS, the last ones, or AVERAGES.

    Raises:
        CheckpointError: nothing was saved yet, or what was saved cannot be used.
    """
    job = _for_generation(job)
    if job.spec.training.lora is not None:
        return _newest_of(partial(adapted_model, job, root, part=part), root, step, report)
    program = build(job, devices_of(job))
    abstract = {path: leaf for path, leaf in flat(program.abstract()).items() if path.startswith(part)}
    restored = restore(root, abstract, step=step, digester=Digester(abstract), report=report)
    if restored is None:
        raise nothing_saved(root)
    found = {path.removeprefix(part): array for path, array in restored.arrays.items()}
    params = {path: array.astype(program.kept_dtype(path)) for path, array in found.items()}
    return Model(program=program, params=params, step=restored.step)


def load_with_reference(
    job: TrainingJob, root: str, *, step: int | None, report: Callable[[int, str], None], part: str = PARAMS
) -> Model:
    """Load the model of a resolved job that has a reference, as `load_model` does, and what it is compared with.

    Raises:
        CheckpointError: as `load_model`; or it was trained beside other weights than the job names.
    """
    return _newest_of(partial(model_with_reference, _for_generation(job), root, part=part), root, step, report)


def _newest_of(
    load: Callable[[int], tuple[Program, dict[str, jax.Array]]],
    root: str,
    step: int | None,
    report: Callable[[int, str], None],
) -> Model:
    for candidate, is_last in candidates(root, step):
        try:
            program, params = load(candidate)
        except CheckpointError as error:
            if is_last:
                raise
            report(candidate, str(error))
        else:
            return Model(program=program, params=params, step=candidate)
    raise AssertionError("the last one is returned, or raises")


def candidates(root: str, step: int | None) -> Iterator[tuple[int, bool]]:
    """Yield the checkpoints to try, newest first or `step` alone, each with whether it is the last to try.

    Raises:
        CheckpointError: nothing was saved yet.
    """
    there = [step] if step is not None else steps(root)[::-1]
    if not there:
        raise nothing_saved(root)
    for candidate in there:
        yield candidate, candidate == there[-1]


def exported_parameters(
    job: TrainingJob, config: GptConfig, root: str, step: int, dtype: str | None, *, part: str = PARAMS
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield parameters, `part` as in `load_model`, in a format or in the run's own, one in memory at a time.

    Raises:
        CheckpointError: it cannot be read.
        DataError: a number is too large for the format.

    """
    names, training = _names(config, job.spec.training.lora), job.spec.training
    whole = whole_parameters(job, names, root, step, in_float32=dtype is not None, part=part)
    if part == AVERAGES and training.lora is None:
        dtype = dtype or training.precision.params
    for name, array in whole:
        yield name, array if dtype is None or name == PICK_BIAS else _cast(name, array, dtype)


def _cast(name: str, array: np.ndarray, dtype: str) -> np.ndarray:
    """Return a parameter in another format; DataError if that does not reach as far as its numbers do."""
    with np.errstate(over="ignore"):  # it is said below
        cast = array.astype(jnp.dtype(dtype))
    if num_lost := int(np.isinf(cast).sum() - np.isinf(array).sum()):
        large = "1 of its numbers is" if num_lost == 1 else f"{num_lost:,} of its numbers are"
        other = "bfloat16" if dtype == "float16" else "float32"
        raise DataError(f"{name}: {large} too large for {dtype}; take {other}")
    return cast


def _names(config: GptConfig, lora: Lora | None) -> Names:
    return axis_names(eqx.filter_eval_shape(initial, config, lora, key=jax.eval_shape(jax.random.key, 0)))


def save_adapters(
    job: TrainingJob, config: GptConfig, root: str, step: int, out: Path, *, dtype: str | None, part: str = PARAMS
) -> None:
    """Write adapters, `part` as in `load_model`, as PEFT reads them, in a format or in the run's own.

    Raises:
        CheckpointError: it holds none yet, or cannot be read.
        DataError: the job trains no adapters, the model is of no published family, or a number is too large for the
            format.

    """
    lora = job.spec.training.lora
    if lora is None:
        raise DataError(f"{root}: the job trains its weights, and has no adapters; expected one with training.lora")
    if adapters_in(job, root, step) is None:
        raise CheckpointError(
            f"{root}/{checkpoint_name(step)}: holds no adapters yet; run the job until its first save"
        )
    dtype = dtype or (job.spec.training.precision.params if part == AVERAGES else None)
    held = read_part(root, step, part)
    adapters = {path: array if dtype is None else _cast(path, array, dtype) for path, array in held}
    weights.write_adapters(out, config, adapters, _names(config, lora), lora)


def _for_generation(job: TrainingJob) -> TrainingJob:
    """Return the job on the same devices with whole sequences and layers; `data` has those of context and pipeline."""
    training = job.spec.training
    mesh = training.mesh.model_copy(update={"context": 1, "pipeline": 1, "pipeline_rounds": 1})
    return job.with_spec(training=training.model_copy(update={"mesh": mesh}))


def nothing_saved(root: str) -> CheckpointError:
    """Return the error of a run without a checkpoint."""
    return CheckpointError(f"{root}: no checkpoint has been saved yet; run the job until its first save")


def save_weights(
    job: TrainingJob,
    directory: Path,
    root: str,
    config: GptConfig,
    parameters: Iterable[tuple[str, weights.Stored]],
    tell: Callable[[str], None],
) -> int:
    """Write the parameters as the checkpoint of step 0 below `root`, while holding `directory` and `root`.

    A fine-tuning run starts from it as it is: its identity names the model alone. One device holds the weights on their
    way, since a checkpoint reads back on any mesh. Return the bytes that this process wrote.

    Raises:
        DataError: the job's model is not the weights' model.
        CheckpointError: a checkpoint of step 0 with other values is there, or of a later step, or it cannot be written.
        RunDirectoryError: a live run holds the directory or the folder of checkpoints.

    """
    training = job.spec.training.model_copy(update={"mesh": Mesh(replica=1), "lora": None})
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
            fence=run.hold_attempt,
        )
        with lease.held(tell), closing(writer):
            _refuse_checkpoints_of_a_run(root)
            ticket = writer.save(0, arrays, digester=digester, identity=_identity(config), kind="weights")
    return ticket.bytes


def _refuse_checkpoints_of_a_run(root: str) -> None:
    """Raise CheckpointError if a run has saved below `root`: retention would delete it, and a run go on from it."""
    if (newest := max(steps(root), default=0)) > 0:
        raise CheckpointError(
            f"{root}: holds checkpoints of a run already, up to step {newest}; give a new directory, or another "
            "training.checkpoint.path"
        )


def _identity(config: GptConfig) -> dict[str, str | int | float | bool | None]:
    free = weights.free_keys(config)
    flat: dict[str, str | int | float | bool | None] = {}
    for key, value in weights.model_section(config).items():
        # What has fields of its own is there field by field, as in the identity of a job.
        parts = {f".{name}": part for name, part in value.items()} if isinstance(value, dict) else {"": value}
        flat |= {f"{_MODEL}.{key}{name}": part for name, part in parts.items() if key not in free}
    return without_younger_fields(flat)
