"""One process of a run whose hosts make stores together: `sharer.py RANK COUNT PORT DATA.JSON CACHE [pause]`.

With `pause` it prints "paused" once it has made two parts, and goes on when it reads a line. It prints "made N" for
each part that it makes itself, and "tokens DIGEST" at the end.
"""

import hashlib
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from shardwise.job.spec.data import Data
from shardwise.protocol.orders import Orders
from shardwise.train.data import opening, store_builder
from shardwise.train.data.dataset import Reading, prepare
from shardwise.train.data.opening import Watch
from shardwise.train.data.part_file import PartCounts
from shardwise.train.data.store_tasks import PartTask, make_part
from shardwise.train.peers import Peers

PART_BYTES = 20_000


def say(line: str) -> None:
    """Prints at once, and a line as one: two threads may have something to say."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(rank: str, count: str, port: str, data: str, cache: str, *options: str) -> None:
    """Prepares the data together with the others."""
    orders = Orders(
        job_file="",
        directory="",
        progress="",
        stacks="",
        rank=int(rank),
        num_processes=int(count),
        coordinator=f"127.0.0.1:{port}",
        attempt=0,
        fork=False,
        step=None,
        deadline_seconds=None,
    )
    peers = Peers.join(orders, limit_seconds=60)
    made: list[int] = []

    def told(task: PartTask, beat: Callable[[], None]) -> tuple[int, PartCounts, bool]:
        if "pause" in options and len(made) >= 2:  # two threads count: one may pass over the number
            say("paused")
            sys.stdin.readline()
        result = make_part(task, beat)
        if result[2]:
            made.append(task.number)
            say(f"made {task.number}")
        return result

    store_builder.make_part = told  # type: ignore[attr-defined]
    opening.build = partial(store_builder.build, part_bytes=PART_BYTES)  # type: ignore[attr-defined]
    section = Data.model_validate_json(Path(data).read_text(encoding="utf-8"))
    reading = Reading(seq_len=64, sequences=8, steps=32, seed=0)
    found = prepare(section, reading, cache_root=Path(cache), watch=Watch(hosts=peers, say=say))
    tokens = found.train.rows(np.arange(256)).tokens
    say(f"tokens {hashlib.sha256(tokens.tobytes()).hexdigest()} {found.fingerprint}")
    peers.exchange("end", "")
    os._exit(0)


main(*sys.argv[1:])
