"""A run of MLflow, which restarts continue. The package mlflow-skinny is an extra.

MLflow cannot take a number back. So of steps that are repeated after a restart it keeps the numbers it has: what it
has is in tags of the run, which travel with the numbers.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, starmap

from shardwise.protocol.errors import UsageError
from shardwise.protocol.storage import first_line
from shardwise.train.background import Point, without_password

URI = "MLFLOW_TRACKING_URI"
_ID_TAG, _STEPS_TAG = "shardwise.run", "shardwise.lastSteps"
_MOST_METRICS = 900  # of one request; with up to 100 tags it is one, and mlflow sends more than 1,000 in two
_MOST_CHARACTERS = 500  # of a tag's value; newer servers take 5,000 or 8,000
_PASSING_REPLIES = (408, 425, 429)


class Mlflow:
    """Scalars in one run of an MLflow experiment."""

    def __init__(self, experiment: str, name: str, run_id: str) -> None:
        """Find the run of a run directory by the directory's id, or make it.

        Raises:
            UsageError: the server refuses, or the environment names none.
            MlflowException: it does not answer.

        """
        # The numbers of a person's training are nobody else's.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient  # noqa: PLC0415  an extra, and it takes seconds
        from mlflow.exceptions import MlflowException  # noqa: PLC0415

        try:
            self._client = MlflowClient(tracking_uri=os.environ[URI])
            self._run_id = self._find_or_make(experiment, name, run_id)
        except MlflowException as error:
            status = error.get_http_status_code()
            if 400 <= status < 500 and status not in _PASSING_REPLIES:
                why = without_password(first_line(error)).rstrip(".")
                raise UsageError(
                    f"tracking.mlflowExperiment {experiment!r}: {why}. Expected in {URI} the "
                    "address of a server that lets this run write there (in pods from a Secret, with "
                    "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD or MLFLOW_TRACKING_TOKEN)"
                ) from error
            raise
        self._client.update_run(self._run_id, status="RUNNING")

    def send(self, points: Sequence[Point]) -> None:
        """Send the numbers of the steps that the run lacks."""
        from mlflow.entities import Metric, RunTag  # noqa: PLC0415  an extra

        last = self._last_steps()
        lacking = _lacking(points, last)
        while metrics := [
            Metric(name, value, int(at * 1000), step) for name, value, at, step in islice(lacking, _MOST_METRICS)
        ]:
            last.update({metric.key: metric.step for metric in metrics})
            self._client.log_batch(self._run_id, metrics=metrics, tags=list(starmap(RunTag, _as_tags(last))))

    def close(self, *, complete: bool) -> None:
        """Mark the run as finished; as killed if it may go on, which makes it running again."""
        self._client.set_terminated(self._run_id, "FINISHED" if complete else "KILLED")

    def _find_or_make(self, experiment: str, name: str, run_id: str) -> str:
        number = self._experiment(experiment)
        runs = self._client.search_runs([number], f"tags.`{_ID_TAG}` = '{run_id}'")
        run = runs[0] if runs else self._client.create_run(number, run_name=name, tags={_ID_TAG: run_id})
        return str(run.info.run_id)

    def _experiment(self, name: str) -> str:
        """Return the number of the experiment of this name; make it, unless another run does so meanwhile."""
        from mlflow.exceptions import MlflowException  # noqa: PLC0415

        if found := self._client.get_experiment_by_name(name):
            return str(found.experiment_id)
        try:
            return str(self._client.create_experiment(name))
        except MlflowException:
            if found := self._client.get_experiment_by_name(name):
                return str(found.experiment_id)
            raise

    def _last_steps(self) -> dict[str, int]:
        """Return the last step that the run has of each number, as the server says."""
        tags = self._client.get_run(self._run_id).data.tags
        last: dict[str, int] = {}
        for part in (json.loads(value) for tag, value in tags.items() if tag.startswith(_STEPS_TAG)):
            # A tag of an earlier request, which had more of them, may still be there.
            last |= {name: max(int(step), last.get(name, -1)) for name, step in part.items()}
        return last


def _as_tags(last: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield the last steps as tags, as many as their length asks for."""
    parts: list[dict[str, int]] = [{}]
    for name, step in last.items():
        if len(json.dumps({**parts[-1], name: step})) > _MOST_CHARACTERS:
            parts.append({})
        parts[-1][name] = step
    for number, part in enumerate(parts):
        yield f"{_STEPS_TAG}.{number}" if number else _STEPS_TAG, json.dumps(part)


def _lacking(points: Sequence[Point], last: dict[str, int]) -> Iterator[tuple[str, float, float, int]]:
    """Yield name, value, time and step of each number that is past the last one of its name."""
    had = dict(last)
    for step, values, at in points:
        yield from ((name, value, at, step) for name, value in values.items() if step > had.get(name, -1))
