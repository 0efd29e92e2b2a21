"""Metrics sent to TensorBoard and Weights & Biases, if the job file asks for it. Both packages are extras."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from shardwise.job.spec import TrainingJob
from shardwise.protocol.errors import UsageError
from shardwise.protocol.storage import first_line
from shardwise.train.metrics import Tracker
from shardwise.train.run_directory import RunDirectory

ANSWER_SECONDS = 20.0
"""How long a start waits for a service that does not respond."""
REFUSED = re.compile(r"returned error 4\d\d")
"""What wandb reports for a wrong key or someone else's project. It retries by itself if that may help."""


def trackers(job: TrainingJob, run: RunDirectory, show: Callable[[str], None], *, after: int) -> list[Tracker]:
    """Return the trackers that the job asks for, for a run that continues after a step; `show` takes warnings.

    Raises:
        UsageError: the extra is not installed, or the service refuses the key or finds none.

    """
    wanted: list[Tracker] = []
    tracking = job.spec.training.tracking
    if tracking.tensorboard:
        wanted.append(TensorBoard(run.logs / "tensorboard", after))
    if tracking.wandb_project is not None:
        wanted.append(WeightsAndBiases(tracking.wandb_project, job.metadata.name, run, show))
    return wanted


class TensorBoard:
    """Scalars in TensorBoard event files. A step that is repeated after a restart appears once."""

    def __init__(self, folder: Path, after: int) -> None:
        """Open a new event file in the folder; later events of older files (steps > `after`) are dropped."""
        try:
            from tensorboardX import SummaryWriter  # noqa: PLC0415  an extra
        except ImportError as error:
            raise UsageError(_missing("tensorboard", "tensorboard")) from error
        self._writer = SummaryWriter(str(folder), purge_step=after + 1)

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Take one step's numbers."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is buffered."""
        self._writer.close()


class WeightsAndBiases:
    """Scalars in one Weights & Biases run, which a restart continues.

    If the service does not respond, training goes on offline: the numbers are kept in the run's logs, and `wandb sync`
    sends them later. If it refuses, the run ends before it trains.
    """

    def __init__(self, project: str, name: str, run: RunDirectory, show: Callable[[str], None]) -> None:
        """Start the Weights & Biases run of this directory, or continue it."""
        try:
            import wandb  # noqa: PLC0415  an extra
        except ImportError as error:
            raise UsageError(_missing("wandbProject", "wandb")) from error
        begin = partial(
            wandb.init,
            project=project,
            name=name,
            id=run.run_id(),
            resume="allow",
            dir=str(run.logs),
            settings=wandb.Settings(console="off", silent=True, init_timeout=ANSWER_SECONDS),
        )
        try:
            self._run = begin()
        except (wandb.errors.UsageError, wandb.errors.CommError) as error:
            why = first_line(error)
            refused = isinstance(error, wandb.errors.UsageError | wandb.errors.AuthenticationError)
            if refused or REFUSED.search(why):
                raise UsageError(
                    f"tracking.wandbProject {project!r}: {why.rstrip('.')}. Set WANDB_API_KEY to a key that may write "
                    "there (in pods from a Secret, by pod.envFrom), or WANDB_MODE=offline to keep the numbers in the "
                    "run's logs"
                ) from error
            wandb.teardown()  # its service process still holds the run's id
            self._run = begin(mode="offline")
            show(f"Weights & Biases does not answer ({why}): the numbers wait in {run.logs / 'wandb'} for `wandb sync`")

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Take one step's numbers."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Send what is buffered."""
        self._run.finish()


def _missing(field: str, extra: str) -> str:
    return (
        f"tracking.{field}: the package is not installed; install shardwise[{extra}], or leave the field out of the job"
    )
