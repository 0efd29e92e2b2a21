"""Save a state to disk while training goes on.

    save()      waits for the save before it, copies this process's part to host memory, returns
    background  digests -> room -> array files -> manifest.json, fence, COMMITTED, retention

A save that the storage did not take is reported, and training goes on towards the next one, as long as there is an
older checkpoint and for a bounded time. Files that retention could not delete are reported in the same way.

The copy is what makes it safe to donate the arrays to the next step: on CPU an array handed to numpy is a view, and
a view stops donation. Every process writes its own part of the array files; rank 0 alone makes room and commits, after
all have reported that theirs are durable.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol

import jax

from shardwise.job.spec import Keep
from shardwise.protocol.contract import checkpoint_name
from shardwise.protocol.errors import CheckpointError, ShardwiseError, StorageError
from shardwise.protocol.storage import first_line, in_words, may_pass, patiently
from shardwise.train.checkpoint import layout, zarr
from shardwise.train.checkpoint.manifest import (
    ARRAYS,
    MANIFEST,
    MARKER,
    NO_HISTORY,
    ArrayEntry,
    History,
    IdentityValue,
    Kind,
    Manifest,
    decode,
    encode,
)
from shardwise.train.checkpoint.put import put
from shardwise.train.checkpoint.retention import expired
from shardwise.train.checkpoint.staging import Part, stage
from shardwise.train.checkpoint.store import Store
from shardwise.train.digest import Digester, combine, to_hex
from shardwise.train.peers import ALONE, Peers

_NUM_COPY_THREADS = 4
_LOOK_SECONDS = 0.5
_MAX_FAILED_SAVES = 3
_MAX_FAILING_SECONDS = 1800.0
"""Saves fail for good when so many in a row have, over so long a time."""


@dataclass(kw_only=True)
class SaveTicket:
    """What became of one save.

    `durable_seconds`, from the call on, and `digest`, of all arrays together, are None until it is committed; `error`
    is why it is not.
    """

    step: int
    bytes: int
    blocked_seconds: float
    durable_seconds: float | None = None
    digest: str | None = None
    error: ShardwiseError | None = None


@dataclass(kw_only=True)
class _Save:
    """A save on its way; `parts` is emptied as the files become durable, which gives their memory back."""

    step: int
    kind: Kind
    overwrite: bool
    started: float
    identity: Mapping[str, IdentityValue]
    history: History
    abstract: Mapping[str, jax.ShapeDtypeStruct]
    layouts: Mapping[str, layout.Layout]
    digests: Mapping[str, jax.Array]
    parts: deque[Part] = field(repr=False)
    ticket: SaveTicket


def set_aside(root: str, after: int) -> list[int]:
    """Set the committed checkpoints after a step aside, so that the run that goes on from it no longer has them.

    Return their steps, ascending. Raise `StorageError` or `CheckpointError`; then some may still count.
    """
    store = Store(root)
    try:
        later = [step for step, committed in patiently(store.steps).items() if committed and step > after]
        for step in later:
            patiently(partial(store.set_aside, step))
    except (ValueError, OSError) as error:
        raise in_words(error, f"{root}: {first_line(error)}", CheckpointError) from error
    return later


class Listener(Protocol):
    """Is called, from the thread that writes, with what becomes of the saves."""

    def saved(self, ticket: SaveTicket) -> None:
        """A checkpoint is committed."""

    def event(self, record: Mapping[str, Any]) -> None:
        """Something could not be written or deleted."""


class _UnsavedError(Exception):
    """A save that the storage did not take: the error, and for how long saves have failed by rank 0's clock."""

    def __init__(self, error: ShardwiseError, failing_seconds: float) -> None:
        super().__init__(str(error))
        self.error, self.failing_seconds = error, failing_seconds


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
        fence: Callable[[], AbstractContextManager[None]],
        processes: Peers = ALONE,
        listener: Listener | None = None,
        restored: bool = False,
    ) -> None:
        """`fence` surrounds each commit: it raises if a newer attempt of the run exists, and else keeps it waiting.

        `listener` is called right after a commit, and after failures. `processes` all have such a writer, and save the
        same steps. `restored`: the run began from a checkpoint.
        """
        self._store = Store(root)
        self._keep = keep
        self._run = run
        self._attempt = attempt
        self._fence, self._processes = fence, processes
        self._listener = listener
        self._has_older, self._num_failed, self._failing_since = restored, 0, 0.0
        self._copiers = ThreadPoolExecutor(_NUM_COPY_THREADS, thread_name_prefix="checkpoint-copy")
        self._background = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-write")
        self._pending: Future[None] | None = None
        self._moves = 0

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
        save = _Save(
            step=step,
            kind=kind,
            overwrite=overwrite,
            started=started,
            identity=dict(identity),
            history=history,
            abstract={path: jax.ShapeDtypeStruct(a.shape, a.dtype) for path, a in arrays.items()},
            layouts=layouts,
            digests=digester(arrays),
            parts=parts,
            ticket=ticket,
        )
        self._pending = self._background.submit(self._write, save)
        return ticket

    def wait(self, beat: Callable[[], None] = lambda: None) -> None:
        """Wait until nothing is being written; raise what went wrong since the last call.

        `beat` is called as the writing gets on, file by file.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        moves: int | None = None
        while wait([pending], timeout=_LOOK_SECONDS).not_done:
            if self._moves != moves:
                moves = self._moves
                beat()
        pending.result()

    def _moved(self) -> None:
        self._moves += 1

    def close(self) -> None:
        """Wait like `wait`, and end the threads."""
        try:
            self.wait()
        finally:
            self._copiers.shutdown()
            self._background.shutdown()

    def _write(self, save: _Save) -> None:
        try:
            written = self._written(save)
        except _UnsavedError as unsaved:
            self._failed(save, unsaved)
            return
        self._has_older, self._num_failed = True, 0
        save.ticket.durable_seconds = time.monotonic() - save.started
        if self._listener:
            self._listener.saved(save.ticket)
        if written and self._processes.writes:
            self._retain(save.step)

    def _written(self, save: _Save) -> bool:
        """Commit the checkpoint; return whether it had to be written, and was not there before."""
        # Every rank takes part, so this comes before anything that one rank alone may fail at.
        digests = to_hex(save.digests, partial(self._processes.agree, "save digests"))
        save.ticket.digest = combine(digests)
        writes = self._processes.writes
        if any(self._together(save, "room", lambda: writes and self._is_there(save, digests))):
            return False
        # Rank 0 commits only after this exchange: by then every rank's files are durable.
        self._together(save, "files", lambda: self._put(save))
        # The others wait for the commit too, so that none counts a save as done which rank 0 could not commit.
        self._together(save, "commit", lambda: writes and self._commit(save, digests))
        return True

    def _failed(self, save: _Save, unsaved: _UnsavedError) -> None:
        """Count a failure as every process counts it, by rank 0's clock, so that all give up together."""
        if self._num_failed == 0:
            self._failing_since = save.started
        self._num_failed += 1
        save.ticket.error = unsaved.error
        if self._listener:
            event = {"event": "saveFailed", "step": save.step, "inARow": self._num_failed, "reason": str(unsaved)}
            self._listener.event(event)
        too_many = self._num_failed >= _MAX_FAILED_SAVES and unsaved.failing_seconds >= _MAX_FAILING_SECONDS
        if too_many or not self._has_older:
            raise unsaved.error

    def _put(self, save: _Save) -> bool:
        describes = self._processes.writes
        has_files = describes or bool(save.parts)  # another rank may not have made the folder yet
        put(self._store, save.step, save.abstract, save.layouts, save.parts, describes=describes, moved=self._moved)
        if has_files:
            self._store.flush(save.step, [ARRAYS])
        return True

    def _commit(self, save: _Save, digests: Mapping[str, str]) -> bool:
        manifest, marker = encode(self._manifest(save, digests))
        patiently(partial(self._store.write, save.step, MANIFEST, manifest))
        self._store.flush(save.step, [])  # once: what a flush could not write, the system calls written the next time
        # The fence keeps a newer attempt waiting: were it taken earlier, the flush would hold that attempt up.
        with self._fence():
            patiently(partial(self._store.write, save.step, MARKER, marker))
        return True

    def _together(self, save: _Save, what: str, act: Callable[[], bool]) -> list[bool]:
        """Act, and wait until all processes have; return each one's result, or raise what went wrong with any."""
        failure: Exception | None = None
        done, reason = False, ""
        try:
            done = act()
            self._moved()
        except (ValueError, OSError) as error:  # TensorStore raises ValueError for whatever a store answers
            failure, reason = error, zarr.write_cause(error)
        except ShardwiseError as error:
            failure, reason = error, str(error)
        outcome = {
            "done": done,
            "reason": reason,
            "refused": isinstance(failure, ShardwiseError),
            "passes": failure is not None and may_pass(failure),
            "failing_seconds": time.monotonic() - self._failing_since if self._num_failed else 0.0,
        }
        # A rank that failed still takes part in the exchange; raising before it would leave the others waiting.
        outcomes = [json.loads(text) for text in self._processes.exchange(f"save {what}", json.dumps(outcome))]
        # Our own errors (a newer attempt, a lease that was taken, other values) end the run at once.
        if isinstance(failure, ShardwiseError):
            raise failure
        bad = [rank for rank, one in enumerate(outcomes) if one["reason"]]
        if bad:
            first = outcomes[bad[0]]
            why = reason if self._processes.count == 1 else f"rank {bad[0]}: {first['reason']}"
            unsaved = self._unsaved(save, why, StorageError if first["passes"] else CheckpointError)
            if any(one["refused"] for one in outcomes):
                raise unsaved from failure
            raise _UnsavedError(unsaved, outcomes[0]["failing_seconds"]) from failure
        return [one["done"] for one in outcomes]

    def _is_there(self, save: _Save, digests: Mapping[str, str]) -> bool:
        """Return whether this very checkpoint is committed already; if not, free its place."""
        committed = patiently(self._store.steps).get(save.step)
        if committed and not save.overwrite:
            there = decode(self._store.read(save.step, MANIFEST), self._store.read(save.step, MARKER), save.step)
            if {path: entry.digest for path, entry in there.arrays.items()} == digests:
                return True
            raise CheckpointError(
                f"{self._store.root}/{checkpoint_name(save.step)} is committed and holds other values than "
                "those to be saved; it is untouched. Save into another folder, or overwrite it explicitly"
            )
        if committed is not None:  # an interrupted save, one set aside, or one to overwrite
            self._store.delete(save.step)
        return False

    def _manifest(self, save: _Save, digests: Mapping[str, str]) -> Manifest:
        entries = {
            path: ArrayEntry(
                shape=array.shape,
                dtype=str(array.dtype),
                file_shape=save.layouts[path].file_shape,
                chunk_shape=save.layouts[path].chunk_shape,
                digest=digests[path],
            )
            for path, array in save.abstract.items()
        }
        return Manifest(
            kind=save.kind,
            step=save.step,
            run=self._run,
            attempt=self._attempt,
            created=datetime.now(UTC).replace(microsecond=0),
            identity=dict(save.identity),
            history=save.history,
            arrays=entries,
        )

    def _retain(self, saved: int) -> None:
        """Delete what retention lets go and what interrupted saves left; the next call deletes what stays.

        What was set aside stays until the run has come so far again.
        """
        kept = []
        try:
            steps = self._store.steps()
            not_committed = [step for step, committed in steps.items() if not committed]
            cut_short = [step for step in not_committed if step <= saved or not self._store.is_set_aside(step)]
            committed = [step for step, is_committed in steps.items() if is_committed]
            for step in [*cut_short, *expired(committed, saved, self._keep)]:
                try:
                    self._store.delete(step)
                except (ValueError, OSError) as error:
                    kept.append(f"{checkpoint_name(step)}: {first_line(error)}")
        except (ValueError, OSError) as error:
            kept.append(first_line(error))
        if kept and self._listener:
            self._listener.event({"event": "retentionFailed", "step": saved, "reason": "; ".join(kept)})

    def _unsaved(self, save: _Save, why: str, kind: type[ShardwiseError]) -> ShardwiseError:
        """Remove what a failed save left, on rank 0, and return the error for a person."""
        save.parts.clear()
        where = f"{self._store.root}/{checkpoint_name(save.step)}"
        removed = self._remove_partial(save.step) if self._processes.writes else ""
        return kind(
            f"{where} was not saved: {why}. {removed} "
            "Earlier checkpoints are untouched. Make room, or choose another checkpoint.path"
        )

    def _remove_partial(self, step: int) -> str:
        try:
            self._store.delete(step)
        except (ValueError, OSError) as error:
            return f"Its partial directory could not be removed ({first_line(error)})."
        return "Its partial directory is removed."
