"""The state that a run starts from: that of a checkpoint, or a fresh one."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from shardwise.protocol.contract import Phase
from shardwise.protocol.errors import CheckpointError, StorageError
from shardwise.protocol.orders import Orders
from shardwise.train.balance import by_gradient
from shardwise.train.checkpoint import Manifest, Restored, restore
from shardwise.train.digest import Digester
from shardwise.train.executables import Executables
from shardwise.train.local_checkpoints import Neighbours, newest_local
from shardwise.train.optimizer import masters_paths
from shardwise.train.origin import AVERAGES, PARAMS, Origin, refuse_other_model
from shardwise.train.peers import Peers
from shardwise.train.phases import Phases
from shardwise.train.resume import Show
from shardwise.train.state import Program, State, flat, unflat, without_base

_OPTIMIZER, _MASTERS = "optimizer.", "optimizer.weights."


@dataclass(frozen=True)
class FirstState:
    """Makes the state that one process starts from, as all others do."""

    program: Program
    orders: Orders
    phases: Phases
    digester: Digester
    kept: Executables
    peers: Peers
    show: Show

    def of(self, origin: Origin) -> tuple[State, Restored | None]:
        """Return the state to start from without its base, and what was restored for it; None for a fresh state.

        A checkpoint is restored without initialising a state first, which would need the memory twice. With
        `origin.partial` arrays that it lacks are initialised.
        """
        abstract = without_base(self.program.abstract())
        wanted = {path: leaf for path, leaf in flat(abstract).items() if origin.takes(path)}
        with self.phases.entered(Phase.RESTORE):
            restored = restore(
                origin.root,
                wanted,
                step=origin.step,
                digester=self.digester,
                agree=partial(self.peers.agree, "restore"),
                report=lambda step, reason: self.show(f"checkpoint of step {step} refused: {reason}"),
                partial=origin.partial,
                masters=masters_paths(by_gradient(self.program.trained)),
                beat=self.phases.beat,
            )
        if not origin.is_own:
            refuse_other_model(origin, restored, self.show)
        if restored is None:
            if self.orders.committed is not None:
                # Starting over below an unmounted volume would look like success.
                raise StorageError(
                    f"{origin.root} holds no checkpoint, and this run has saved step {self.orders.committed} there: "
                    "its volume may not be mounted. To begin anew where they were deleted, give the command again"
                )
            with self.phases.entered(Phase.INIT):
                return self._initial(), None
        arrays = {path: _rounded(array, wanted[path].dtype) for path, array in restored.arrays.items()}
        arrays = _without_half_an_optimizer(arrays, restored.missing)
        missing = flat(abstract).keys() - arrays.keys()
        if not missing:
            return unflat(abstract, arrays), restored
        with self.phases.entered(Phase.INIT):
            fresh = flat(self._initial())
        given = _masters(self.program, restored, missing) | _averages(self.program, restored, missing)
        num_fresh = len(missing) - len(given)
        if origin.is_own and any(path.startswith(AVERAGES) for path in given):
            self.show(f"step {restored.step}: holds no average of the weights, which begins anew from here")
            num_fresh -= 1  # its count of steps
        if origin.is_own and arrays and num_fresh:
            self.show(f"step {restored.step}: restored, but for {num_fresh} arrays that it lacks and that start anew")
        return unflat(abstract, fresh | arrays | given), restored

    def of_local(
        self, neighbours: Neighbours, run: str, identity: dict[str, Any], newest: Manifest | None
    ) -> tuple[State, Restored] | None:
        """Return the same of the newest local checkpoint; None if none is newer than `newest`, or it cannot be used.

        The folders are those of one command: whatever is in them comes after what that was told to begin from.
        """
        folder = neighbours.folder
        wanted = flat(without_base(self.program.abstract()))
        after = newest.step if newest else -1
        with self.phases.entered(Phase.RESTORE):
            step = newest_local(
                neighbours, wanted, run=run, identity=identity, after=after, show=self.show, beat=self.phases.beat
            )
        if step is None:
            return None
        try:
            state, restored = self.of(
                Origin(root=str(folder.path), step=step, partial=False, is_own=True, identity=identity)
            )
        except CheckpointError:  # its refusal was shown
            folder.clear()
            return None
        assert restored is not None, "a step that was asked for is there, or refused"
        self.show(f"going on from the local checkpoint of step {step}")
        return state, restored

    def _initial(self) -> State:
        state: State = self.kept.get("init", self.program.lower_init)()
        jax.block_until_ready(state)
        return state


def _without_half_an_optimizer(arrays: dict[str, jax.Array], missing: Collection[str]) -> dict[str, jax.Array]:
    """Return the arrays without the state of an optimizer of which some are missing: it is that of another optimizer.

    Two of them share a path, and Lion's moment beside a second one that begins anew is, for Adam, a step of thousands
    of learning rates. Float32 weights are the parameters', whatever the optimizer.
    """
    of_optimizer = {path for path in (*arrays, *missing) if path.startswith(_OPTIMIZER)}
    moments = {path for path in of_optimizer if not path.startswith(_MASTERS)}
    return arrays if moments.isdisjoint(missing) else {path: x for path, x in arrays.items() if path not in moments}


def _rounded(array: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Return an array that a checkpoint holds in another dtype as the run keeps it; any other as it is."""
    return array if array.dtype == dtype else array.astype(dtype)


def _masters(program: Program, restored: Restored, missing: Collection[str]) -> dict[str, jax.Array]:
    """Return the float32 weights of an optimizer that a checkpoint lacks, from its parameters.

    Fresh ones would undo those with the first step. Parameters that are held in float32 are these weights.
    """
    places = flat(program.shardings())
    return {
        master: jax.device_put(restored.arrays[parameter].astype(jnp.float32), places[master])
        for parameter, master in masters_paths(by_gradient(program.trained)).items()
        if master in missing and parameter in restored.arrays
    }


def _averages(program: Program, restored: Restored, missing: Collection[str]) -> dict[str, jax.Array]:
    """Return averages of the weights that a checkpoint lacks: its weights, which are theirs until the next step.

    They are copies: a step writes each array of its state anew in its place.
    """
    held = {path: restored.arrays.get(f"{PARAMS}{path}") for path in program.trained}
    return {
        AVERAGES + path: jnp.array(x, jnp.float32, copy=True)
        for path, x in held.items()
        if x is not None and AVERAGES + path in missing
    }
