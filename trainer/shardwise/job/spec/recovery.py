"""The `recovery` section: what a run survives, and for how long it waits."""

from collections.abc import Mapping
from typing import Annotated, TypeVar

from pydantic import Field

from shardwise.job.quantity import Duration
from shardwise.job.spec.base import Unit
from shardwise.protocol.job_status import MAX_SLICES
from shardwise.protocol.strict_model import StrictModel

MAX_BACKOFF_SECONDS = 300.0

_Cause = TypeVar("_Cause", bound=str)
_Budget = Annotated[int, Field(ge=0, le=1_000_000), Unit("times")]


class Restarts(StrictModel):
    """How often each cause may end the processes of a run before the run itself fails; eviction and on in clusters.

    A new checkpoint fills all of these budgets again.
    """

    failure: _Budget = Field(3, description="A trainer that ended with an error or by a signal.")
    nonfinite: _Budget = Field(0, description="A step that training.badSteps ends it for.")
    hang: _Budget = Field(3, description="No progress for hangAfter.")
    out_of_memory: _Budget = Field(1, description="A trainer without memory.")
    storage: _Budget = Field(50, description="Storage that did not answer, was full or lost what was asked of it.")
    device: _Budget = Field(10, description="A device, its driver or the link between hosts that failed.")
    host_lost: _Budget = Field(100, description="A host that went away.")
    eviction: _Budget = Field(100, description="Pods that the cluster evicted or preempted at once.")
    node_lost: _Budget = Field(100, description="Pods whose nodes went away at once.")
    maintenance: _Budget = Field(100, description="A pod on a node that was taken down for maintenance.")
    admission: _Budget = Field(100, description="A pod that its node refused to start.")
    image: _Budget = Field(10, description="A pod whose image could not be fetched.")
    unknown: _Budget = Field(100, description="A pod that ended without a word.")

    def of(self, cause: str) -> int:
        """Return the budget of a cause by its name in YAML; 0 for one without, such as bad input: it stays as bad."""
        budgets: dict[str, int] = self.model_dump(by_alias=True)
        return budgets.get(cause, 0)


class Recovery(StrictModel):
    """What happens when something ends that should not."""

    restarts: Restarts = Field(Restarts(), description="The budget of restarts of each cause.")
    backoff: Duration = Field(
        Duration("1s"), description="Wait before a second restart without a new checkpoint between; doubles up to 5m."
    )
    hang_after: Duration = Field(
        Duration("5m"), description="Time without any progress after which the processes are ended."
    )
    start_within: Duration = Field(
        Duration("30m"),
        description="Time for all hosts to be there at first; in clusters from the first one, or a queue's admission.",
    )
    replace_within: Duration = Field(Duration("10m"), description="Time within which a lost host must be back.")
    min_slices: Annotated[int | None, Unit("slices")] = Field(
        None,
        ge=1,
        le=MAX_SLICES,
        description="Fewest slices that a cluster goes on with while others cannot be had; left out, all.",
    )


def charged(counts: Mapping[_Cause, int], cause: _Cause, limit: int, *, newer: bool) -> dict[_Cause, int] | None:
    """Return the restarts by cause after one more for `cause`; None if its budget of `limit` does not allow it.

    `newer` says that a checkpoint was committed since the last one, which refills all budgets. A month of training has
    many faults; only a run that fails again and again without reaching a checkpoint has to end.
    """
    left: Mapping[_Cause, int] = {} if newer else counts
    count = left.get(cause, 0)
    return None if count >= limit else {**left, cause: count + 1}


def left_of(counts: Mapping[_Cause, int], cause: _Cause, limit: int) -> str:
    """Return for people what is left of the budget of `limit` for `cause`, of which `counts` are used."""
    return f"{limit - counts.get(cause, 0)} of {limit} restarts for {cause} are left before a newer checkpoint"


def backoff_seconds(first_seconds: float, count: int) -> float:
    """Return the wait before the `count`th restart, or the next pod, without a newer checkpoint in between.

    The first one does not wait, the second for `first_seconds` (`recovery.backoff`), each further one twice as long.
    """
    # The exponent is bounded, or the float would overflow after a thousand restarts.
    return 0.0 if count <= 1 else min(MAX_BACKOFF_SECONDS, first_seconds * 2.0 ** min(count - 2, 64))
