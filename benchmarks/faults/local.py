"""Faults of a run on simulated hosts: `shardwise run` on this machine."""

from collections.abc import Sequence

from benchmarks.faults import kills
from benchmarks.faults.outcome import Row

ROWS: Sequence[Row] = (*kills.ROWS,)
NOT_SHOWN: Sequence[str] = ()
