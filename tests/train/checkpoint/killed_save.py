"""A program for test_kill.py: saves step 1, then dies of SIGKILL at a named moment of the save of step 2.

Called as `killed_save.py ROOT ...`: each root is a folder named after its moment, and gets a process of its own.
"""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NoReturn
from unittest import mock

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["NPROC"] = "32"

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardwise.job.spec import Keep
from shardwise.train.checkpoint import CheckpointWriter, layout, put, retention, save
from shardwise.train.digest import Digester

BEFORE_MARKER = "before the marker"
DEATHS = {
    "among the files": (put, "_start_write", 3),
    "before the manifest": (save, "encode", 0),
    "after the marker": (retention, "expired", 0),
    "in retention": (shutil, "rmtree", 0),
}
"""{moment: the module and function whose call after so many is the last}."""


def die(*_: object, **__: object) -> NoReturn:
    """As a machine would, without a last word."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def nothing() -> AbstractContextManager[None]:
    """A fence that lets the save pass."""
    return nullcontext()


def after(calls: int, function: Callable[..., object]) -> Callable[..., object]:
    """`function` for so many calls, then death."""
    counts = iter(range(calls))

    def counted(*args: object) -> object:
        return die() if next(counts, None) is None else function(*args)

    return counted


def main(root: str) -> None:
    """Save, arm, save again."""
    moment = Path(root).name
    layout.JOIN_UP_TO_BYTES = 0
    sharding = NamedSharding(Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "tensor")), PartitionSpec("data"))
    abstract = {path: jax.ShapeDtypeStruct((64, 64), np.dtype(np.float32), sharding=sharding) for path in ("a", "b")}
    digester = Digester(abstract)
    fence = after(1, nothing) if moment == BEFORE_MARKER else nothing
    saver = CheckpointWriter(root, keep=Keep(last=1), run="killed", attempt=0, fence=fence)  # type: ignore[arg-type]
    for step in (1, 2):
        if step == 2 and moment in DEATHS:
            where, name, calls = DEATHS[moment]
            mock.patch.object(where, name, after(calls, getattr(where, name))).start()
        arrays = {p: jax.device_put(np.full((64, 64), step, np.float32), sharding) for p in abstract}
        saver.save(step, arrays, digester=digester, identity={})
        saver.wait()
    raise SystemExit("survived")


if __name__ == "__main__":
    children = []
    for root in sys.argv[1:]:  # forked before JAX starts a thread: one import for all
        if (child := os.fork()) == 0:
            main(root)
        children.append(child)
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
