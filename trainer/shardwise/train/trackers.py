"""Metrics for TensorBoard, Weights & Biases, MLflow and trackio, if the job asks for it. The packages are extras.

TensorBoard drops the steps that a run goes back from. The others cannot, so a fork that goes back is for them a run of
its own, from the step that it goes on from.
"""

import importlib.util
import os
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from shardwise.job.spec import TrainingJob
from shardwise.job.spec.tracking import Tracking
from shardwise.protocol.errors import UsageError
from shardwise.protocol.storage import first_line
from shardwise.train import trackio_run
from shardwise.train.background import ANSWER_SECONDS, Background, Point, Service
from shardwise.train.metrics import Tracker
from shardwise.train.mlflow_run import URI, Mlflow
from shardwise.train.run_directory import RunDirectory
from shardwise.train.tensorboard_run import TensorBoard
from shardwise.train.trackio_run import Records

REFUSED = re.compile(r"returned error 4\d\d")
"""What wandb reports for a wrong key or someone else's project. It retries by itself if that may help."""


def trackers(job: TrainingJob, run: RunDirectory, show: Callable[[str], None], *, after: int) -> list[Tracker]:
    """Return the trackers that the job asks for, for a run that continues after a step; `show` takes warnings.

    Raises:
        UsageError: the extra is not installed, or the service refuses the key or finds none.

    """
    tracking, forked = job.spec.training.tracking, run.read_forks().suffix
    _check(tracking)
    wanted: dict[str, Callable[[], Service]] = {}
    name, run_id = job.metadata.name + forked, run.run_id() + forked
    if tracking.tensorboard:
        wanted["TensorBoard"] = _ready(TensorBoard(run.logs / "tensorboard", after))
    if tracking.wandb_project is not None:
        wanted["Weights & Biases"] = _ready(WeightsAndBiases(tracking.wandb_project, name, run_id, run.logs, show))
    if tracking.mlflow_experiment is not None:
        wanted["MLflow"] = partial(Mlflow, tracking.mlflow_experiment, name, run_id)
    if tracking.trackio_project is not None:
        wanted["trackio"] = partial(trackio_run.begin, Records(tracking.trackio_project, name, run_id), run)
    begun: list[Tracker] = []
    with ExitStack() as unless_all:  # a run of a service would be shown as running for ever
        for service, begin in wanted.items():
            tracker = Background(service, begin, show)
            unless_all.callback(tracker.close, complete=False)
            begun.append(tracker)
        unless_all.pop_all()
    return begun


def _ready(service: Service) -> Callable[[], Service]:
    return lambda: service


def _check(tracking: Tracking) -> None:
    """Raise UsageError if a package is missing, or nothing says where MLflow's server is; nothing is begun."""
    if tracking.tensorboard and importlib.util.find_spec("tensorboardX") is None:
        raise UsageError(_missing("tensorboard", "tensorboard"))
    if tracking.mlflow_experiment is not None:
        _check_mlflow(tracking.mlflow_experiment)
    if tracking.trackio_project is not None and importlib.util.find_spec("trackio") is None:
        raise UsageError(_missing("trackioProject", "trackio"))


def _check_mlflow(experiment: str) -> None:
    if importlib.util.find_spec("mlflow") is None:
        raise UsageError(_missing("mlflowExperiment", "mlflow"))
    if not os.environ.get(URI):
        raise UsageError(
            f"tracking.mlflowExperiment {experiment!r}: {URI} is not set. Set it to the address of your MLflow server, "
            "such as http://mlflow.example:5000 (in pods by env or envFrom of the container agent)"
        )


class WeightsAndBiases:
    """Scalars in one Weights & Biases run, which a restart continues.

    If the service does not respond, training goes on offline: the numbers are kept in the run's logs, and `wandb sync`
    sends them later. If it refuses, the run ends before it trains.
    """

    def __init__(self, project: str, name: str, run_id: str, logs: Path, show: Callable[[str], None]) -> None:
        """Start the Weights & Biases run of this id, or continue it."""
        try:
            import wandb  # noqa: PLC0415  an extra
        except ImportError as error:
            raise UsageError(_missing("wandbProject", "wandb")) from error
        begin = partial(
            wandb.init,
            project=project,
            name=name,
            id=run_id,
            resume="allow",
            dir=str(logs),
            settings=wandb.Settings(console="off", silent=True, init_timeout=ANSWER_SECONDS),
        )
        try:
            self._run = begin()
        except ValidationError as error:
            raise UsageError(f"tracking.wandbProject {project!r}: {_wrong_variable(error)}") from error
        except wandb.Error as error:
            why = first_line(error)
            refused = isinstance(error, wandb.errors.UsageError | wandb.errors.AuthenticationError)
            if refused or REFUSED.search(why):
                raise UsageError(
                    f"tracking.wandbProject {project!r}: {why.rstrip('.')}. Set WANDB_API_KEY to a key that may write "
                    "there (in pods from a Secret, by envFrom of the container agent), or WANDB_MODE=offline to "
                    "keep the numbers in the run's logs"
                ) from error
            wandb.teardown()  # its service process still holds the run's id
            self._run = begin(mode="offline")
            show(f"Weights & Biases does not answer ({why}): the numbers wait in {logs / 'wandb'} for `wandb sync`")

    def send(self, points: Sequence[Point]) -> None:
        """Hand the numbers of some steps to W&B's own process."""
        for step, values, _ in points:
            self._run.log(dict(values), step=step)

    def close(self, *, complete: bool) -> None:  # noqa: ARG002  W&B would call a suspended run failed
        """Send what is buffered."""
        self._run.finish()


def _wrong_variable(error: ValidationError) -> str:
    """Return what wandb refuses in its settings: what is not the job's comes from the environment."""
    wrong = error.errors()[0]
    name = "WANDB_" + "_".join(map(str, wrong["loc"])).upper()
    if wrong["type"] == "literal_error":
        return f"{name}: given {wrong['input']!r}, expected {wrong['ctx']['expected']}"
    return f"{name}: {wrong['msg'][:1].lower()}{wrong['msg'][1:]}"  # a key or an address is not for a log


def _missing(field: str, extra: str) -> str:
    return (
        f"tracking.{field}: the package is not installed; install shardwise[{extra}], or leave the field out of the job"
    )
