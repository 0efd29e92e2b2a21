"""Weights that stay as they are: those that adapters are for, or those of the model that preferences are compared with.

They are read at each start from the checkpoint that `startFrom` names, and never saved.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp

from shardwise.job.identity import BASE_FINGERPRINT
from shardwise.job.spec import TrainingJob
from shardwise.protocol.contract import Phase
from shardwise.protocol.errors import CheckpointError
from shardwise.train.checkpoint import Manifest, read_manifest, restore
from shardwise.train.digest import Compile, Digester, combine
from shardwise.train.origin import PARAMS, Origin, checkpoints_at, refuse_adapters, refuse_other_model
from shardwise.train.peers import Peers
from shardwise.train.phases import Phases
from shardwise.train.state import BASE, REFERENCE, Abstract, Program, State


@dataclass(frozen=True, kw_only=True)
class Base:
    """A checkpoint whose parameters no step changes."""

    root: str
    step: int
    fingerprint: str
    """A digest of its parameters: a run goes on with the weights that it began with."""

    @property
    def identity(self) -> dict[str, str]:
        """What it adds to the identity of a run."""
        return {BASE_FINGERPRINT: self.fingerprint}

    @classmethod
    def of(cls, job: TrainingJob, peers: Peers) -> Self | None:
        """Return that of a resolved job, which rank 0 looks up for all; None if it needs none.

        Raises:
            CheckpointError: there is no such checkpoint, it is damaged, or it holds adapters itself.

        """
        place = place_of_base(job)
        if place is None:
            return None
        own = fingerprint_of(*place) if peers.writes else ""
        return cls(root=place[0], step=place[1], fingerprint=peers.exchange("base", own)[0])

    def restored(
        self,
        program: Program,
        identity: Mapping[str, Any],
        compiled: Compile,
        peers: Peers,
        phases: Phases,
        show: Callable[[str], None],
    ) -> State:
        """Return the part of the state that holds them, in the dtypes in which the program keeps them."""
        wanted = wanted_base(program)
        with phases.entered(Phase.RESTORE):
            held = as_held(read_manifest(self.root, self.step), wanted)
            found = restore(
                self.root,
                held,
                step=self.step,
                digester=Digester(held, compiled),
                report=lambda step, reason: show(f"checkpoint of step {step} refused: {reason}"),
                agree=partial(peers.agree, "restore base"),
                beat=phases.beat,
            )
        origin = Origin(
            root=self.root, step=self.step, partial=False, is_own=False, identity=identity, weights_only=True
        )
        refuse_other_model(origin, found, show)
        assert found is not None, "refused else"
        return {BASE: as_base(program, found.arrays, prefix=PARAMS)}


def place_of_base(job: TrainingJob) -> tuple[str, int] | None:
    """Return the folder and the step of the weights that a job needs as they are; None if it needs none."""
    training = job.spec.training
    if training.lora is None and not training.has_reference:
        return None
    assert training.start_from is not None, "a rule wants it"
    assert training.start_from.step is not None, "a rule wants it"
    return checkpoints_at(training.start_from.path), training.start_from.step


def wanted_base(program: Program) -> dict[str, Abstract]:
    """Return the weights that a program does not train, by their paths in a model."""
    return {path.removeprefix(REFERENCE): x for path, x in program.abstract()[BASE].items()}


def as_base(program: Program, found: dict[str, jax.Array], *, prefix: str = "") -> dict[str, jax.Array]:
    """Return weights that were read as the program holds them: by its own paths, in its dtypes. `found` is used up."""
    # One after the other, so that of large weights no second copy is there.
    wanted = program.abstract()[BASE].items()
    return {path: found.pop(prefix + path.removeprefix(REFERENCE)).astype(x.dtype) for path, x in wanted}


def as_held(manifest: Manifest, wanted: Mapping[str, Abstract]) -> dict[str, Abstract]:
    """Return parameters by their paths in a checkpoint, in the dtypes that they have there, if they are there."""
    entries = manifest.arrays
    return {
        PARAMS + path: x.update(dtype=jnp.dtype(entries[PARAMS + path].dtype)) if PARAMS + path in entries else x
        for path, x in wanted.items()
    }


def fingerprint_of(root: str, step: int) -> str:
    """Return the digest of the parameters of a checkpoint.

    Raises:
        CheckpointError: there is no such checkpoint, it is damaged, or it holds adapters itself.

    """
    try:
        manifest = read_manifest(root, step)
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}. It is what training.startFrom names, whose weights each start reads again"
        ) from error
    refuse_adapters(root, manifest)
    return combine({path: entry.digest for path, entry in manifest.arrays.items() if path.startswith(PARAMS)})
