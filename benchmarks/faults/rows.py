"""Every row of docs/faults.md, by place, and what cannot be shown on the machine that measures them."""

from collections.abc import Sequence

from benchmarks.faults import control_plane, in_cluster, local
from benchmarks.faults.outcome import Row

ROWS: Sequence[Row] = (*local.ROWS, *in_cluster.ROWS, *control_plane.ROWS)
NOT_SHOWN: Sequence[str] = (*local.NOT_SHOWN, *in_cluster.NOT_SHOWN)
