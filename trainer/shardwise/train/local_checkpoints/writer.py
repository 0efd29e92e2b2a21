"""Save a state into the hosts' own folders while training goes on, each rank's part of it on two hosts.

    save()      waits for the save before it, copies this process's part to host memory, returns
    background  own files -> copies of a neighbour's -> manifest and marker -> the save before it is removed

All processes take these steps together, and go on once all have taken them. So if a host dies in between, the save
before it is still whole. What the folders do not take is reported, and training goes on.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import jax

from shardwise.protocol.storage import first_line
from shardwise.train.checkpoint import History, Manifest, layout
from shardwise.train.checkpoint.manifest import IdentityValue, encode
from shardwise.train.checkpoint.one_at_a_time import OneAtATime
from shardwise.train.checkpoint.put import put
from shardwise.train.checkpoint.save import array_entries
from shardwise.train.checkpoint.staging import Part, stage
from shardwise.train.checkpoint.writer import Listener
from shardwise.train.checkpoint.zarr import write_cause
from shardwise.train.digest import Digester, to_hex
from shardwise.train.local_checkpoints.folder import Parts, files_of, of_all_ranks
from shardwise.train.local_checkpoints.neighbours import Neighbours

_NUM_COPY_THREADS = 4
_MOST_LEFT_OUT = 64


class _UnsavedError(Exception):
    """A save that failed on some rank, as all ranks know."""


@dataclass(kw_only=True)
class _Save:
    """A save on its way; `parts` is emptied as the files are written, which gives their memory back."""

    step: int
    manifest: Callable[..., Manifest]
    started: float
    blocked_seconds: float
    bytes: int
    abstract: Mapping[str, jax.ShapeDtypeStruct]
    layouts: Mapping[str, layout.Layout]
    digests: Mapping[str, jax.Array]
    parts: deque[Part] = field(repr=False)


class LocalWriter:
    """Writes the local checkpoints of one attempt, one at a time, in the background; the newest whole one stays.

    After saves that failed in a row, the next ones that are due are left out: one after the first failure, two after
    the second, then four and so on. A full memory is not waited for at each.
    """

    def __init__(self, neighbours: Neighbours, *, run: str, attempt: int, listener: Listener) -> None:
        """`neighbours` are those of this process; all of the run have such a writer, and save the same steps."""
        self._neighbours, self._peers, self._folder = neighbours, neighbours.peers, neighbours.folder
        self._listener = listener
        self._manifest = partial(Manifest, kind="state", run=run, attempt=attempt)
        self._writing = OneAtATime("local-checkpoint")
        self._copiers = ThreadPoolExecutor(_NUM_COPY_THREADS, thread_name_prefix="local-checkpoint-copy")
        self._num_failed = self._left_out = 0

    def save(
        self,
        step: int,
        arrays: Mapping[str, jax.Array],
        *,
        digester: Digester,
        identity: Mapping[str, IdentityValue],
        history: History,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """Start to save `arrays` as the local checkpoint of `step`; they may be donated as soon as this returns.

        `digester` was built for these paths; `beat` is called while a save before it is waited for.
        """
        self.wait(beat)
        # Every process counts failures alike, since all of them know of each.
        if self._num_failed and self._left_out < min(_MOST_LEFT_OUT, 2 ** (self._num_failed - 1)):
            self._left_out += 1
            return
        self._left_out = 0
        started = time.monotonic()
        layouts = {path: layout.plan(a.shape, a.dtype.itemsize, a.sharding) for path, a in arrays.items()}
        parts = stage(arrays, of_all_ranks(layouts, arrays, self._peers.rank), self._copiers)
        save = _Save(
            step=step,
            manifest=partial(self._manifest, step=step, identity=dict(identity), history=history),
            started=started,
            blocked_seconds=time.monotonic() - started,
            bytes=sum(part.bits.nbytes for part in parts),
            abstract={path: jax.ShapeDtypeStruct(a.shape, a.dtype) for path, a in arrays.items()},
            layouts=layouts,
            digests=digester(arrays),
            parts=parts,
        )
        self._writing.begin(partial(self._write, save))

    def wait(self, beat: Callable[[], None] = lambda: None) -> None:
        """Wait until nothing is being written; `beat` is called as that gets on."""
        self._writing.wait(beat)

    def close(self) -> None:
        """Wait until nothing is being written, and end the threads."""
        try:
            self._writing.close()
        finally:
            self._copiers.shutdown()

    def _write(self, save: _Save) -> None:
        try:
            self._write_together(save)
        except _UnsavedError as error:
            self._failed(save.step, str(error))
            return
        self._num_failed = 0
        self._folder.keep_only(save.step)
        seconds = {"blockedSeconds": save.blocked_seconds, "seconds": time.monotonic() - save.started}
        self._listener.event({"event": "savedLocally", "step": save.step, **seconds, "bytes": save.bytes})

    def _write_together(self, save: _Save) -> None:
        rank, moved = self._peers.rank, self._writing.moved
        digests = to_hex(save.digests, partial(self._peers.agree, "local digests"))
        written_at = self._together("files", lambda: self._put(save))
        before = self._neighbours.before
        if before != rank:
            names = [name for name in files_of(save.layouts, before) if not self._folder.has(save.step, name)]
            self._together("copies", lambda: self._neighbours.fetch(save.step, {before: names}, moved))
        manifest = save.manifest(
            created=datetime.fromtimestamp(written_at, UTC),
            arrays=array_entries(save.abstract, save.layouts, digests),
        )
        parts = Parts(processes=self._peers.count, ranks=tuple(sorted({rank, before})))
        self._together("commit", lambda: self._folder.commit(save.step, parts, *encode(manifest)))

    def _put(self, save: _Save) -> None:
        self._folder.make_room(save.step)
        put(
            self._folder.store,
            save.step,
            save.abstract,
            save.layouts,
            save.parts,
            describes=False,
            moved=self._writing.moved,
        )

    def _together(self, what: str, act: Callable[[], None]) -> int:
        """Act, and wait until all processes have; return when that was, in seconds since the epoch by rank 0's clock.

        Raises:
            _UnsavedError: on all of them, for the first that failed.

        """
        reason = ""
        try:
            act()
        except (OSError, ValueError) as error:  # TensorStore raises ValueError for whatever a disk answers
            reason = write_cause(error) if what == "files" else first_line(error)
        texts = self._peers.exchange(f"local {what}", json.dumps([reason, int(time.time())]))
        outcomes: list[tuple[str, int]] = [json.loads(text) for text in texts]
        for rank, (why, _) in enumerate(outcomes):
            if why:
                raise _UnsavedError(why if self._peers.count == 1 else f"rank {rank}: {why}")
        self._writing.moved()
        return outcomes[0][1]

    def _failed(self, step: int, reason: str) -> None:
        self._folder.remove(step)
        self._num_failed += 1
        if self._num_failed == 1:
            self._listener.event({"event": "localSaveFailed", "step": step, "reason": reason})
