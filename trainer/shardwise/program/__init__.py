"""The library for an own program that `shardwise run` starts: `import shardwise; shardwise.init()`.

    library      the functions: init, report, should_save, should_stop, save_now
    checkpoint   save and restore, of any tree of arrays
    run          one process's part in a run, from `init()` to the end of the script
    agreement    one answer for all processes: whether to save or to stop after this step
    checkpoints, leaves, record, endings, exits    what a run is made of

It imports JAX, and nothing of the trainer's models. `shardwise` itself has the names, and imports this when it is asked
for one.
"""

from shardwise.program import checkpoint
from shardwise.program.library import init, report, save_now, should_save, should_stop
from shardwise.program.run import Run

__all__ = ["Run", "checkpoint", "init", "report", "save_now", "should_save", "should_stop"]
