"""What was measured of one fault: a row of docs/faults.md."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Place = Literal["local", "cluster", "control plane"]
"""`shardwise run` on simulated hosts; a job in pods; the operator and what it speaks to."""
EQUAL = "yes"
"""What `equal` says where the state at the end is that of a run without the fault, bit for bit."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A fault in a phase, and what became of the run."""

    detected_seconds: float | None
    """From the fault to the first record of it, in the launcher's events or the job's; None where nothing is to be
    noticed, and `note` says why."""
    cause: str
    """As status and events name it; `none` where nothing was started again."""
    charged: str
    """What it cost of which budget, as `failure 1`; `nothing` else."""
    steps_lost: int
    """Steps that were taken twice."""
    next_step_seconds: Mapping[str, float] = field(default_factory=dict)
    """From the fault to the next completed step, by phase in order; empty where no step comes."""
    equal: str
    """`EQUAL`, or in a few words why the end is another or none."""
    note: str = ""
    """What a reader must know beside it, in a few words."""


class NotShownError(Exception):
    """This machine cannot put the fault; the message says what it lacks."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A fault, and the phases in which it is put to a run."""

    place: Place
    fault: str
    """As the table names it; unique within the place."""
    phases: tuple[str, ...]
    """Each is one run, and one row of the table."""
    measure: Callable[[str], Outcome]
    """Put the fault to a run in that phase, wait for its end, and tell; fail where a promise is broken."""
