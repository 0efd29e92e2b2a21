"""The model of a run with weights that it does not train: those that its adapters are for, with what they add to them.

Of a run that compares answers with the model as it was, it is also the model as trained beside that one.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from shardwise.job.identity import BASE_FINGERPRINT, Difference, Json, identity
from shardwise.job.spec import TrainingJob
from shardwise.protocol.contract import checkpoint_name
from shardwise.protocol.errors import CheckpointError
from shardwise.train.base import as_base, as_held, fingerprint_of, place_of_base, wanted_base
from shardwise.train.checkpoint import Manifest, load_numpy, read_manifest, restore
from shardwise.train.devices import devices_of
from shardwise.train.digest import Digester
from shardwise.train.lora import factors_of, is_adapter, merged
from shardwise.train.optimizer import Names
from shardwise.train.origin import PARAMS
from shardwise.train.start import build
from shardwise.train.state import Abstract, Program, flat

_LORA = "spec.training.lora."


def adapters_in(job: TrainingJob, root: str, step: int) -> Manifest | None:
    """Return the manifest of a checkpoint that holds adapters of a resolved job; None if it holds a whole model.

    In the folder of such a job there may be both: the weights that were imported, and those of a run that was forked.

    Raises:
        CheckpointError: it cannot be read, or its adapters are not those that the job describes.

    """
    manifest = read_manifest(root, step)
    if not any(is_adapter(path) for path in manifest.arrays):
        return None
    known = identity(job, data_fingerprint="")
    _refuse_others(root, manifest, {path: value for path, value in known.items() if path.startswith(_LORA)})
    return manifest


def base_of(job: TrainingJob, root: str, step: int) -> tuple[str, int] | None:
    """Return the folder and step of the weights that a checkpoint's adapters are for; None if it holds a whole model.

    Raises:
        CheckpointError: as `adapters_in`; or the job names no such weights, or others than they were trained beside.

    """
    place = place_of_base(job) if job.spec.training.lora else None
    manifest = adapters_in(job, root, step) if place else None
    if place is None or manifest is None:
        return None
    _refuse_others(root, manifest, {BASE_FINGERPRINT: fingerprint_of(*place)})
    return place


def _refuse_others(root: str, manifest: Manifest, wanted: Mapping[str, Json]) -> None:
    for path, value in wanted.items():
        if (held := manifest.identity.get(path)) != value:
            change = Difference(path=path, old=held, new=value)
            raise CheckpointError(
                f"{root}/{checkpoint_name(manifest.step)}: its weights are not those of the job: {change}. Set "
                "training.lora to what it was, and training.startFrom to the weights that they were trained beside"
            )


def adapted_model(
    job: TrainingJob, root: str, step: int, *, part: str = PARAMS
) -> tuple[Program, dict[str, jax.Array]]:
    """Return the program of a job's model without adapters, and its parameters, with what they add, in float32.

    `part` is which adapters: PARAMS, the last ones, or AVERAGES.

    Raises:
        CheckpointError: as `base_of`; or what was saved, of either, cannot be used.

    """
    training, place = job.spec.training, base_of(job, root, step)
    # What adapters are kept in says nothing of the weights beside them, which are not rounded to it.
    precision = training.precision.model_copy(update={"params": "float32"})
    plain = job.with_spec(training=training.model_copy(update={"lora": None, "precision": precision}))
    program = build(plain, devices_of(plain))
    wanted, held_at = program.abstract()["params"], place or (root, step)
    weights = _restored(*held_at, as_held(read_manifest(*held_at), wanted))
    if place is None and part != PARAMS:
        raise _without(root, step)
    adapters, names = _adapters(job, root, step, part) if place else ({}, {})

    def whole(path: str) -> jax.Array:
        weight, factors = weights.pop(path), {name: adapters[name] for name in factors_of(path) if name in adapters}
        if not factors:
            return weight.astype(wanted[path].dtype)
        add = partial(_added, path, names=names, job=job)
        added: jax.Array = jax.jit(add, out_shardings=program.shardings()["params"][path])(weight, factors)
        return added

    # One after the other, so that of large weights no second copy is there.
    return program, {path: whole(path) for path in wanted}


def model_with_reference(
    job: TrainingJob, root: str, step: int, *, part: str = PARAMS
) -> tuple[Program, dict[str, jax.Array]]:
    """Return the program of a job that has a reference, and all its parameters, those that it does not train too.

    `part` is as in `adapted_model`.

    Raises:
        CheckpointError: the checkpoint is not of such a run, or was trained beside other weights than the job names; or
            what was saved, of either, cannot be used.

    """
    place, manifest = place_of_base(job), adapters_in(job, root, step) or read_manifest(root, step)
    assert place is not None, "the job has a reference"
    if BASE_FINGERPRINT not in manifest.identity:
        raise CheckpointError(
            f"{root}/{checkpoint_name(step)}: holds what the run begins from; run the job until its first save"
        )
    _refuse_others(root, manifest, {BASE_FINGERPRINT: fingerprint_of(*place)})
    program = build(job, devices_of(job))
    base = _restored(*place, as_held(read_manifest(*place), wanted_base(program)))
    trained = {path: x.astype(program.kept_dtype(path)) for path, x in _trained(program, root, step, part).items()}
    return program, as_base(program, base) | trained


def _adapters(job: TrainingJob, root: str, step: int, part: str) -> tuple[dict[str, jax.Array], Names]:
    """Return the adapters of a checkpoint, and the axis names of the model that has them, by path."""
    program = build(job, devices_of(job))
    return _trained(program, root, step, part), program.names


def _trained(program: Program, root: str, step: int, part: str) -> dict[str, jax.Array]:
    """Return what the checkpoint of a program's run has of what steps change, by the model's own paths."""
    wanted = {path: leaf for path, leaf in flat(program.abstract()).items() if path.startswith(part)}
    return _restored(root, step, wanted, part)


def _restored(root: str, step: int, wanted: Mapping[str, Abstract], part: str = PARAMS) -> dict[str, jax.Array]:
    """Return parameters of one checkpoint by the model's own paths."""
    # A reason not to use it is in the error.
    found = restore(root, wanted, step=step, digester=Digester(wanted), report=lambda *_: None)
    assert found is not None, "its manifest is there"
    return {path.removeprefix(part): array for path, array in found.arrays.items()}


def whole_parameters(
    job: TrainingJob, names: Names, root: str, step: int, *, in_float32: bool = False, part: str = PARAMS
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield a checkpoint's parameters by the model's own paths, verified, one in memory at a time.

    Args:
        job: resolved; of a run that trains adapters the weights come with what these add to them.
        names: the axis names of its model, adapters included, by path.
        root: the folder of checkpoints.
        step: of the checkpoint.
        in_float32: whether such a sum stays in float32, and is not rounded to the dtype of the weights.
        part: PARAMS, the last weights or adapters, or AVERAGES, which are float32.

    Raises:
        CheckpointError: as `base_of`; or what was saved cannot be used.

    """
    place = base_of(job, root, step)
    adapters = dict(read_part(root, step, part)) if place else {}
    for path, weight in read_part(*place, PARAMS) if place else read_part(root, step, part):
        if factors_of(path)[0] not in adapters:
            yield path, weight
        else:
            added = np.asarray(_added(path, weight, adapters, names=names, job=job))
            yield path, added if in_float32 else added.astype(weight.dtype, copy=False)


def read_part(root: str, step: int, part: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the last weights of a checkpoint, or the averages, by the model's own paths, one in memory at a time.

    Raises:
        CheckpointError: it holds none, or cannot be read.

    """
    if not any(path.startswith(part) for path in read_manifest(root, step).arrays):
        raise _without(root, step)
    yield from ((path.removeprefix(part), array) for path, array in load_numpy(root, step, part))


def _without(root: str, step: int) -> CheckpointError:
    """Return the error of a checkpoint without averages."""
    return CheckpointError(
        f"{root}/{checkpoint_name(step)}: holds no average of the weights; run the job with training.optimizer.average "
        "until its next save, or leave --average out"
    )


def _added(path: str, weight: Any, adapters: Mapping[str, Any], *, names: Names, job: TrainingJob) -> Any:
    """Return a weight with what its adapter adds to it, float32."""
    lora = job.spec.training.lora
    assert lora is not None, "it has adapters"
    return merged({path: weight}, adapters, names, lora)[path]
