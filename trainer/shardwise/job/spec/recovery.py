"""The `recovery` section: what a run survives, and for how long it waits."""

from typing import Annotated

from pydantic import Field

from shardwise.job.quantity import Duration
from shardwise.job.spec.base import Unit
from shardwise.protocol.strict_model import StrictModel

MAX_BACKOFF_SECONDS = 300.0

_Budget = Annotated[int, Field(ge=0, le=1_000_000), Unit("times")]


class Restarts(StrictModel):
    """How often each cause may end the processes of a run before the run itself fails; eviction and on in clusters.

    A new checkpoint fills all of these budgets again.
    """

    failure: Annotated[_Budget, Field(description="A trainer that ended with an error or by a signal.")] = 3
    nonfinite: Annotated[_Budget, Field(description="A step that training.badSteps ends it for.")] = 0
    hang: Annotated[_Budget, Field(description="No progress for hangAfter.")] = 3
    out_of_memory: Annotated[_Budget, Field(description="A trainer without memory.")] = 1
    storage: Annotated[
        _Budget, Field(description="Storage that did not answer, was full or lost what was asked of it.")
    ] = 50
    device: Annotated[_Budget, Field(description="A device, its driver or the link between hosts that failed.")] = 10
    host_lost: Annotated[_Budget, Field(description="A host that went away.")] = 100
    eviction: Annotated[_Budget, Field(description="Pods that the cluster evicted or preempted at once.")] = 100
    node_lost: Annotated[_Budget, Field(description="Pods whose nodes went away at once.")] = 100
    maintenance: Annotated[_Budget, Field(description="A pod on a node that was taken down for maintenance.")] = 100
    admission: Annotated[_Budget, Field(description="A pod that its node refused to start.")] = 100
    image: Annotated[_Budget, Field(description="A pod whose image could not be fetched.")] = 10
    unknown: Annotated[_Budget, Field(description="A pod that ended without a word.")] = 100

    def of(self, cause: str) -> int:
        """Return the budget of a cause by its name in YAML; 0 for one without, such as bad input: it stays as bad."""
        budgets: dict[str, int] = self.model_dump(by_alias=True)
        return budgets.get(cause, 0)


class Recovery(StrictModel):
    """What happens when something ends that should not."""

    restarts: Annotated[Restarts, Field(description="The budget of restarts of each cause.")] = Restarts()
    backoff: Annotated[
        Duration, Field(description="Wait before a second restart without a new checkpoint between; doubles up to 5m.")
    ] = Duration("1s")
    hang_after: Annotated[
        Duration, Field(description="Time without any progress after which the processes are ended.")
    ] = Duration("5m")
    start_within: Annotated[
        Duration,
        Field(
            description="Time within which all hosts must be there at first; in clusters it counts from the first one."
        ),
    ] = Duration("30m")
    replace_within: Annotated[Duration, Field(description="Time within which a lost host must be back.")] = Duration(
        "10m"
    )


def backoff_seconds(first_seconds: float, count: int) -> float:
    """Return the wait before the `count`th restart, or the next pod, without a newer checkpoint in between.

    The first one does not wait, the second for `first_seconds` (`recovery.backoff`), each further one twice as long.
    """
    # The exponent is bounded, or the float would overflow after a thousand restarts.
    return 0.0 if count <= 1 else min(MAX_BACKOFF_SECONDS, first_seconds * 2.0 ** min(count - 2, 64))
