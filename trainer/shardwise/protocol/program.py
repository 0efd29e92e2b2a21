"""What an agent tells an own program, in variables of its environment; the library `shardwise` reads them.

    SHARDWISE_JOB             the job's name
    SHARDWISE_RUN_DIRECTORY   the run directory, which all hosts see; of one in a bucket, this host's folder
    SHARDWISE_CHECKPOINTS     where checkpoints are kept, if the run directory is in a bucket
    SHARDWISE_RANK            which process this is, from 0; there is one on each host
    SHARDWISE_NUM_PROCESSES   how many there are
    SHARDWISE_COORDINATOR     host:port for jax.distributed; process 0 serves it
    SHARDWISE_ATTEMPT         how often the processes have been started before
    SHARDWISE_DEADLINE        seconds that are left of the job's deadline; unset without one
    SHARDWISE_HANG_AFTER      seconds without progress after which the processes are ended
    SHARDWISE_PROGRESS        the file that the process writes its progress to (`contract.Progress`)
    SHARDWISE_STACKS          the file that it writes its stacks to when it gets SIGUSR2

Programs that never heard of Shardwise find RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT,
as torch reads them.
"""

from collections.abc import Mapping

from shardwise.protocol.message import Message
from shardwise.protocol.orders import Orders

JOB = "SHARDWISE_JOB"
DIRECTORY = "SHARDWISE_RUN_DIRECTORY"
CHECKPOINTS = "SHARDWISE_CHECKPOINTS"
RANK = "SHARDWISE_RANK"
NUM_PROCESSES = "SHARDWISE_NUM_PROCESSES"
COORDINATOR = "SHARDWISE_COORDINATOR"
ATTEMPT = "SHARDWISE_ATTEMPT"
DEADLINE = "SHARDWISE_DEADLINE"
HANG_AFTER = "SHARDWISE_HANG_AFTER"
PROGRESS = "SHARDWISE_PROGRESS"
STACKS = "SHARDWISE_STACKS"

_OURS = (JOB, DIRECTORY, CHECKPOINTS, RANK, NUM_PROCESSES, COORDINATOR, ATTEMPT, DEADLINE, HANG_AFTER, PROGRESS, STACKS)
RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT")
OWN_PREFIXES = ("SHARDWISE_", "RAY_", "TPU_", "MEGASCALE_")
OWN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", *RENDEZVOUS)


class Place(Message):
    """One process of a program: its part in the attempt, and where its files are."""

    job: str
    directory: str
    rank: int
    num_processes: int
    coordinator: str
    attempt: int
    deadline_seconds: float | None
    hang_after_seconds: float
    progress: str
    stacks: str
    checkpoints: str | None = None

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> "Place | None":
        """Return the place that an agent has given this process; None if none has started it."""
        if RANK not in variables:
            return None
        deadline = variables.get(DEADLINE)
        return cls(
            job=variables[JOB],
            directory=variables[DIRECTORY],
            rank=int(variables[RANK]),
            num_processes=int(variables[NUM_PROCESSES]),
            coordinator=variables[COORDINATOR],
            attempt=int(variables[ATTEMPT]),
            deadline_seconds=None if deadline is None else float(deadline),
            hang_after_seconds=float(variables[HANG_AFTER]),
            progress=variables[PROGRESS],
            stacks=variables[STACKS],
            checkpoints=variables.get(CHECKPOINTS),
        )


def rendezvous(address: str, port: int) -> dict[str, str]:
    """Return where the processes of one attempt meet, as torch reads it; process 0 listens there."""
    return dict(zip(RENDEZVOUS, (address, str(port)), strict=True))


def without_place(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that give a process its place.

    A program may itself start `shardwise run`: what that run starts must not take the program's place for its own.
    """
    return {name: value for name, value in variables.items() if name not in _OURS and name not in OWN_VARIABLES}


def variables(job: str, orders: Orders, *, hang_after_seconds: float) -> dict[str, str]:
    """Return the variables for a process with these orders."""
    deadline = {} if orders.deadline_seconds is None else {DEADLINE: str(orders.deadline_seconds)}
    checkpoints = {} if orders.checkpoints is None else {CHECKPOINTS: orders.checkpoints}
    return {
        **orders.variables,
        **checkpoints,
        JOB: job,
        DIRECTORY: orders.directory,
        RANK: str(orders.rank),
        NUM_PROCESSES: str(orders.num_processes),
        COORDINATOR: orders.coordinator,
        ATTEMPT: str(orders.attempt),
        **deadline,
        HANG_AFTER: str(hang_after_seconds),
        PROGRESS: orders.progress,
        STACKS: orders.stacks,
        "RANK": str(orders.rank),
        "WORLD_SIZE": str(orders.num_processes),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }
