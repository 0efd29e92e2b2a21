"""Host 0's claim of a run directory in a cluster: one job at a time writes to it, and of that job one host 0.

This is about volumes (`claim_in_bucket.py` is the same for buckets). Two things show that a directory is taken. One is
its lock (`protocol/takeover.py`), if the file system passes locks on between hosts; the lock of a machine that died may
then last for a minute or two. The other is the leader's record in `logs/leader.json`, which names its job and is
written every two seconds: it also counts if locks stay on their host. A record that no longer changes is a dead
leader's, whatever the clock of its machine has written there.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from shardwise.protocol.errors import RunDirectoryError, StorageError
from shardwise.protocol.leader_record import LeaderRecord
from shardwise.protocol.storage import in_words
from shardwise.protocol.takeover import hold

FREE_WITHIN_SECONDS = 120.0  # NFS keeps a dead machine's lock for 90 s
_STALE_SECONDS = 60.0  # the clocks of two machines may differ by some of it
_AGAIN_SECONDS = 1.0


@contextmanager
def claimed(directory: Path, run: str) -> Iterator[None]:
    """Hold the directory for a round of a job ("uid-round") until the block ends; wait for one that still holds it.

    Raises:
        RunDirectoryError: another job still uses it after `FREE_WITHIN_SECONDS`, or it cannot be written or locked.
        StorageError: its lock is still held then, or it cannot be read, written or locked now.

    """
    began = time.monotonic()
    deadline = began + FREE_WITHIN_SECONDS
    seen, seen_at = 0.0, began
    with ExitStack() as stack:
        while True:
            record = _of_another_job(directory, run)
            if record and record.written_at != seen:
                seen, seen_at = record.written_at, time.monotonic()
            other = job_of(record.run) if record and time.monotonic() - seen_at < _STALE_SECONDS else ""
            held = not other and _hold(directory, stack)
            if held or time.monotonic() >= deadline:
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


def _of_another_job(directory: Path, run: str) -> LeaderRecord | None:
    """Return the record of another job's leader that seems to live; None if there is none."""
    try:
        record = LeaderRecord.read(directory)
    except OSError as error:
        raise in_words(error, f"{directory}: cannot be read ({error.strerror})", RunDirectoryError) from error
    if record is None or record.code is not None or not record.led or job_of(record.run) == job_of(run):
        return None
    return record if time.time() - record.written_at < _STALE_SECONDS else None


def _hold(directory: Path, stack: ExitStack) -> bool:
    """Take the lock until the stack closes; return whether it was free."""
    try:
        stack.enter_context(hold(directory))
    except RunDirectoryError as error:
        if error.__cause__:  # it cannot be written: waiting does not help
            raise
        return False
    except OSError as error:
        message = (
            f"{directory}: cannot be locked ({error.strerror}); the run directory must be on a file system with flock, "
            "such as NFS 4"
        )
        raise in_words(error, message, RunDirectoryError) from error
    return True


def job_of(run: str) -> str:
    """Return the job of one of its rounds."""
    return run.rpartition("-")[0]
