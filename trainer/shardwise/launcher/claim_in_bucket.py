"""Host 0's claim of a run directory in a bucket: one job at a time writes to it, and of that job the newest host 0.

A bucket has no locks, so it is a lease (`bucket/lease.py`). The same job's next host 0 gets it at once: the one before
may be on a node that the cluster has lost sight of, and learns from its next write that it is no longer host 0. Only a
pod whose job names a bucket imports this.
"""

import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from shardwise.bucket.lease import Lease
from shardwise.launcher.agent.run_copy import RunCopy
from shardwise.launcher.claim import FREE_WITHIN_SECONDS, job_of
from shardwise.protocol.contract import BUCKET_LEASE, RUN_ID
from shardwise.protocol.errors import RunDirectoryError
from shardwise.protocol.files import replace_file


@contextmanager
def claimed_in_bucket(copy: RunCopy, run: str, name: str) -> Iterator[None]:
    """Hold it for a round ("uid-round") of the job `name` until the block ends; this host's folder has what is there.

    Raises:
        RunDirectoryError: another job still uses it after `FREE_WITHIN_SECONDS`, or it cannot be read.
        StorageError, CheckpointError: the bucket cannot be used.

    """
    job, deadline = job_of(run), time.monotonic() + FREE_WITHIN_SECONDS
    lease = Lease(copy.url, run=job, name=name, directory=copy.url, file=BUCKET_LEASE, field="spec.pod.directory")
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(lease.held(_say))
                break
            except RunDirectoryError:  # it lives: this took a few seconds
                if time.monotonic() >= deadline:
                    raise
        copy.is_newest = lease.is_own
        copy.take_kept()
        if not (copy.directory / RUN_ID).exists():  # every host 0 of the run has to be the same run to its checkpoints
            replace_file(copy.directory / RUN_ID, f"{secrets.token_hex(8)}\n", durable=False)
        yield


def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")
