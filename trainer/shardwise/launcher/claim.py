"""Host 0's claim of a run directory in a cluster: one job at a time writes to it, and of that job one host 0.

Called by `pod.py`. Two things say that a directory is taken. Its lock (`job/takeover.py`), where the file system passes
locks on between hosts; there the lock of a machine that died may stand for a minute or two. And the leader's record in
`logs/gang.json`, which names its job and is written anew every two seconds, where locks stay on their own host.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from shardwise.job.errors import RunDirectoryError, StorageError
from shardwise.job.storage import in_words
from shardwise.job.takeover import hold
from shardwise.launcher.record import GangRecord

FREE_WITHIN_SECONDS = 120.0  # NFS keeps a dead machine's lock for 90 s
_STALE_SECONDS = 60.0  # the clocks of two machines may differ by some of it
_AGAIN_SECONDS = 1.0


@contextmanager
def claimed(directory: Path, run: str) -> Iterator[None]:
    """Hold the directory for a round of a job ("uid-round") until the block ends; waits for who still holds it.

    Raises:
        RunDirectoryError: another job still uses it after `FREE_WITHIN_SECONDS`, or it cannot be written or locked.
        StorageError: its lock still stands then, or it cannot be read, written or locked now.

    """
    deadline = time.monotonic() + FREE_WITHIN_SECONDS
    with ExitStack() as stack:
        while (other := _other_job(directory, run)) or not (held := _hold(directory, stack)):
            if time.monotonic() >= deadline:
                break
            time.sleep(_AGAIN_SECONDS)
        if other:
            raise RunDirectoryError(
                f"{directory}: another job ({other}) has been using this run directory for {FREE_WITHIN_SECONDS:g} s; "
                "wait for its end, or give this job another spec.pod.directory"
            )
        if not held:
            raise StorageError(
                f"{directory}: another host 0 has held its lock for {FREE_WITHIN_SECONDS:g} s: that of a node "
                "which the cluster has lost sight of, or one whose file server has not noticed its end"
            )
        yield


def _other_job(directory: Path, run: str) -> str:
    """The live job that uses the directory and is not this run's; "" where there is none."""
    try:
        record = GangRecord.read(directory)
    except OSError as error:
        raise in_words(error, f"{directory}: cannot be read ({error.strerror})", RunDirectoryError) from error
    if record is None or record.code is not None or not record.led or _job_of(record.run) == _job_of(run):
        return ""
    return _job_of(record.run) if time.time() - record.written_at < _STALE_SECONDS else ""


def _hold(directory: Path, stack: ExitStack) -> bool:
    """Whether the lock is ours now."""
    try:
        stack.enter_context(hold(directory))
    except RunDirectoryError as error:
        if error.__cause__:  # it cannot be written: waiting does not help
            raise
        return False
    except OSError as error:
        words = (
            f"{directory}: cannot be locked ({error.strerror}); the run directory must be on a file system with flock, "
            "such as NFS 4"
        )
        raise in_words(error, words, RunDirectoryError) from error
    return True


def _job_of(run: str) -> str:
    return run.rpartition("-")[0]
