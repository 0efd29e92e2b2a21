"""Saves a state to disk while training goes on.

    save()      waits for the save before it, copies this process's part to host memory, returns
    background  digests -> room -> array files -> manifest.json, fence, COMMITTED, retention

The copy is what makes it safe to donate the arrays to the next step: on CPU an array handed to numpy is a view, and
a view stops donation. Every process writes its own part of the array files; rank 0 alone makes room and commits, after
all have said that theirs are durable. Called by the step loop and by the import of published weights.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import jax

from shardwise.job.contract import checkpoint_name
from shardwise.job.errors import CheckpointError, ShardwiseError
from shardwise.job.spec import Keep
from shardwise.train.checkpoint import layout, zarr
from shardwise.train.checkpoint.manifest import (
    ARRAYS,
    MANIFEST,
    MARKER,
    ArrayEntry,
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
from shardwise.train.processes import ALONE, Processes

_NUM_COPY_THREADS = 4


@dataclass(kw_only=True)
class SaveTicket:
    """What became of one save.

    `durable_seconds`, from the call on, and `digest`, of all arrays together, are None until it is committed.
    """

    step: int
    bytes: int
    blocked_seconds: float
    durable_seconds: float | None = None
    digest: str | None = None


@dataclass(kw_only=True)
class _Save:
    """A save on its way; `parts` is emptied as the files become durable, which gives their memory back."""

    step: int
    kind: Kind
    overwrite: bool
    started: float
    identity: Mapping[str, IdentityValue]
    abstract: Mapping[str, jax.ShapeDtypeStruct]
    layouts: Mapping[str, layout.Layout]
    digests: Mapping[str, jax.Array]
    parts: deque[Part] = field(repr=False)
    ticket: SaveTicket


class CheckpointWriter:
    """Writes the checkpoints of one incarnation of a run below `root`, one at a time, in the background.

    What goes wrong there is raised by the next `save`, `wait` or `close`, as a `CheckpointError` in plain words;
    whatever `fence` raises comes through as it is.
    """

    def __init__(
        self,
        root: str,
        *,
        keep: Keep,
        run: str,
        incarnation: int,
        fence: Callable[[], AbstractContextManager[None]],
        processes: Processes = ALONE,
        on_commit: Callable[[SaveTicket], None] | None = None,
    ) -> None:
        """`fence` surrounds each commit: it raises if a newer incarnation of the run exists, and else keeps it waiting.

        `on_commit` is called right after it; both in the thread that writes. `processes` all have such a writer, and
        save the same steps.
        """
        self._store = Store(root)
        self._keep = keep
        self._run = run
        self._incarnation = incarnation
        self._fence, self._processes = fence, processes
        self._on_commit = on_commit
        self._copiers = ThreadPoolExecutor(_NUM_COPY_THREADS, thread_name_prefix="checkpoint-copy")
        self._background = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-write")
        self._pending: Future[None] | None = None

    def save(
        self,
        step: int,
        arrays: Mapping[str, jax.Array],
        *,
        digester: Digester,
        identity: Mapping[str, IdentityValue],
        kind: Kind = "state",
        overwrite: bool = False,
    ) -> SaveTicket:
        """Starts to save `arrays` as the checkpoint of `step`; they may be donated as soon as this returns.

        `digester` was built for these paths; it is started after the copy, which on CPU it would slow down, and is
        waited for in the background. A committed checkpoint of this step with equal digests is left as it is; with
        others it is an error, unless `overwrite`.
        """
        self.wait()
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
            abstract={path: jax.ShapeDtypeStruct(a.shape, a.dtype) for path, a in arrays.items()},
            layouts=layouts,
            digests=digester(arrays),
            parts=parts,
            ticket=ticket,
        )
        self._pending = self._background.submit(self._write, save)
        return ticket

    def wait(self) -> None:
        """Returns when nothing is being written; raises what went wrong since the last call."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Waits like `wait`, and ends the threads."""
        try:
            self.wait()
        finally:
            self._copiers.shutdown()
            self._background.shutdown()

    def _write(self, save: _Save) -> None:
        digests = to_hex(save.digests, partial(self._processes.exchange, "save digests"))
        save.ticket.digest = combine(digests)
        writes = self._processes.writes
        if any(self._together(save, "room", lambda: writes and self._is_there(save, digests))):
            self._committed(save)
            return
        self._together(save, "files", lambda: self._put(save))
        self._together(save, "commit", lambda: writes and self._commit(save, digests))
        self._committed(save)
        if writes:
            self._retain(save.step)

    def _put(self, save: _Save) -> bool:
        put(self._store, save.step, save.abstract, save.layouts, save.parts)
        self._store.flush(save.step, [ARRAYS])
        return True

    def _commit(self, save: _Save, digests: Mapping[str, str]) -> bool:
        manifest, marker = encode(self._manifest(save, digests))
        self._store.write(save.step, MANIFEST, manifest)
        self._store.flush(save.step, [])
        with self._fence():
            self._store.write(save.step, MARKER, marker)
        return True

    def _committed(self, save: _Save) -> None:
        save.ticket.durable_seconds = time.monotonic() - save.started
        if self._on_commit is not None:
            self._on_commit(save.ticket)

    def _together(self, save: _Save, what: str, act: Callable[[], bool]) -> list[bool]:
        """Acts, and waits until all processes have; returns what came of each, or raises what went wrong with any."""
        failure: ShardwiseError | None = None
        done = False
        try:
            done = act()
        except (ValueError, OSError) as error:  # TensorStore raises ValueError for whatever a store answers
            failure = CheckpointError(zarr.write_cause(error))
            failure.__cause__ = error
        except ShardwiseError as error:
            failure = error
        said = json.dumps({"done": done, "failure": failure and str(failure)})
        heard = [json.loads(text) for text in self._processes.exchange(f"save {what}", said)]
        failures = [f"rank {rank}: {one['failure']}" for rank, one in enumerate(heard) if one["failure"]]
        if failure is not None and not isinstance(failure.__cause__, ValueError | OSError):
            raise failure
        if failures:
            raise self._unsaved(save, str(failure) if self._processes.count == 1 else failures[0]) from failure
        return [one["done"] for one in heard]

    def _is_there(self, save: _Save, digests: Mapping[str, str]) -> bool:
        """Whether this very checkpoint is committed already; otherwise the place is free when this returns."""
        committed = self._store.steps().get(save.step)
        if committed and not save.overwrite:
            there = decode(self._store.read(save.step, MANIFEST), self._store.read(save.step, MARKER), save.step)
            if {path: entry.digest for path, entry in there.arrays.items()} == digests:
                return True
            raise CheckpointError(
                f"{self._store.root}/{checkpoint_name(save.step)} is committed and holds other values than "
                "those to be saved; it is untouched. Save into another folder, or overwrite it explicitly"
            )
        if committed is not None:
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
            incarnation=self._incarnation,
            created=datetime.now(UTC).replace(microsecond=0),
            identity=dict(save.identity),
            arrays=entries,
        )

    def _retain(self, saved: int) -> None:
        """Deletes what retention lets go, and what saves that were cut short left behind."""
        steps = self._store.steps()
        partial = [step for step, committed in steps.items() if not committed]
        committed = [step for step, is_committed in steps.items() if is_committed]
        for step in [*partial, *expired(committed, saved, self._keep)]:
            self._store.delete(step)

    def _unsaved(self, save: _Save, why: str) -> CheckpointError:
        """What a failed save is to a person; rank 0 has then removed what there was of it."""
        save.parts.clear()
        where = f"{self._store.root}/{checkpoint_name(save.step)}"
        removed = self._remove_partial(save.step) if self._processes.writes else ""
        return CheckpointError(
            f"{where} was not saved: {why}. {removed} "
            "Earlier checkpoints are untouched. Make room, or choose another checkpoint.path"
        )

    def _remove_partial(self, step: int) -> str:
        try:
            self._store.delete(step)
        except (ValueError, OSError) as error:
            return f"Its partial directory could not be removed ({zarr.first_line(error)})."
        return "Its partial directory is removed."
