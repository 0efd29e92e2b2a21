"""What an agent tells a trainer that it has started: one line of JSON on the trainer's standard input.

The pipe stays open for as long as the agent lives, and its end ends the trainer: no trainer outlives its agent. While
it trains, it hears signals:

    SIGTERM   stop: an agreed save, then the exit code "saved"; before the first step it ends at once
    SIGUSR1   save, and go on
    SIGUSR2   write the stacks of all threads to the file `stacks`

Another pipe says when its imports are done: the variable READY_VARIABLE holds the descriptor, and it closes it.
"""

import json
import signal
from dataclasses import asdict, dataclass, field

READY_VARIABLE = "SHARDWISE_READY"
STOP_SIGNAL = signal.SIGTERM
SAVE_SIGNAL = signal.SIGUSR1
STACKS_SIGNAL = signal.SIGUSR2


@dataclass(frozen=True, kw_only=True)
class Orders:
    """One trainer's part in one incarnation.

    `job_file` is the resolved job, `directory` the run directory; `progress` and `stacks` are files on the host's own
    disk. `coordinator` is "host:port" of jax.distributed, which rank 0 serves; it is unused where `num_processes` is 1.
    `fork` and `step` are what the command line asked of the first incarnation. `deadline_seconds` is what is left.
    `variables` are to be in the environment before JAX looks for devices.
    """

    job_file: str
    directory: str
    progress: str
    stacks: str
    rank: int
    num_processes: int
    coordinator: str
    incarnation: int
    fork: bool
    step: int | None
    deadline_seconds: float | None
    variables: dict[str, str] = field(default_factory=dict)

    def dumps(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, line: str) -> "Orders":
        """The inverse of `dumps`."""
        return cls(**json.loads(line))
