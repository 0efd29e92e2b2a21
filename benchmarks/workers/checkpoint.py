"""One saver in a process of its own: `SAVER save|restore|soak TREE FOLDER DATA TENSOR [SAVES]`.

`save` saves twice (the second one is the usual one: imports and thread pools are there) and leaves the second behind;
`restore` reads that one after the file cache has forgotten it, and compares every bit outside of the clock. FOLDER
may be a bucket's, too.
"""

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

from benchmarks.workers.serve import say, simulate

simulate(8)

import jax  # noqa: E402  reads the environment that `simulate` sets
import numpy as np  # noqa: E402
import psutil  # noqa: E402
from benchmarks.workers.savers import SAVERS, Saver, Shardwise  # noqa: E402
from benchmarks.workers.tree import TREES, Abstract, Arrays, abstract, build, num_bytes, values_of  # noqa: E402

STEP = 2
LOOK_EVERY_SECONDS = 0.01


class Resident:
    """Resident memory while the block runs, above what it was before: the most, and what is left."""

    def __enter__(self) -> Self:
        self._process = psutil.Process()
        self._before = self._most = self._process.memory_info().rss
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        left = self._process.memory_info().rss
        self.grown_bytes = max(self._most, left) - self._before
        self.left_bytes = left - self._before

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_EVERY_SECONDS):
            self._most = max(self._most, self._process.memory_info().rss)


def main() -> None:
    """Do what the arguments say."""
    name, verb, tree, folder, data, tensor, *rest = sys.argv[1:]
    like = abstract(TREES[tree], int(data), int(tensor))
    root = Path(folder)
    saver = SAVERS[name](folder)
    if isinstance(saver, Shardwise):
        saver.prepare(like)
    match verb:
        case "save":
            say(save(saver, like, root))
        case "restore":
            say(restore(saver, like, root))
        case "soak":
            say(soak(saver, like, int(rest[0])))


def save(saver: Saver, like: Abstract, root: Path) -> dict[str, Any]:
    """Seconds that the save holds up the loop, and until it is durable; memory, files."""
    tree = jax.block_until_ready(build(like))
    saver.save(STEP - 1, tree).wait()
    with Resident() as resident:
        start = time.perf_counter()
        saving = saver.save(STEP, tree)
        blocked = time.perf_counter() - start
        saving.wait()
        durable = time.perf_counter() - start
    return {
        "blocked_seconds": blocked,
        "durable_seconds": durable,
        "grown_bytes": resident.grown_bytes,
        "left_bytes": resident.left_bytes,
        "tree_bytes": num_bytes(like),
        "files": len(_files(root)),
        "disk_bytes": sum(file.stat().st_size for file in _files(root)),
    }


def restore(saver: Saver, like: Abstract, root: Path) -> dict[str, Any]:
    """Seconds and memory of reading the tree back; what comes back is what was saved."""
    _forget(root)
    _have_memory(4 * num_bytes(like))
    with Resident() as resident:
        start = time.perf_counter()
        restored = jax.block_until_ready(saver.restore(STEP, like))
        seconds = time.perf_counter() - start
    if restored is not None:
        for path, values in values_of(like):
            assert np.array_equal(values, np.asarray(restored[path])), path
    return {"seconds": seconds, "grown_bytes": resident.grown_bytes}


def soak(saver: Saver, like: Abstract, saves: int) -> dict[str, Any]:
    """Resident memory after every save of a state that changes each time, in place, as in training.

    A step that does not donate its state lets the process grow by some 100 MiB without a single save: XLA's new and old
    buffers break up what malloc holds.
    """
    tree, process, resident = build(like), psutil.Process(), []
    shardings = {path: array.sharding for path, array in tree.items()}
    update = jax.jit(_add_one, donate_argnums=0, out_shardings=shardings)
    for step in range(saves):
        tree = update(tree)
        saver.save(step, tree).wait()
        resident.append(process.memory_info().rss)
    return {"resident_bytes": resident, "tree_bytes": num_bytes(like)}


def _add_one(tree: Arrays) -> Arrays:
    return {path: array + 1 for path, array in tree.items()}


def _files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def _have_memory(size_bytes: int) -> None:
    """Touch so much memory and free it.

    The first touch of a page of a virtual machine may be a request to its host, which takes ten times as long as all
    else here, and falls on whoever happens to come first.
    """
    np.empty(size_bytes, np.uint8)[:: os.sysconf("SC_PAGE_SIZE")] = 1


def _forget(root: Path) -> None:
    """Drop the files from the page cache."""
    for path in _files(root):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    main()
