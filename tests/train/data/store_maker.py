"""A process that makes token stores: `store_maker.py DATA.JSON FOLDER WORKERS [pause]`, with parts of PART_BYTES.

0 workers is this process alone, without Ray. With `pause` it prints "paused" when half of it is there, and goes on
when it reads a line. The last line is "made N FOLDER" of the only source.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardwise.job.spec.data import Data
from shardwise.launcher.ray.tasks import tasks_here
from shardwise.train.data.store_builder import Run, build

PART_BYTES = 20_000


def say(line: str) -> None:
    """Prints at once."""
    print(line, flush=True)  # noqa: T201  its reader is a test


@contextmanager
def runner(workers: int) -> Iterator[Run]:
    """What runs the tasks."""
    if not workers:
        yield map
        return
    with tempfile.TemporaryDirectory(prefix="sw-") as home, tasks_here(workers, Path(home)) as run:
        yield run


def main(data: str, to: str, workers: str, *options: str) -> None:
    """Makes the store of the only source."""
    paused = "pause" not in options

    def progress(doing: str, _: int, done: int, of: int) -> None:
        nonlocal paused
        if doing.startswith("tokenising") and 2 * done >= of and not paused:
            paused = True
            say("paused")
            sys.stdin.readline()

    read = Data.model_validate_json(Path(data).read_text(encoding="utf-8"))
    with runner(int(workers)) as run:
        (made,) = build(read, to, run=run, progress=progress, part_bytes=PART_BYTES)
    say(f"made {made.num_made} {made.url}")


main(*sys.argv[1:])
