"""Save a state to disk while training goes on.

    save()      waits for the save before it, copies this process's part to host memory, returns
    background  writes and commits it (`save`), then retention

A save that the storage did not take is reported, and training goes on towards the next one, as long as there is an
older checkpoint and for a bounded time. Files that retention could not delete are reported in the same way.

The copy is what makes it safe to donate the arrays to the next step: on CPU an array handed to numpy is a view, and
a view stops donation.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

import jax

from shardwise.job.spec import Keep
from shardwise.train.checkpoint import layout
from shardwise.train.checkpoint.manifest import NO_HISTORY, History, IdentityValue, Kind, Manifest
from shardwise.train.checkpoint.one_at_a_time import OneAtATime
from shardwise.train.checkpoint.retention import retain
from shardwise.train.checkpoint.save import Fence, Save, SaveTicket, UnsavedError
from shardwise.train.checkpoint.staging import stage
from shardwise.train.checkpoint.store import Store
from shardwise.train.digest import Digester
from shardwise.train.peers import ALONE, Peers

_NUM_COPY_THREADS = 4
_MAX_FAILED_SAVES = 3
_MAX_FAILING_SECONDS = 1800.0
"""Saves fail for good when so many in a row have, over so long a time."""


class Listener(Protocol):
    """Is called, from the thread that writes, with what becomes of the saves."""

    def saved(self, ticket: SaveTicket) -> None:
        """Note that a checkpoint is committed."""

    def event(self, record: Mapping[str, Any]) -> None:
        """Note that something could not be written or deleted."""


class CheckpointWriter:
    """Writes the checkpoints of one attempt of a run below `root`, one at a time, in the background.

    An error there is raised by the next `save`, `wait` or `close`: a `StorageError` or, if a person has to change
    something, a `CheckpointError` in plain words; whatever `fence` raises comes through as it is. But if an older
    checkpoint exists, a failed save only goes to the listener and its ticket's `error`, until too many have failed.
    """

    def __init__(
        self,
        root: str,
        *,
        keep: Keep,
        run: str,
        attempt: int,
        fence: Fence,
        processes: Peers = ALONE,
        listener: Listener | None = None,
        restored: bool = False,
    ) -> None:
        """`fence` surrounds each commit: it raises if a newer attempt of the run exists, and else keeps it waiting.

        `listener` is called right after a commit, and after failures. `processes` all have such a writer, and save the
        same steps. `restored`: the run began from a checkpoint.
        """
        self._store, self._keep = Store(root), keep
        self._origin: int | None = None
        self._processes, self._listener = processes, listener
        self._writing = OneAtATime("checkpoint-write")
        self._manifest = partial(Manifest, run=run, attempt=attempt)
        self._save = partial(Save, store=self._store, processes=processes, fence=fence, moved=self._writing.moved)
        self._has_older, self._num_failed = restored, 0
        self._failing_since: float | None = None
        self._copiers = ThreadPoolExecutor(_NUM_COPY_THREADS, thread_name_prefix="checkpoint-copy")

    def keep_origin(self, step: int | None) -> None:
        """Never delete this step, which the job names as its beginning; None for a job that begins elsewhere."""
        self._origin = step

    def save(
        self,
        step: int,
        arrays: Mapping[str, jax.Array],
        *,
        digester: Digester,
        identity: Mapping[str, IdentityValue],
        kind: Kind = "state",
        history: History = NO_HISTORY,
        overwrite: bool = False,
        beat: Callable[[], None] = lambda: None,
    ) -> SaveTicket:
        """Start to save `arrays` as the checkpoint of `step`; they may be donated as soon as this returns.

        `digester` was built for these paths; it is started after the copy, which on CPU it would slow down, and is
        waited for in the background. A committed checkpoint of this step with equal digests is left as it is; with
        others it is an error, unless `overwrite`. `beat` is called while a save before it is waited for.
        """
        self.wait(beat)
        started = time.monotonic()
        layouts = {path: layout.plan(a.shape, a.dtype.itemsize, a.sharding) for path, a in arrays.items()}
        parts = stage(arrays, layouts, self._copiers)
        num_bytes = sum(part.bits.nbytes for part in parts)
        ticket = SaveTicket(step=step, bytes=num_bytes, blocked_seconds=time.monotonic() - started)
        save = self._save(
            step=step,
            manifest=partial(self._manifest, kind=kind, step=step, identity=dict(identity), history=history),
            overwrite=overwrite,
            started=started,
            failing_since=self._failing_since,
            abstract={path: jax.ShapeDtypeStruct(a.shape, a.dtype) for path, a in arrays.items()},
            layouts=layouts,
            digests=digester(arrays),
            parts=parts,
            ticket=ticket,
        )
        self._writing.begin(partial(self._write, save))
        return ticket

    def wait(self, beat: Callable[[], None] = lambda: None) -> None:
        """Wait until nothing is being written or deleted; raise what went wrong since the last call.

        `beat` is called as that gets on, file by file.
        """
        self._writing.wait(beat)

    def close(self) -> None:
        """Wait like `wait`, and end the threads."""
        try:
            self._writing.close()
        finally:
            self._copiers.shutdown()

    def _write(self, save: Save) -> None:
        try:
            written = save.write()
        except UnsavedError as unsaved:
            self._failed(save, unsaved)
            return
        self._has_older, self._num_failed, self._failing_since = True, 0, None
        save.ticket.durable_seconds = time.monotonic() - save.started
        if self._listener:
            self._listener.saved(save.ticket)
        if written and self._processes.writes:
            reason = retain(self._store, save.step, self._keep, self._origin, self._writing.moved)
            if reason and self._listener:
                self._listener.event({"event": "retentionFailed", "step": save.step, "reason": reason})

    def _failed(self, save: Save, unsaved: UnsavedError) -> None:
        """Count a failure as every process counts it, by rank 0's clock, so that all give up together."""
        if self._failing_since is None:
            self._failing_since = save.started
        self._num_failed += 1
        save.ticket.error = unsaved.error
        if self._listener:
            event = {"event": "saveFailed", "step": save.step, "inARow": self._num_failed, "reason": str(unsaved)}
            self._listener.event(event)
        too_many = self._num_failed >= _MAX_FAILED_SAVES and unsaved.failing_seconds >= _MAX_FAILING_SECONDS
        if too_many or not self._has_older:
            raise unsaved.error
