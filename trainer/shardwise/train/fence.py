"""Who may commit a checkpoint: the run that holds the folder, and of its attempts the newest."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from shardwise.bucket.lease import Lease
from shardwise.train.run_directory import RunDirectory


@contextmanager
def fenced(
    root: str, directory: RunDirectory, name: str, *, show: Callable[[str], None], beat: Callable[[], None]
) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Hold the folder of checkpoints for the run `name` while the block runs, and yield the guard of one commit.

    The guard refuses the commit if a newer attempt, or another run, has taken over meanwhile.

    Args:
        root: the folder, or its URL.
        directory: of the run.
        name: of the run.
        show: gets a line if another run is waited for.
        beat: is called about once a second then.

    """
    lease = Lease(root, run=directory.run_id(), name=name, directory=str(directory.path))

    @contextmanager
    def commit() -> Iterator[None]:
        with directory.hold_attempt():
            lease.renew()
            yield

    with lease.held(show, beat):
        yield commit
