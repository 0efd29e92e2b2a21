"""The `training.batch` section: how many sequences a step trains on, and with how many a run begins."""

from typing import Annotated

from pydantic import Field

from shardwise.job.spec.base import Count, Unit
from shardwise.protocol.strict_model import StrictModel


class RampUp(StrictModel):
    """A smaller batch of the steps up to one."""

    until_step: Annotated[Count, Unit("step")] = Field(
        description="The last step with so many sequences; ascending, before the run's last."
    )
    sequences: Annotated[Count, Unit("sequences")] = Field(
        description="Sequences of one of these steps; ascending, and fewer than the batch's."
    )


class Batch(StrictModel):
    """How much one step trains on."""

    sequences: Annotated[Count, Unit("sequences")] = Field(description="Sequences of one step, over all devices.")
    microbatches: Annotated[int, Unit("parts")] = Field(
        1, ge=1, le=65536, description="Parts that a step goes through in turn, to save memory."
    )
    ramp_up: tuple[RampUp, ...] = Field(
        (),
        strict=False,
        max_length=16,
        description="Fewer sequences at first; the run has a step program for each number.",
    )
