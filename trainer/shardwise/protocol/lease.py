"""What the file of a lease says: who holds a folder or a run directory, and until when that counts.

Whoever reads a lease needs no more than this; `bucket/lease.py` takes, renews and returns it.
"""

import json
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

STALE_SECONDS = 60.0
"""A holder that has not renewed its lease for so long is gone, or has to give way."""


class Holder(BaseModel):
    """Who holds a lease: `run` identifies the run directory, `start` is new with each start.

    `renewed_at` is in seconds since the epoch, by the holder's clock.
    """

    model_config = ConfigDict(frozen=True)

    run: str
    name: str
    directory: str
    start: str
    live: bool = True
    renewed_at: float = 0.0

    @property
    def words(self) -> str:
        """Return the holder for messages."""
        return f"the run {self.name!r} in {self.directory}"

    @classmethod
    def read(cls, content: bytes) -> Self | None:
        """Return the holder that a lease's file names; None for an empty file, which is what a full disk leaves.

        Raises:
            ValueError: the file is no lease; its message says in one line what was found.

        """
        if not content:
            return None
        try:
            # A process that was killed while it wrote leaves TensorStore's file beside ours. The next write goes over
            # it without cutting it, so what was longer shows behind the content.
            fields, _ = json.JSONDecoder().raw_decode(content.decode())
            return cls.model_validate(fields)
        except ValidationError as error:
            problems = (": ".join([*map(str, each["loc"]), each["msg"]]) for each in error.errors())
            raise ValueError("; ".join(problems)) from error
        except RecursionError as error:
            raise ValueError(str(error)) from error
