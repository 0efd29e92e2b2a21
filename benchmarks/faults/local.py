"""Faults of a run on simulated hosts: `shardwise run` on this machine."""

from collections.abc import Sequence

from benchmarks.faults.outcome import Row

ROWS: Sequence[Row] = ()
NOT_SHOWN: Sequence[str] = ()
