"""The run's own checkpoints, which may be in another folder than the one that its job names now."""

from shardwise.job.paths import absolute
from shardwise.job.spec import TrainingJob
from shardwise.protocol.contract import checkpoint_root
from shardwise.protocol.errors import CheckpointError, RunDirectoryError
from shardwise.protocol.orders import Orders
from shardwise.train.checkpoint import Manifest, steps
from shardwise.train.origin import newest_manifest, origin_below
from shardwise.train.peers import Peers
from shardwise.train.run_directory import RunDirectory

_ADVICE = (
    "To go on from them, set checkpoint.path to that folder (a relative one begins where the command is given), or "
    "copy them to the new one; to begin another run, give another --dir, with training.startFrom to begin it from one "
    "of them; to begin anew here, add --fork."
)


def newest_of_run(run: RunDirectory, job: TrainingJob, root: str, orders: Orders, peers: Peers) -> Manifest | None:
    """Return the newest manifest below `root` that rank 0 can read; None if the run has saved nothing yet.

    Raises:
        RunDirectoryError: nothing is below `root`, the run has checkpoints in the folder of its last start, and
            `orders.fork` is not set: it would begin anew without a word. Or the checkpoint that it goes on from has
            taken more steps than the job has: there would be nothing to do, and the run would be of fewer than it took.

    """
    newest = newest_manifest(root, peers)
    if newest is None and not orders.fork:
        refusal = _elsewhere(run, root) if peers.writes else ""
        if refusal := peers.exchange("elsewhere", refusal)[0]:
            raise RunDirectoryError(refusal)
    is_own = newest is not None and (orders.fork or newest.run == job.metadata.name)  # another run's is refused as that
    if newest is not None and is_own and newest.kind == "state":
        _refuse_fewer_steps(run, job.spec.training.steps, newest.step if orders.step is None else orders.step)
    return newest


def _refuse_fewer_steps(run: RunDirectory, given: int, taken: int) -> None:
    if taken > given:
        raise RunDirectoryError(
            f"training.steps: given {given}, expected at least {taken}, which the run in {run.path} has taken already; "
            "to train from an earlier checkpoint again, name it by --step"
        )


def _elsewhere(run: RunDirectory, root: str) -> str:
    """Return what to tell a person if the run's checkpoints are in another folder; "" if they are not."""
    before = run.read_job()
    if before is None or steps(root):  # what is there and cannot be read is refused as the state is restored
        return ""
    nothing = f"{absolute(root)} holds no checkpoint"
    old = checkpoint_root(before.spec.training.checkpoint.path, run.path)
    try:
        own = [step for step in steps(old) if step != origin_below(before, old)]
    except CheckpointError as error:
        return f"{nothing}, and the folder of the run's last start cannot be read: {error}. {_ADVICE}"
    if not own:  # a folder that is gone, or empty, has nothing to go on from: the run begins anew
        return ""
    return f"{nothing}, and those of this run, up to step {own[-1]}, are in {old}. {_ADVICE}"
