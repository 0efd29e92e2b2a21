"""The chart, installed on the test cluster with images of this tree, for all tests of this folder."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.cluster import Cluster
from tests.cluster.commands import wait
from tests.cluster.programs import locked
from tests.kubernetes.jobs import Ended, Job, train_here
from tests.kubernetes.release import SYSTEM, Release, installed

Apply = Callable[..., Job]


@pytest.fixture(scope="session")
def _chart(_running_cluster: Cluster) -> Iterator[Cluster]:
    for target in ("operator", "cpu"):
        image = _running_cluster.load(target)
        # Before its nodes say that they have it, the scheduler packs all pods onto the first one that does.
        wait(f"all nodes to show {image}", partial(_shown, _running_cluster, image))
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
def apply(_chart: Cluster, cluster: Cluster, cluster_namespace: str, runs_volume: Path) -> Iterator[Apply]:
    """Return a function that applies a job in a namespace of the test's own; afterwards nothing of it is left.

    Its run directory is on a volume, or in the bucket whose objects lie in the folder that is given.
    """
    with _applying(cluster, cluster_namespace, runs_volume) as applied:
        yield applied


@pytest.fixture
def apply_alone(_chart: Cluster, whole_cluster: Cluster, cluster_namespace: str, runs_volume: Path) -> Iterator[Apply]:
    """Return the same function, for a test that nobody may meet on the cluster."""
    with _applying(whole_cluster, cluster_namespace, runs_volume) as applied:
        yield applied


@pytest.fixture(scope="session")
def here(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Mapping[str, Any]], Ended]:
    """Return what a job ends with by `shardwise run` on this machine; all processes of pytest train each one once.

    Checkpoints change nothing of it, so jobs that differ in them are one.
    """
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def trained(job: Mapping[str, Any]) -> Ended:
        training = {key: value for key, value in job["spec"]["training"].items() if key != "checkpoint"}
        alone = {**job, "spec": {"hardware": job["spec"]["hardware"], "training": training}}
        name = hashlib.sha256(json.dumps(alone["spec"], sort_keys=True).encode()).hexdigest()[:16]
        with locked(f"here-{name}", shared):
            return train_here(alone, shared / f"here-{name}")

    return trained


@pytest.fixture
def operator(_chart: Cluster) -> Callable[..., str]:
    """Return kubectl in the operator's namespace."""

    def kubectl(*words: str) -> str:
        return _chart.client.kubectl("--namespace", SYSTEM, *words)

    return kubectl


def _shown(cluster: Cluster, image: str) -> bool:
    nodes = [node for node in cluster.client.request("GET", "/api/v1/nodes")["items"] if node["status"].get("images")]
    known = {node["metadata"]["name"] for node in nodes if _has(node, image)}
    return set(cluster.nodes) <= known


def _has(node: Mapping[str, Any], image: str) -> bool:
    return any(image in each.get("names", ()) for each in node["status"]["images"])


@contextmanager
def _applying(cluster: Cluster, namespace: str, volume: Path) -> Iterator[Apply]:
    made: list[Job] = []

    def applied(job: Mapping[str, Any], bucket: Path | None = None) -> Job:
        made.append(Job(cluster.client, namespace, bucket or volume, job))
        return made[-1]

    yield applied
    for job in made:
        job.delete()
        if job.folder.is_relative_to(volume):
            cluster.erase(job.folder)
        else:  # a bucket's objects, which this machine's own server has written
            shutil.rmtree(job.folder, ignore_errors=True)
