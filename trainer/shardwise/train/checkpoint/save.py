"""One save, up to the marker COMMITTED that makes it valid, in steps that all processes take together.

    digests -> room -> array files -> manifest.json, fence, COMMITTED

Every process writes its own part of the array files; rank 0 alone makes room and commits, after all have reported that
theirs are durable. It runs in the writer's background thread.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial

import jax

from shardwise.protocol.contract import COMMITTED, checkpoint_name
from shardwise.protocol.errors import CheckpointError, ShardwiseError, StorageError
from shardwise.protocol.storage import first_line, may_pass, with_retries
from shardwise.train.checkpoint import zarr
from shardwise.train.checkpoint.layout import Layout
from shardwise.train.checkpoint.manifest import ARRAYS, MANIFEST, ArrayEntry, Manifest, decode, encode
from shardwise.train.checkpoint.put import put
from shardwise.train.checkpoint.staging import Part
from shardwise.train.checkpoint.store import Store
from shardwise.train.digest import combine, to_hex
from shardwise.train.peers import Peers

Fence = Callable[[], AbstractContextManager[None]]
"""Surrounds a commit: it raises if a newer attempt of the run exists, and else keeps it waiting."""


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


class UnsavedError(Exception):
    """A save that the storage did not take: the error, and for how long saves have failed by rank 0's clock."""

    def __init__(self, error: ShardwiseError, failing_seconds: float) -> None:
        super().__init__(str(error))
        self.error, self.failing_seconds = error, failing_seconds


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """What one process's step came to, as the others are told."""

    step: int
    """Of training, whose state it saves."""
    done: bool
    reason: str
    """Why it failed, or ""."""
    refused: bool
    """Whether it failed with an error of our own, which ends the run at once."""
    passes: bool
    failing_seconds: float


def array_entries(
    abstract: Mapping[str, jax.ShapeDtypeStruct], layouts: Mapping[str, Layout], digests: Mapping[str, str]
) -> dict[str, ArrayEntry]:
    """Return what a manifest says of the arrays of a save, by path."""
    return {
        path: ArrayEntry(
            shape=array.shape,
            dtype=str(array.dtype),
            file_shape=layouts[path].file_shape,
            chunk_shape=layouts[path].chunk_shape,
            digest=digests[path],
        )
        for path, array in abstract.items()
    }


@dataclass(kw_only=True)
class Save:
    """A save on its way; `parts` is emptied as the files become durable, which gives their memory back."""

    step: int
    store: Store
    processes: Peers
    fence: Fence
    moved: Callable[[], None]
    """Is called as the save gets on."""
    manifest: Callable[..., Manifest]
    """Makes the manifest, given `created` and `arrays`."""
    overwrite: bool
    started: float
    failing_since: float | None
    """When the first of the saves began that have failed in a row before this one; None if none has."""
    abstract: Mapping[str, jax.ShapeDtypeStruct]
    layouts: Mapping[str, Layout]
    digests: Mapping[str, jax.Array]
    parts: deque[Part] = field(repr=False)
    ticket: SaveTicket
    has_room: bool = False
    """Whether its place is free of what was there before, so that all that lies there is its own."""

    def write(self) -> bool:
        """Commit the checkpoint; return whether it had to be written, and was not there before.

        Raises:
            UnsavedError: the storage did not take it, now or for good.
            ShardwiseError: it must not be committed, and the run ends.

        """
        # Every rank takes part, so this comes before anything that one rank alone may fail at.
        digests = to_hex(self.digests, partial(self.processes.agree, "save digests"))
        self.ticket.digest = combine(digests)
        writes = self.processes.writes
        if any(self._together("room", lambda: writes and self._is_there(digests))):
            return False
        self.has_room = True
        # Rank 0 commits only after this exchange: by then every rank's files are durable.
        self._together("files", self._put)
        # The others wait for the commit too, so that none counts a save as done which rank 0 could not commit.
        self._together("commit", lambda: writes and self._commit(digests))
        return True

    @property
    def place(self) -> str:
        """Where the checkpoint lies, for messages."""
        return f"{self.store.root}/{checkpoint_name(self.step)}"

    def _is_there(self, digests: Mapping[str, str]) -> bool:
        """Return whether this very checkpoint is committed already; if not, free its place."""
        committed = with_retries(self.store.steps).get(self.step)
        if committed and not self.overwrite:
            read = partial(self.store.read, self.step)
            there = decode(with_retries(lambda: read(MANIFEST)), with_retries(lambda: read(COMMITTED)), self.step)
            if {path: entry.digest for path, entry in there.arrays.items()} == digests:
                return True
            raise CheckpointError(
                f"{self.place} is committed and holds other values than those to be saved; it is untouched. Save into "
                "another folder, or overwrite it explicitly"
            )
        if committed is not None:  # an interrupted save, one set aside, or one to overwrite
            self.store.delete(self.step, self.moved)
        return False

    def _put(self) -> bool:
        describes = self.processes.writes
        has_files = describes or bool(self.parts)  # another rank may not have made the folder yet
        put(self.store, self.step, self.abstract, self.layouts, self.parts, describes=describes, moved=self.moved)
        if has_files:
            self.store.flush(self.step, [ARRAYS])
        return True

    def _commit(self, digests: Mapping[str, str]) -> bool:
        entries = array_entries(self.abstract, self.layouts, digests)
        manifest, marker = encode(self.manifest(created=datetime.now(UTC).replace(microsecond=0), arrays=entries))
        with_retries(partial(self.store.write, self.step, MANIFEST, manifest))
        self.store.flush(self.step, [])  # once: what a flush could not write, the system calls written the next time
        # The fence keeps a newer attempt waiting: were it taken earlier, the flush would hold that attempt up.
        with self.fence():
            with_retries(partial(self.store.write, self.step, COMMITTED, marker))
        return True

    def _together(self, what: str, act: Callable[[], bool]) -> list[bool]:
        """Act, and wait until all processes have; return each one's result, or raise what went wrong with any."""
        failure: Exception | None = None
        done, reason = False, ""
        try:
            done = act()
            self.moved()
        except (ValueError, OSError) as error:  # TensorStore raises ValueError for whatever a store answers
            failure, reason = error, zarr.write_cause(error)
        except ShardwiseError as error:
            failure, reason = error, str(error)
        own = _Outcome(
            step=self.step,
            done=done,
            reason=reason,
            refused=isinstance(failure, ShardwiseError),
            passes=failure is not None and may_pass(failure),
            failing_seconds=0.0 if self.failing_since is None else time.monotonic() - self.failing_since,
        )
        # A rank that failed still takes part in the exchange; raising before it would leave the others waiting.
        texts = self.processes.exchange(f"save {what}", json.dumps(asdict(own)))
        # Our own errors (a newer attempt, a lease that was taken, other values) end the run at once.
        if isinstance(failure, ShardwiseError):
            raise failure
        outcomes = [_Outcome(**json.loads(text)) for text in texts]
        if len(steps := {one.step for one in outcomes}) > 1:
            raise RuntimeError(f"the processes save different steps, {sorted(steps)}, which is an error of ours")
        self._refuse_failed(outcomes, failure)
        return [one.done for one in outcomes]

    def _refuse_failed(self, outcomes: list[_Outcome], own: Exception | None) -> None:
        """Raise for the first rank that failed, after removing what the save left."""
        rank, first = next(((rank, one) for rank, one in enumerate(outcomes) if one.reason), (0, None))
        if first is None:
            return
        why = first.reason if self.processes.count == 1 else f"rank {rank}: {first.reason}"
        unsaved = self._unsaved(why, StorageError if first.passes else CheckpointError)
        if any(one.refused for one in outcomes):
            raise unsaved from own
        raise UnsavedError(unsaved, outcomes[0].failing_seconds) from own

    def _unsaved(self, why: str, kind: type[ShardwiseError]) -> ShardwiseError:
        """Remove what a failed save left, on rank 0, and return the error for a person."""
        self.parts.clear()
        removed = self._remove_partial() if self.processes.writes else ""
        return kind(
            f"{self.place} was not saved: {why}. {removed} "
            "Earlier checkpoints are untouched. Make room, or choose another checkpoint.path"
        )

    def _remove_partial(self) -> str:
        if not self.has_room:  # a committed checkpoint of this step may be there, which only could not be looked at
            return "Nothing of it was written."
        try:
            self.store.delete(self.step, self.moved)
        except (ValueError, OSError) as error:
            return f"Its partial directory could not be removed ({first_line(error)})."
        return "Its partial directory is removed."
