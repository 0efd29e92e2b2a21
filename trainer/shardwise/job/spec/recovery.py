"""The `recovery` section: what a run survives, and for how long it waits."""

from typing import Annotated

from pydantic import Field

from shardwise.job.quantity import Duration
from shardwise.job.spec.base import Unit
from shardwise.protocol.strict_model import StrictModel

_Budget = Annotated[int, Field(ge=0, le=1_000_000)]


class Restarts(StrictModel):
    """How often each cause may end the processes of a run before the run itself fails; eviction and on in clusters.

    A new checkpoint fills all of these budgets again.
    """

    failure: Annotated[
        _Budget, Field(description="A trainer that ended with an error or by a signal."), Unit("times")
    ] = 3
    nonfinite: Annotated[_Budget, Field(description="A step that training.badSteps ends it for."), Unit("times")] = 0
    hang: Annotated[_Budget, Field(description="No progress for hangAfter."), Unit("times")] = 3
    out_of_memory: Annotated[_Budget, Field(description="A trainer without memory."), Unit("times")] = 1
    storage: Annotated[
        _Budget, Field(description="Storage that did not answer, was full or lost what was asked of it."), Unit("times")
    ] = 50
    device: Annotated[
        _Budget, Field(description="A device, its driver or the link between hosts that failed."), Unit("times")
    ] = 10
    host_lost: Annotated[_Budget, Field(description="A host that went away."), Unit("times")] = 100
    eviction: Annotated[
        _Budget, Field(description="Pods that the cluster evicted or preempted at once."), Unit("times")
    ] = 100
    node_lost: Annotated[_Budget, Field(description="Pods whose nodes went away at once."), Unit("times")] = 100
    maintenance: Annotated[
        _Budget, Field(description="A pod on a node that was taken down for maintenance."), Unit("times")
    ] = 100
    admission: Annotated[_Budget, Field(description="A pod that its node refused to start."), Unit("times")] = 100
    image: Annotated[_Budget, Field(description="A pod whose image could not be fetched."), Unit("times")] = 10
    unknown: Annotated[_Budget, Field(description="A pod that ended without a word."), Unit("times")] = 100


class Recovery(StrictModel):
    """What happens when something ends that should not."""

    restarts: Annotated[Restarts, Field(description="The budget of restarts of each cause.")] = Restarts()
    backoff: Annotated[
        Duration,
        Field(description="Wait before a second restart without a new checkpoint between; doubles up to 5m."),
        Unit("duration"),
    ] = Duration("1s")
    hang_after: Annotated[
        Duration, Field(description="Time without any progress after which the processes are ended."), Unit("duration")
    ] = Duration("5m")
    start_within: Annotated[
        Duration,
        Field(
            description="Time within which all hosts must be there at first; in clusters it counts from the first one."
        ),
        Unit("duration"),
    ] = Duration("30m")
    replace_within: Annotated[
        Duration, Field(description="Time within which a lost host must be back."), Unit("duration")
    ] = Duration("10m")
