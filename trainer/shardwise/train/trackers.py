"""Metrics to TensorBoard and Weights & Biases, for those who ask for them in the job file; both are extras.

Called by the loop on the process that writes what is written once.
"""

from collections.abc import Mapping
from pathlib import Path

from shardwise.job.errors import UsageError
from shardwise.job.spec import TrainingJob
from shardwise.train.metrics import Tracker


def trackers(job: TrainingJob, logs: Path) -> list[Tracker]:
    """The trackers that the job asks for.

    Raises:
        UsageError: the extra is not installed.

    """
    wanted: list[Tracker] = []
    tracking = job.spec.training.tracking
    if tracking.tensorboard:
        wanted.append(TensorBoard(logs / "tensorboard"))
    if tracking.wandb_project is not None:
        wanted.append(WeightsAndBiases(tracking.wandb_project, job.metadata.name, logs))
    return wanted


class TensorBoard:
    """Scalars as TensorBoard event files."""

    def __init__(self, folder: Path) -> None:
        """Open a new event file in the folder."""
        try:
            from tensorboardX import SummaryWriter  # noqa: PLC0415  an extra
        except ImportError as error:
            raise UsageError(_missing("tensorboard")) from error
        self._writer = SummaryWriter(str(folder))

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Take one step's numbers."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is held back."""
        self._writer.close()


class WeightsAndBiases:
    """Scalars as one Weights & Biases run, which a restart resumes."""

    def __init__(self, project: str, name: str, logs: Path) -> None:
        """Start, or resume, the run called after the job."""
        try:
            import wandb  # noqa: PLC0415  an extra
        except ImportError as error:
            raise UsageError(_missing("wandb")) from error
        self._run = wandb.init(project=project, name=name, id=name, resume="allow", dir=str(logs))

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Take one step's numbers."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Send what is held back."""
        self._run.finish()


def _missing(extra: str) -> str:
    return (
        f"tracking.{extra}: the package is not installed; install shardwise[{extra}], or leave the field out of the job"
    )
