"""DIR/logs/leader: where host 0 is. It writes its address there, and every other host reads it.

A host that finds its leader therefore sees the run directory that the leader writes to. One that did not would train
on, and restore, something else. In a cluster this takes the place of a name: the run directory is there anyway.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from shardwise.job.contract import LOGS
from shardwise.job.files import replace_file

_WORD = "leader"


@dataclass(frozen=True, kw_only=True)
class Word:
    """Which agent leads a life of the command, or a round of a job (`run`), and where: "ip:port"."""

    run: str
    agent_id: str
    address: str

    def leave(self, directory: Path) -> None:
        """Write it for all hosts to read."""
        replace_file(directory / LOGS / _WORD, json.dumps(asdict(self)), durable=True)

    @classmethod
    def read(cls, directory: Path) -> Self:
        """The word of the last one that led; OSError or ValueError where there is none that can be read."""
        fields = json.loads((directory / LOGS / _WORD).read_text(encoding="utf-8"))
        if not isinstance(fields, dict) or not all(isinstance(fields.get(name), str) for name in _NAMES):
            raise ValueError("not what a leader writes")
        return cls(**{name: fields[name] for name in _NAMES})


_NAMES = ("run", "agent_id", "address")
