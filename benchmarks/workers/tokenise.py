"""Tokenises text again and again: `tokenise FOLDER plain|shardwise PROCESSES`. The rate is in bytes a second.

With `arithmetic` it takes a digest of memory, in so many threads, which hold no lock of Python meanwhile.

The folder holds `text.jsonl` and `tokenizer.json` (`benchmarks.tokenising` makes them). Plain is the library alone on
texts that are in memory already, in so many threads; Shardwise reads the file, and brings a whole store to the disk.
"""

import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from benchmarks.workers.serve import serve
from tokenizers import Tokenizer

from shardwise.job.spec.data import Data
from shardwise.launcher.ray.tasks import tasks_here
from shardwise.train.data.store_builder import Run, build

PART_BYTES = 2_000_000  # so that two processes end together
_BATCH = 256
_DIGESTED_BYTES = 256 << 20


def main(folder: Path, peer: str, processes: int) -> None:
    """Answer a turn with a rate, as `benchmarks.turns` asks."""
    size_bytes = (folder / "text.jsonl").stat().st_size
    if peer == "plain":
        os.environ.update(RAYON_NUM_THREADS=str(processes), TOKENIZERS_PARALLELISM=str(processes > 1).lower())
        serve(_timed(_plain(folder), size_bytes), {})
        return
    if peer == "arithmetic":
        memory = bytes(_DIGESTED_BYTES)
        with ThreadPoolExecutor(processes) as pool:
            work = partial(pool.map, hashlib.sha256, [memory] * processes)
            serve(_timed(lambda: list(work()), _DIGESTED_BYTES * processes), {})
        return
    with _runner(processes) as run:
        serve(_timed(lambda: _shardwise(folder, run), size_bytes), {})


def _timed(work: Callable[[], object], size_bytes: int) -> Callable[[], float]:
    def turn() -> float:
        began = time.perf_counter()
        work()
        return size_bytes / (time.perf_counter() - began)

    return turn


def _plain(folder: Path) -> Callable[[], None]:
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [json.loads(line)["text"] for line in (folder / "text.jsonl").read_text(encoding="utf-8").splitlines()]

    def work() -> None:
        for start in range(0, len(texts), _BATCH):
            for encoding in library.encode_batch_fast(texts[start : start + _BATCH], add_special_tokens=False):
                np.array(encoding.ids, np.uint16)

    return work


@contextmanager
def _runner(processes: int) -> Iterator[Run]:
    if processes == 1:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        yield map
        return
    with tempfile.TemporaryDirectory(prefix="sw-") as home, tasks_here(processes, Path(home)) as run:
        yield run


def _shardwise(folder: Path, run: Run) -> None:
    sources = [{"name": "text", "paths": [str(folder / "text.jsonl")]}]
    data = Data.model_validate({"train": sources, "tokenizer": str(folder / "tokenizer.json")})
    to = Path(tempfile.mkdtemp(dir=folder))
    build(data, str(to), run=run, progress=lambda *_: None, part_bytes=PART_BYTES)
    shutil.rmtree(to)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
