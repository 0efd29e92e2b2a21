"""shardwise.client.cluster and shardwise.client.job: jobs on a real API server, with a real operator.

Logs need pods that run: tests/kubernetes/test_client.py.
"""

import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.operator.building import manifest as manifest_in_default
from tests.operator.building import record
from tests.operator.operating import Place, StandInAgents, told

from shardwise.cli.in_cluster import print_status
from shardwise.client import Cluster
from shardwise.client.pods import Pods
from shardwise.job.document import write_document
from shardwise.protocol.errors import ClusterError, JobError, UsageError

HOSTS = ("job-0-0-0", "job-0-1-0")


def manifest() -> dict[str, Any]:
    """Return a job of two hosts that names no namespace."""
    job = manifest_in_default()
    del job["metadata"]["namespace"]
    return job


@pytest.mark.usefixtures("operator")
def test_submitted_stopped_and_gone_on_with(cluster_client: Cluster, place: Place, agents: StandInAgents) -> None:
    """A submitted job trains; `stop` suspends it; the same `submit` goes on with it; its status has types."""
    agents.answer = told(step=10)
    job = cluster_client.submit(manifest())
    place.until_pods(*HOSTS)
    place.run(*HOSTS)
    place.until_phase("Running")
    assert [Pods(job._api, job.namespace, "job").newest(host) for host in range(3)] == [*HOSTS, None]
    status = job.status
    assert status.progress is not None
    assert (status.progress.step, status.progress.of, status.progress.loss) == (10, 100, "2.5000")
    with (console := Console(width=80, color_system=None)).capture() as printed:
        print_status("job", status, console)
    lines = {" ".join(line.split()) for line in printed.get().splitlines()}
    assert {"loss 2.5000", "held-out loss 2.7500"} <= lines

    job.stop()
    place.until("host 0 to be asked", lambda: bool(agents.stopped))
    for pod in HOSTS:
        place.end(pod, 80, record(80))
    assert job.wait().phase == "Suspended"

    assert cluster_client.submit(manifest()).name == "job"
    place.until_pods("job-0-0-1", "job-0-1-1")
    assert [each.name for each in cluster_client.jobs()] == ["job"]

    job.delete()
    place.until("the job to be gone", lambda: not cluster_client.jobs())


@pytest.mark.usefixtures("operator")
def test_followed_to_its_end(cluster_client: Cluster, place: Place, agents: StandInAgents) -> None:
    """Each change of the status is told once, in order, up to the end."""
    agents.answer = told(step=10)
    job = cluster_client.submit(manifest())
    found: list[str | None] = []
    following = threading.Thread(target=lambda: found.extend(status.phase for status in job.follow()))
    following.start()
    place.until_pods(*HOSTS)
    place.run(*HOSTS)
    place.until_phase("Running")
    for pod in HOSTS:
        place.end(pod, 0, record(0))
    following.join(60)

    assert not following.is_alive()
    assert found[-1] == "Complete"
    phases = list(dict.fromkeys(found))
    assert phases == sorted(phases, key=[None, "Pending", "Starting", "Running", "Complete"].index)
    assert list(job.follow())[-1].digest == "d" * 16


def test_what_the_author_left_out_is_not_sent(cluster_client: Cluster, place: Place, tmp_path: Path) -> None:
    """A file is sent as it is written, with what --set changes, so that defaults stay the operator's."""
    path = tmp_path / "job.yaml"
    path.write_text(write_document(manifest()), encoding="utf-8")
    cluster_client.submit(path, ["training.steps=7"])

    expected = manifest()["spec"]
    expected["training"]["steps"] = 7
    assert place.job()["spec"] == {**expected, "suspend": False}


def test_mistakes(cluster_client: Cluster) -> None:
    """What is wrong is refused here, before anything is sent; what only the cluster knows, by the API server."""
    with pytest.raises(JobError, match=r"spec\.training\.steps"):
        cluster_client.submit(manifest(), ["training.steps=-1"])
    assert not cluster_client.jobs()

    job = cluster_client.submit(manifest())
    with pytest.raises(ClusterError, match="seed"):
        cluster_client.submit(manifest(), ["training.seed=12345"])
    with pytest.raises(UsageError, match=r"metadata.namespace is default"):
        cluster_client.submit(manifest_in_default())
    with pytest.raises(ClusterError, match="no pod of host 0"):
        list(job.logs())
    with pytest.raises(ClusterError, match=r'trainingjobs.* "none" not found'):
        cluster_client.job("none").read()


def test_a_newer_operators_status(cluster_client: Cluster, place: Place) -> None:
    """Fields that this release does not know are left out, at every depth."""
    job = cluster_client.submit(manifest())
    read = {"phase": "Running", "new": 1, "progress": {"step": 3, "newer": {"a": 1}}}
    answered = {"metadata": {"generation": 1}, "status": read}
    job._api.get = lambda *_, **__: answered  # type: ignore[method-assign]  # an API server that has other CRDs

    status = job.status
    assert (status.phase, status.progress and status.progress.step) == ("Running", 3)
    assert place.there("trainingjobs", "job", "apis/shardwise.dev/v1alpha1")


def test_no_cluster(tmp_path: Path) -> None:
    """Without a kubeconfig, and where nothing listens, the error says what was tried and what to do."""
    with pytest.raises(ClusterError, match="KUBECONFIG"):
        Cluster(kubeconfig=tmp_path / "none")
    user = {"name": "u", "user": {}}
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "team"}}
    config = {"kind": "Config", "current-context": "x", "clusters": [cluster], "users": [user], "contexts": [context]}
    path = tmp_path / "config"
    path.write_text(write_document(config), encoding="utf-8")
    nobody = Cluster(kubeconfig=path)
    assert nobody.namespace == "team"
    with pytest.raises(ClusterError, match=r"127.0.0.1:9 does not answer"):
        nobody.jobs()
