"""What a process of a run is to do wrong, and when: written by whoever disturbs it, read by `disturbed.py`.

It lies beside the run directory, which may be on a volume that fails.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

BEFORE_COMMIT, AFTER_COMMIT = "save before commit", "save after commit"
CLOCK_VARIABLE = "SHARDWISE_FAULTS_CLOCK"
"""Names the file that says by how many seconds the wall clock of a run's processes is wrong."""


class Does(StrEnum):
    """What happens."""

    KILL = "SIGKILL to the trainer"
    AGENT = "SIGKILL to its agent"
    HOST = "SIGKILL to all of its host"
    STOP = "SIGSTOP to the trainer"
    RAISE = "an error of the program"
    MEMORY = "no memory for what it asks"
    STUCK = "it stands still"
    LATE = "it stands still for some seconds"
    HOLD = "it waits for whoever disturbs it"
    BAD_BATCH = "a batch whose weights are no numbers"
    WRONG = "a bit of its device's memory is another one"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Done once, by the trainer of a rank in an attempt, as soon as it is at a moment with so many steps complete.

    A moment is a phase of the contract, or `BEFORE_COMMIT` and `AFTER_COMMIT`: between the last file of a checkpoint
    and its marker, and right after that.
    """

    does: Does
    moment: str
    rank: int = 1
    step: int = 0
    attempt: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of a run directory.

    `late_seconds` is what each rank's batches come late, by rank; `slow_products` how many times the work is that rank
    1 is given where its own speed is measured. `bad_batch` is the number of one whose weights are no numbers.
    """

    faults: tuple[Fault, ...] = ()
    late_seconds: tuple[float, ...] = ()
    slow_products: int = 1
    bad_batch: int | None = None

    def write(self, directory: Path) -> None:
        """Before the run begins."""
        folder = _folder(directory)
        folder.mkdir(exist_ok=True)
        (folder / "plan.json").write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, directory: Path) -> "Plan":
        """The plan of a run; an empty one where nothing is to happen."""
        try:
            fields = json.loads((_folder(directory) / "plan.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls()
        return cls(
            faults=tuple(Fault(**fault) for fault in fields["faults"]),
            late_seconds=tuple(fields["late_seconds"]),
            slow_products=fields["slow_products"],
            bad_batch=fields["bad_batch"],
        )


def put(directory: Path, fault: Fault, now: float) -> None:
    """Say that a fault happens in this moment; `now` in seconds since the epoch."""
    with (_folder(directory) / "put.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"time": now, **asdict(fault)}) + "\n")


def were_put(directory: Path) -> list[dict[str, Any]]:
    """All that have happened, in order."""
    try:
        lines: Iterable[str] = (_folder(directory) / "put.jsonl").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


def go(directory: Path) -> Path:
    """The file that lets go of a trainer that waits."""
    return _folder(directory) / "go"


def _folder(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.faults")
