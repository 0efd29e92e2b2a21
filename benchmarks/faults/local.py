"""Faults of a run on simulated hosts: `shardwise run` on this machine."""

from collections.abc import Sequence

from benchmarks.faults import inputs, kills, programs, storage
from benchmarks.faults.outcome import Row

ROWS: Sequence[Row] = (*kills.ROWS, *programs.ROWS, *inputs.ROWS, *storage.ROWS)
NOT_SHOWN: Sequence[str] = (
    (
        "A machine whose clock is set: that takes a right that is not here, and namespaces have no wall clock. What "
        "Python reads in a run's processes is off by an hour instead; what TensorStore and Ray read is not."
    ),
    (
        "A disk that fails: this kernel has no device mapper. Errors and delays are put into the system calls of a "
        "trainer (strace), and volumes are memory disks."
    ),
    (
        "A slow accelerator: simulated devices share the machine's cores. Rank 1 is given more work where its own "
        "speed is measured."
    ),
    "On one machine, the kernel's killer of processes for lack of memory: a trainer is refused what it asks for.",
)
