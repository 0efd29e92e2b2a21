"""The progress record of a host's trainer, as its agent reads it. A program may write anything in its place."""

import shutil
from pathlib import Path

from pydantic import ValidationError

from shardwise.launcher.agent.trainer import Trainer
from shardwise.protocol.contract import Progress, read_progress
from shardwise.protocol.program import PROGRESS

_FIELDS = ", ".join(field.alias or name for name, field in Progress.model_fields.items() if field.is_required())


class ProgressFile:
    """The file of one host, for one attempt after another."""

    def __init__(self, path: Path) -> None:
        """Read nothing yet."""
        self.path = path
        self._seen: tuple[int, ...] = ()
        self._told = False

    def clear(self) -> None:
        """Remove what the last attempt has left, whatever it is."""
        if self.path.is_dir() and not self.path.is_symlink():
            shutil.rmtree(self.path)
        self.path.unlink(missing_ok=True)
        self._seen, self._told = (), False

    def read(self, trainer: Trainer) -> Progress | None:
        """Return the trainer's record if it has changed since the last look; else None.

        What is no record counts as none, and the trainer's log says so once.
        """
        try:
            stat = self.path.stat()
            before, self._seen = self._seen, (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            read = read_progress(self.path) if self._seen != before else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._tell(trainer, error)
            return None
        return read if read and read.attempt == trainer.orders.attempt else None

    def _tell(self, trainer: Trainer, error: OSError | ValueError) -> None:
        if self._told:
            return
        self._told = True
        trainer.note(
            f"shardwise: {PROGRESS}: {self.path} is no progress record, and counts as none: expected a file of JSON "
            f"with {_FIELDS}, as shardwise.report writes it ({_in_words(error)})"
        )


def _in_words(error: OSError | ValueError) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return ": ".join((*map(str, first["loc"]), first["msg"]))
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
