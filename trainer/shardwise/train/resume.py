"""Where a run begins: from its newest usable checkpoint, as a fork of one, or fresh.

Only rank 0 decides what is there, and the others follow it: on shared storage a host may not yet see a new checkpoint,
or still see a removed one.
"""

import json
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from shardwise.job.identity import Difference, other_order, recorded_differences
from shardwise.protocol.contract import Phase
from shardwise.protocol.errors import RunDirectoryError, StorageError
from shardwise.protocol.orders import Orders
from shardwise.train.checkpoint import Manifest, Restored, restore
from shardwise.train.digest import Digester
from shardwise.train.executables import Executables
from shardwise.train.metrics import last_step
from shardwise.train.optimizer import masters_paths
from shardwise.train.origin import Origin, refuse_other_model
from shardwise.train.peers import Peers
from shardwise.train.phases import Phases
from shardwise.train.run_directory import Forks, RunDirectory
from shardwise.train.state import Program, State, flat, unflat, without_base

_OPTIMIZER, _MASTERS = "optimizer.", "optimizer.weights."
Show = Callable[[str], None]
"""Takes a line for the person who watches."""


def is_fork(
    run: RunDirectory, root: str, newest: Manifest | None, name: str, identity: dict[str, Any], orders: Orders
) -> bool:
    """Return whether this job is another run than the one found here.

    Raises:
        RunDirectoryError: it is another run, and `orders.fork` is not set.

    """
    if newest and newest.kind == "state" and newest.run != name and not orders.fork:
        raise RunDirectoryError(
            f"{root} holds the checkpoints of the run {newest.run!r}, and this job is {name!r}; give another "
            "checkpoint.path or --dir, or go on from them as a new run with --fork"
        )
    held = dict(newest.identity) if newest else run.read_identity()
    changed = recorded_differences(held, identity)
    if changed and not orders.fork:
        raise RunDirectoryError(_changed(changed, root if newest else str(run.path), has_checkpoint=newest is not None))
    return bool(changed)


def without_going_back_again(
    run: RunDirectory, newest: Manifest | None, orders: Orders, peers: Peers, show: Show, *, forked: bool
) -> Orders:
    """Return the orders without a step that this run has gone back to already, and has saved others since.

    The same command then goes on, as each end of a run says; that it goes back once more is for a person to say.
    """
    if orders.step is None:
        return orders
    has = peers.writes and not forked and run.read_went_back() == orders.step
    if newest is None or newest.step <= orders.step or not json.loads(peers.exchange("went back", json.dumps(has))[0]):
        return orders
    show(
        f"this run has gone back to step {orders.step} already, and goes on from what it has saved since, up to step "
        f"{newest.step}; to go back once more, remove {run.went_back} and give the command again"
    )
    return orders.model_copy(update={"step": None})


def _changed(changed: list[Difference], place: str, *, has_checkpoint: bool) -> str:
    lines = "\n".join(f"  {change}" for change in changed)
    advice = "It has no checkpoint to go on from: undo the change, give another --dir, or begin anew here with --fork."
    if has_checkpoint:
        advice = (
            "Go on as a new run from its newest checkpoint with --fork, undo the change, or give another "
            "checkpoint.path or --dir."
        )
    return f"{place} holds a run that differs from this job in what a run is:\n{lines}\n{advice}"


def first_state(
    program: Program,
    origin: Origin,
    orders: Orders,
    phases: Phases,
    digester: Digester,
    kept: Executables,
    peers: Peers,
    show: Show,
) -> tuple[State, Restored | None]:
    """Return the state to start from without its base, and what was restored for it; None for a fresh state.

    A checkpoint is restored without initialising a state first, which would need the memory twice. With
    `origin.partial` arrays that it lacks are initialised.
    """
    abstract = without_base(program.abstract())
    wanted = {path: leaf for path, leaf in flat(abstract).items() if origin.takes(path)}
    with phases.entered(Phase.RESTORE):
        restored = restore(
            origin.root,
            wanted,
            step=origin.step,
            digester=digester,
            agree=partial(peers.agree, "restore"),
            report=lambda step, reason: show(f"checkpoint of step {step} refused: {reason}"),
            partial=origin.partial,
            masters=masters_paths(program.trained),
            beat=phases.beat,
        )
    if not origin.is_own:
        refuse_other_model(origin, restored, show)
    if restored is None:
        if orders.committed is not None:
            # Starting over below an unmounted volume would look like success.
            raise StorageError(
                f"{origin.root} holds no checkpoint, and this run has saved step {orders.committed} there: its volume "
                "may not be mounted. To begin anew where they were deleted, give the command again"
            )
        with phases.entered(Phase.INIT):
            return _initial(program, kept), None
    arrays = {path: _rounded(array, wanted[path].dtype) for path, array in restored.arrays.items()}
    arrays = _without_half_an_optimizer(arrays, restored.missing)
    missing = flat(abstract).keys() - arrays.keys()
    if not missing:
        return unflat(abstract, arrays), restored
    with phases.entered(Phase.INIT):
        fresh = flat(_initial(program, kept))
    masters = _masters(program, restored, missing)
    num_fresh = len(missing) - len(masters)
    if origin.is_own and arrays:
        show(f"step {restored.step}: restored, but for {num_fresh} arrays that it lacks and that start anew")
    return unflat(abstract, fresh | arrays | masters), restored


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
    return {
        master: restored.arrays[parameter].astype(jnp.float32)
        for parameter, master in masters_paths(program.trained).items()
        if master in missing and parameter in restored.arrays
    }


def _initial(program: Program, kept: Executables) -> State:
    state: State = kept.get("init", program.lower_init)()
    jax.block_until_ready(state)
    return state


def left_out_batches(
    run: RunDirectory, restored: Restored | None, identity: Mapping[str, Any], peers: Peers
) -> tuple[int, ...]:
    """Return the batches that the run itself has left out, ascending; none of a run whose batches are others.

    Both the directory and the checkpoint are asked: the last attempt noted a batch in the directory after its last
    checkpoint, and the checkpoint may be continued from in another directory. The directory's note is of the run whose
    identity it has: ask before that is replaced.
    """
    own = _left_out(run, restored, identity) if peers.writes else set()
    return tuple(json.loads(peers.exchange("left out", json.dumps(sorted(own)))[0]))


def _left_out(run: RunDirectory, restored: Restored | None, identity: Mapping[str, Any]) -> set[int]:
    noted = set(run.read_left_out())
    if noted and other_order(run.read_identity(), identity):
        run.forget_left_out()
        noted = set()
    if restored and not other_order(restored.manifest.identity, identity):
        noted |= {*restored.manifest.history.left_out}
    return noted


def note_identity(
    run: RunDirectory, identity: Mapping[str, Any], first_step: int, asked_step: int | None = None
) -> None:
    """Write the identity of the run that goes on after a step, and before it whether a fork goes back with that.

    The step that it was told to go back to is noted last: by then no later checkpoint of before counts.

    What goes on as the run of the last start repeats some of its own steps at most, unless it goes back to before that
    run. Where a fork goes on from the last step that was taken, none is repeated.
    """
    forks = run.read_forks()
    changed = recorded_differences(run.read_identity(), identity)
    if changed and run.read_went_back() is not None:
        run.write_went_back(None)
    if first_step < forks.since or changed:
        goes_back = first_step < last_step(run.metrics)
        run.write_forks(Forks(count=forks.count + goes_back, since=first_step))
    run.write_identity(identity)
    if asked_step is not None:
        run.write_went_back(asked_step)
