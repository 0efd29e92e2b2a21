"""Where a run begins: from its newest usable checkpoint, as a fork of one, or fresh.

Only rank 0 decides what is there, and the others follow it: on shared storage a host may not yet see a new checkpoint,
or still see a removed one.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from shardwise.job.identity import Difference, other_order, recorded_differences
from shardwise.protocol.errors import RunDirectoryError
from shardwise.protocol.orders import Orders
from shardwise.train.checkpoint import Manifest, Restored
from shardwise.train.metrics import last_step
from shardwise.train.peers import Peers
from shardwise.train.run_directory import Forks, RunDirectory

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
