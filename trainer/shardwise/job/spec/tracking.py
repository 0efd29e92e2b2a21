"""The `training.tracking` and `training.profile` sections: what a run shows of itself beside its own metrics."""

from typing import Annotated

from pydantic import Field

from shardwise.job.spec.base import Count, Unit
from shardwise.protocol.job_status import MAX_HOSTS
from shardwise.protocol.strict_model import StrictModel


class Tracking(StrictModel):
    """Where metrics go besides metrics.jsonl."""

    tensorboard: bool = Field(False, description="Writes TensorBoard events into the run's logs.")
    wandb_project: str | None = Field(
        None, min_length=1, max_length=128, description="Weights & Biases project to log to."
    )
    mlflow_experiment: str | None = Field(
        None, min_length=1, max_length=128, description="MLflow experiment to log to; MLFLOW_TRACKING_URI says where."
    )
    trackio_project: str | None = Field(
        None,
        min_length=1,
        max_length=128,
        description="trackio project to log to: in the run's logs, or where TRACKIO_SERVER_URL or _SPACE_ID says.",
    )


class Profile(StrictModel):
    """A trace of a few steps, for xprof and Perfetto, in the run directory."""

    steps: Annotated[tuple[Count, ...], Unit("steps")] = Field(
        strict=False, min_length=2, max_length=2, description="First and last step of the trace."
    )
    ranks: tuple[Annotated[int, Field(ge=0, lt=MAX_HOSTS)], ...] = Field(
        (0,), strict=False, min_length=1, max_length=64, description="Processes that trace, one for each host."
    )
