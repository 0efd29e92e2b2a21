"""What the tours show with: memory by device, what a program moves, who holds which shard, and pictures.

Called by the tours (`examples/tour/NN_name.py`) and by nothing else. It holds nothing that a tour is about: every idea
stays in the tour's own file.
"""

from show.calls import CallGraph, call_graph, draw_calls
from show.collectives import Collective, bytes_moved, collectives
from show.figures import picture
from show.memory import by_device, compiled, temporaries
from show.shards import draw, held
from show.tables import mib, table
from show.values import draw_values

__all__ = [
    "CallGraph",
    "Collective",
    "by_device",
    "bytes_moved",
    "call_graph",
    "collectives",
    "compiled",
    "draw",
    "draw_calls",
    "draw_values",
    "held",
    "mib",
    "picture",
    "table",
    "temporaries",
]
