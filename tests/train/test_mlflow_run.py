"""Runs of MLflow, with the real package: over files without a server, and with servers that refuse or are not there."""

from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from tests.train.answers import answers
from tests.train.conftest import SMALL, run_here

from shardwise.job.load import loads
from shardwise.job.resolve import resolve
from shardwise.job.spec import TrainingJob
from shardwise.protocol.contract import ExitCode
from shardwise.protocol.errors import UsageError
from shardwise.train import background
from shardwise.train.background import Point
from shardwise.train.metrics import steps
from shardwise.train.mlflow_run import URI, Mlflow
from shardwise.train.run_directory import RunDirectory
from shardwise.train.trackers import trackers


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Return an empty run directory."""
    made = RunDirectory(tmp_path, attempt=0)
    made.logs.mkdir()
    return made


@pytest.fixture
def job() -> TrainingJob:
    """Return a job that asks for MLflow."""
    return resolve(loads(SMALL, ["training.tracking.mlflowExperiment=mine"]))


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    """Return a client of MLflow's store of files, which the environment names to runs."""
    uri = (tmp_path / "store").as_uri()
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv(URI, uri)
    return MlflowClient(tracking_uri=uri)


def runs(client: MlflowClient) -> list[Run]:
    """Return all runs of the experiment."""
    experiment = client.get_experiment_by_name("mine")
    assert experiment
    return list(client.search_runs([experiment.experiment_id]))


def train(job: TrainingJob, run: RunDirectory, steps: range, scale: float = 1.0, *, complete: bool = False) -> None:
    """Take some steps as one start of a run, with an evaluation at each second one; each loss is scale / step."""
    (tracker,) = trackers(job, run, pytest.fail, after=steps[0] - 1)
    for step in steps:
        tracker.step(step, {"loss": scale / step, "gradNorm": 1.0})
        if step % 2 == 0:
            tracker.step(step, {"heldOutLoss": 2 * scale / step})
    tracker.close(complete=complete)


def test_a_restart_goes_on_with_the_run(run: RunDirectory, job: TrainingJob, client: MlflowClient) -> None:
    """There is one run for a directory, named after the job; each step is in it once, from wherever a restart began."""
    train(job, run, range(1, 5))
    train(job, run, range(3, 7), complete=True)  # as from the checkpoint of step 2

    (found,) = runs(client)
    assert (found.info.run_name, found.info.status) == ("small", "FINISHED")
    losses = client.get_metric_history(found.info.run_id, "loss")
    assert sorted((metric.step, metric.value) for metric in losses) == [(step, 1.0 / step) for step in range(1, 7)]
    evaluations = client.get_metric_history(found.info.run_id, "heldOutLoss")
    assert sorted(metric.step for metric in evaluations) == [2, 4, 6]


@pytest.mark.usefixtures("as_a_trainer")
def test_a_fork_that_goes_back_is_a_run_of_its_own(run: RunDirectory, tmp_path: Path, client: MlflowClient) -> None:
    """What MLflow has of the steps after it cannot be taken back; a restart of the fork goes on with the fork's run."""
    text = tmp_path / "text.txt"
    text.write_text("all work and no play " * 2000)
    words = [f"training.data.train.0.paths=[{text}]", "training.tracking.mlflowExperiment=mine"]
    words += ["training.model.layers=1", "training.checkpoint={everySteps: 2, keep: {last: 9}}"]
    assert run_here(run.path, *words, "training.steps=6") == ExitCode.OK
    first = {record["step"]: record["loss"] for record in steps(run.metrics)}
    words += ["training.optimizer.learningRate=1e-2"]
    assert run_here(run.path, *words, "training.steps=7", fork=True, step=4) == ExitCode.OK
    assert run_here(run.path, *words, "training.steps=8") == ExitCode.OK
    now = {record["step"]: record["loss"] for record in steps(run.metrics)}

    curves = {each.info.run_name: client.get_metric_history(each.info.run_id, "loss") for each in runs(client)}
    found = {name: {metric.step: metric.value for metric in curve} for name, curve in curves.items()}
    assert found == {"small": first, "small-fork-1": {step: now[step] for step in range(5, 9)}}
    assert first[6] != now[6]


def test_what_was_sent_and_not_acknowledged_is_not_sent_again(
    run: RunDirectory, job: TrainingJob, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request whose answer is lost has arrived all the same: the next try asks first."""
    monkeypatch.setattr(background, "_FIRST_PAUSE_SECONDS", 0.001)
    real, lost = MlflowClient.log_batch, iter([True, True])

    def log_batch(self: MlflowClient, *rest: object, **named: object) -> None:
        real(self, *rest, **named)  # type: ignore[arg-type]
        if next(lost, False):
            raise ConnectionError("the answer is lost")

    monkeypatch.setattr(MlflowClient, "log_batch", log_batch)
    said: list[str] = []
    (tracker,) = trackers(job, run, said.append, after=0)
    tracker.step(1, {"loss": 2.5})
    tracker.step(2, {"loss": 2.0})
    tracker.close(complete=True)

    (found,) = runs(client)
    assert [metric.step for metric in client.get_metric_history(found.info.run_id, "loss")] == [1, 2]
    assert len(said) == 1


def test_no_request_is_more_than_a_server_takes(client: MlflowClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many steps and many sets with long names each number is there once, and tags fit into those of old servers."""
    monkeypatch.setenv("MLFLOW_TRUNCATE_LONG_VALUES", "false")
    names = [f"{'s' * 58}-{number}/{kind}" for number in range(32) for kind in ("loss", "accuracy")]
    numbers = [f"number{number}" for number in range(10)]
    for taken in (range(1, 101), range(51, 121)):  # as from the checkpoint of step 50
        points = [Point(step, dict.fromkeys(numbers, 1.0), 0.0) for step in taken]
        Mlflow("mine", "small", "directory").send([*points, Point(taken[-1], dict.fromkeys(names, 2.0), 0.0)])

    (found,) = runs(client)
    for name in numbers:
        history = client.get_metric_history(found.info.run_id, name)
        assert sorted(metric.step for metric in history) == list(range(1, 121))
    for name in names:
        assert [metric.step for metric in client.get_metric_history(found.info.run_id, name)] == [100, 120]
    ours = {key: value for key, value in found.data.tags.items() if key.startswith("shardwise.")}
    assert max(map(len, ours.values())) <= 500


def test_a_run_that_did_not_complete_is_not_finished(run: RunDirectory, job: TrainingJob, client: MlflowClient) -> None:
    """A stop, a kill by an error: MLflow says so, until the run goes on."""
    train(job, run, range(1, 3))

    (found,) = runs(client)
    assert found.info.status == "KILLED"


def test_another_directory_is_another_run(
    run: RunDirectory, job: TrainingJob, client: MlflowClient, tmp_path: Path
) -> None:
    """Two runs of one job share the experiment, and no numbers."""
    other = RunDirectory(tmp_path / "other", attempt=0)
    other.logs.mkdir(parents=True)
    for each in (run, other):
        train(job, each, range(1, 3))

    found = runs(client)
    counts = [len(client.get_metric_history(each.info.run_id, "loss")) for each in found]
    assert counts == [2, 2]


def test_an_experiment_that_another_run_makes_meanwhile(
    run: RunDirectory, job: TrainingJob, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of a sweep start together, and all find that there is no experiment: one makes it, and all use it."""
    make = MlflowClient.create_experiment

    def make_twice(self: MlflowClient, name: str) -> str:
        make(self, name)
        return str(make(self, name))

    monkeypatch.setattr(MlflowClient, "create_experiment", make_twice)
    train(job, run, range(1, 3))
    assert len(runs(client)) == 1


def test_no_address_is_said(run: RunDirectory, job: TrainingJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable the message names it, before anything is trained."""
    monkeypatch.delenv(URI, raising=False)
    with pytest.raises(UsageError, match=r"mlflowExperiment 'mine': MLFLOW_TRACKING_URI is not set"):
        trackers(job, run, pytest.fail, after=0)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_server_that_refuses_is_said(
    run: RunDirectory, job: TrainingJob, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """A wrong password, or an address that is no MLflow: the run ends before it trains."""
    with answers(status) as address:
        monkeypatch.setenv(URI, address)
        with pytest.raises(UsageError, match=rf"mlflowExperiment 'mine': .*{status}.* Expected in MLFLOW_TRACKING_URI"):
            trackers(job, run, pytest.fail, after=0)


@pytest.mark.parametrize("status", [None, 503])
def test_a_server_that_is_down_ends_no_run(
    run: RunDirectory, job: TrainingJob, monkeypatch: pytest.MonkeyPatch, status: int | None
) -> None:
    """Nobody listens, or a proxy says that nobody does: it is said once, and how much is missing at the end."""
    monkeypatch.setattr(background, "ANSWER_SECONDS", 0.5)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    said: list[str] = []
    with answers(status or 200) as address:
        monkeypatch.setenv(URI, address if status else "http://127.0.0.1:9")
        (tracker,) = trackers(job, run, said.append, after=0)
        tracker.step(1, {"loss": 2.5})
        tracker.close(complete=True)

    assert len(said) == 2
    assert said[0].startswith("MLflow does not take the numbers")
    assert said[1] == "MLflow lacks 1 records of this start; metrics.jsonl has them"
