"""The chart, installed on the test cluster with images of this tree, for all tests of this folder."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.commands import attempt, run
from tests.cluster.fixtures import Cluster
from tests.kubernetes.jobs import ROOT, Job

SYSTEM = "shardwise-system"


@pytest.fixture(scope="session")
def _chart(_running_cluster: Cluster) -> Iterator[Cluster]:
    for target in ("operator", "cpu"):
        _running_cluster.load(target)
    where = ("--kubeconfig", _running_cluster.kubeconfig, "--namespace", SYSTEM)
    helm = _running_cluster.programs / "helm"
    words = ("upgrade", "--install", "shardwise", ROOT / "charts" / "shardwise", "--create-namespace", "--wait")
    there = attempt(helm, "status", "shardwise", *where)[0] == 0
    run(helm, *words, "--timeout=5m", *where)
    yield _running_cluster
    if not there:
        run(helm, "uninstall", "shardwise", "--wait", *where)


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
