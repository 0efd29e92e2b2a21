"""The chart, installed on the test cluster with images of this tree, for all tests of this folder."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.fixtures import Cluster
from tests.cluster.programs import locked
from tests.kubernetes.jobs import Job
from tests.kubernetes.release import SYSTEM, Release, installed


@pytest.fixture(scope="session")
def _chart(_running_cluster: Cluster) -> Iterator[Cluster]:
    for target in ("operator", "cpu"):
        _running_cluster.load(target)
    with installed(Release(_running_cluster)):
        yield _running_cluster


@pytest.fixture
def release(_chart: Cluster, whole_cluster: Cluster) -> Iterator[Release]:
    """Return the chart's release to a test that changes it, alone on the cluster; it is put back afterwards."""
    with locked("chart"):
        release = Release(whole_cluster)
        yield release
        release.install()


@pytest.fixture
def apply(
    _chart: Cluster, cluster: Cluster, cluster_namespace: str, runs_volume: Path
) -> Iterator[Callable[[Mapping[str, Any]], Job]]:
    """Return a function that applies a job in a namespace of the test's own; afterwards nothing of it is left."""
    made: list[Job] = []

    def applied(job: Mapping[str, Any]) -> Job:
        made.append(Job(cluster.client, cluster_namespace, runs_volume, job))
        return made[-1]

    yield applied
    for job in made:
        job.delete()
        shutil.rmtree(job.folder, ignore_errors=True)


@pytest.fixture
def operator(_chart: Cluster) -> Callable[..., str]:
    """Return kubectl in the operator's namespace."""

    def kubectl(*words: str) -> str:
        return _chart.client.kubectl("--namespace", SYSTEM, *words)

    return kubectl
