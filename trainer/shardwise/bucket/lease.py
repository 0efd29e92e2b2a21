"""Who may write to a folder, also one in a bucket: one live run at a time.

    ROOT/LEASE    of a folder of checkpoints: which run, where, and when it last renewed

A run directory on a volume has a lock (`protocol/takeover.py`), but two of them may name one folder of checkpoints, and
a bucket has no locks. So rank 0, or the import of weights, takes the folder's lease when it starts, renews it every few
seconds and before each commit, and gives it back at its end. Host 0 holds a run directory in a bucket in the same way.
The run that is known by the same directory gets it at once, however the last start ended; another one waits to see
whether the holder still renews it, by its own clock, so clocks need not agree. Each write is conditional on the content
it replaces, if the store supports that; a lease that is gone is not renewed.
"""

import errno
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Self

from shardwise.bucket.folder import ANSWER_SECONDS, answer_of, description, open_folder
from shardwise.protocol.errors import CheckpointError, RunDirectoryError
from shardwise.protocol.lease import STALE_SECONDS, Holder
from shardwise.protocol.storage import first_line, in_words, with_retries

LEASE = "LEASE"
RENEW_SECONDS = 15.0
LOOK_SECONDS = 1.0
_ROUNDS = 3  # of a renewal whose write is refused
END_SECONDS = 15.0
"""How long the end of a holder waits for a store, for each of three things; the next holder waits longer, then."""


class Lease:
    """One start's hold of a folder of checkpoints."""

    def __init__(
        self,
        root: str,
        *,
        run: str,
        name: str,
        directory: str,
        file: str = LEASE,
        field: str = "training.checkpoint.path",
    ) -> None:
        """Hold nothing yet. A later start of the same run gives the same `run`; a job names `root` in `field`.

        Raise CheckpointError for a root that can be none.
        """
        self._root, self._file, self._field = root, file, field
        self._own = Holder(run=run, name=name, directory=directory, start=secrets.token_hex(8))
        try:
            self._folder = open_folder(description(root))
        except (ValueError, OSError) as error:
            raise self._unusable(error) from error
        self._answer_seconds = ANSWER_SECONDS
        self._lock = threading.Lock()
        self._over = threading.Event()

    @contextmanager
    def held(self, tell: Callable[[str], None], beat: Callable[[], None] = lambda: None) -> Iterator[Self]:
        """Hold the folder while the block runs.

        Args:
            tell: gets a line for a person if the lease is waited for, at most `STALE_SECONDS` long.
            beat: is called about once a second meanwhile.

        Raises:
            RunDirectoryError: another live run holds it.
            StorageError, CheckpointError: the folder cannot be read or written, or does not answer.
        """
        try:
            with_retries(partial(self._take, tell, beat), beat)
        except (ValueError, OSError) as error:
            raise self._unusable(error) from error
        keeping = threading.Thread(target=self._keep, name="lease", daemon=True)
        keeping.start()
        try:
            yield self
        finally:
            self._give_back(keeping)

    def _unusable(self, error: ValueError | OSError) -> Exception:
        return in_words(error, f"{self._root} cannot be used: {first_line(error)}", CheckpointError)

    def _give_back(self, keeping: threading.Thread) -> None:
        """Say that the folder is free; if the store does not answer soon, leave the lease to get stale."""
        self._over.set()
        self._answer_seconds = END_SECONDS
        keeping.join(END_SECONDS)
        if not keeping.is_alive():
            with suppress(ValueError, OSError, RunDirectoryError):  # then the next run waits until it is stale
                self._say(live=False)

    def renew(self) -> None:
        """Show others that this run lives.

        Raises:
            RunDirectoryError: another run, or a newer start of this one, has taken the folder.
            ValueError, OSError: the store has not answered for some time, or is not the one that was held.
        """
        with_retries(partial(self._say, live=True))

    def is_own(self) -> bool:
        """Return whether nobody has taken the folder from this start; ValueError, OSError if it cannot be read."""
        holder = self._parsed(self._read()[0])
        return holder is not None and holder.start == self._own.start

    def _take(self, tell: Callable[[str], None], beat: Callable[[], None]) -> None:
        seen, refused, since = b"", b"", time.monotonic()
        while True:
            value, generation = self._read()
            holder = self._parsed(value)
            # `renewed_at` is another machine's clock: what counts is that the content stayed the same by ours.
            gone = time.monotonic() - since > STALE_SECONDS
            if holder is None or not holder.live or holder.run == self._own.run or (seen == value and gone):
                if self._write(self._own, generation):
                    return
                if refused == generation:
                    raise CheckpointError(f"{self._root} cannot be used: nothing can be written; is its bucket there?")
                refused = generation  # another run was quicker: the next round looks at what it wrote
            elif not seen:
                seen, since = value, time.monotonic()
                tell(f"{self._root}: waiting to see whether {holder.words} still lives")
            elif seen != value:
                raise RunDirectoryError(
                    f"{self._root}: {holder.words} lives, and keeps its files there; wait for its end, stop it, "
                    f"or give this run another {self._field}"
                )
            else:
                beat()
                time.sleep(LOOK_SECONDS)

    def _say(self, *, live: bool) -> None:
        with self._lock:  # the thread and a commit may renew at once, and each write must follow its own read
            own = self._own.model_copy(update={"live": live})
            for _ in range(_ROUNDS):
                # A refused write proves nothing: TensorStore sends one again whose answer was lost, and is refused for
                # what it has written itself. Who holds the folder is what the lease says then.
                if self._write(own, self._held_generation()):
                    return
            raise OSError(errno.EAGAIN, f"{self._root}/{self._file} takes no write, though nobody has taken over")

    def _held_generation(self) -> bytes:
        """Return the generation of the lease, which is still this start's; raise as `renew` if it is not."""
        value, generation = self._read()
        holder = self._parsed(value)
        if holder is None:  # a volume that is not mounted any more leaves a folder that can be written to
            raise OSError(errno.ESTALE, f"{self._root}/{self._file} is gone, so this is not the folder that was held")
        if holder.start != self._own.start:
            raise RunDirectoryError(f"{self._root}: {holder.words} has taken over; nothing was committed")
        return generation

    def _keep(self) -> None:
        while not self._over.wait(RENEW_SECONDS):
            try:
                self.renew()
            except RunDirectoryError:
                return  # the next commit says so
            except (ValueError, OSError):
                continue  # it may answer the next time, and a commit asks by itself

    def _read(self) -> tuple[bytes, bytes]:
        """Return the content, empty if there is no lease, and the store's generation of this very content."""
        found = answer_of(self._folder.read(self._file), self._answer_seconds)
        return bytes(found.value), found.stamp.generation

    def _write(self, holder: Holder, generation: bytes) -> bool:
        """Write `holder` if the content is still that of `generation`; return whether it was."""
        renewed = holder.model_copy(update={"renewed_at": round(time.time(), 3)})
        content = renewed.model_dump_json().encode()
        writing = self._folder.write(self._file, content, if_equal=generation)
        return bool(answer_of(writing, self._answer_seconds).generation)

    def _parsed(self, value: bytes) -> Holder | None:
        try:
            return Holder.read(value)
        except ValueError as error:
            raise CheckpointError(
                f"{self._root}/{self._file} says not whose files these are ({error}); if no run uses them, remove it"
            ) from error
