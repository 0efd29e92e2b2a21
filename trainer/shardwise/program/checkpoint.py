"""`shardwise.checkpoint`: any tree of arrays, sharded, committed as a whole, and read back on any mesh.

Every process calls these functions, at the same steps.
"""

from typing import Any, SupportsIndex, TypeVar

from shardwise.program.library import current, whole
from shardwise.protocol.errors import UsageError

Tree = TypeVar("Tree")


def save(tree: Any, step: SupportsIndex) -> None:
    """Save the arrays of a tree as the checkpoint of `step`.

    They are copied before this returns, and may be donated then; the rest happens in the background, and the end of the
    program waits for it. A step that is saved already is left as it is.

    Raises:
        UsageError: the tree has no arrays, or such as no checkpoint can hold; or the step is below 0.
        CheckpointError: the checkpoint of this step is there, and holds other values; or what each process holds for
            itself is not equal on all.
        StorageError: the save before this one failed, and there is no older one.

    """
    run, number = current(), _step("checkpoint.save", step)
    run.complete()  # or the copy would wait for the devices' last step, and that step would seem to take no time
    run.checkpoints.save(tree, number)


def restore(like: Tree, *, step: SupportsIndex | None = None) -> tuple[Tree, int]:
    """Return the tree with the values of the newest checkpoint that is whole, or of that of `step`, and its step.

    `like` gives shapes, dtypes and shardings; the values may have been saved on another mesh. Before the first save it
    is returned as it is, with step 0. Its leaves may be `jax.ShapeDtypeStruct` if there is a checkpoint.

    Raises:
        UsageError: the step is below 0.
        CheckpointError: checkpoints are there, and none fits, or the one asked for does not.

    """
    asked = None if step is None else _step("checkpoint.restore", step)
    return current().checkpoints.restore(like, asked)


def _step(call: str, step: SupportsIndex) -> int:
    number = whole(call, step)
    if number < 0:
        raise UsageError(f"{call}(step={number}): expected a step from 0 on")
    return number
