"""What the page of all jobs says, as data: the types of `/jobs.json`. Times are in seconds since the epoch.

None, an empty mapping and an empty text mean that it is not known.
"""

from pydantic import Field

from shardwise.protocol.message import Message


class JobRow(Message):
    """One job.

    `since` is when it came into its phase, as far as its status tells. `mfu` and `goodput` are shares. `restarts`
    counts by cause. `queue` is the queue that its pods wait in, `notice` what is wrong beside the phase. `pod` is that
    of host 0 while it is there, and `directory` the run directory, on the job's own volume.
    """

    namespace: str
    name: str
    created: float
    phase: str
    reason: str = ""
    message: str = ""
    since: float | None = None
    accelerator: str = ""
    topology: str = ""
    slices: int = 1
    queue: str = ""
    notice: str = ""
    step: int | None = None
    num_steps: int | None = None
    loss: str = ""
    tokens_per_second: float | None = None
    mfu: float | None = None
    eta_seconds: float | None = None
    observed_at: float | None = None
    slowest_host: str = ""
    checkpoint_step: int | None = None
    checkpoint_at: float | None = None
    restarts: dict[str, int] = Field(default_factory=dict)
    goodput: float | None = None
    hosts_ready: int = 0
    hosts: int = 0
    pod: str = ""
    directory: str = ""


class JobsDocument(Message):
    """All of the page: of which namespace, empty for all of them, and the jobs; `left_out` counts older ones."""

    made_at: float
    namespace: str = ""
    jobs: list[JobRow] = Field(default_factory=list)
    left_out: int = 0
