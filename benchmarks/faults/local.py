"""Faults of a run on simulated hosts: `shardwise run` on this machine."""

from collections.abc import Sequence

from benchmarks.faults import inputs, kills, storage
from benchmarks.faults.outcome import Row

ROWS: Sequence[Row] = (*kills.ROWS, *inputs.ROWS, *storage.ROWS)
NOT_SHOWN: Sequence[str] = ()
