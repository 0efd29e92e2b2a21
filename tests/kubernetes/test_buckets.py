"""Checkpoints in a bucket: pods that find its key in a Secret, and an S3 server that checks it."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.client import Client
from tests.cluster.fixtures import Cluster
from tests.kubernetes.bucket import Bucket, serving
from tests.kubernetes.jobs import Job, losses, manifest, train_here

Apply = Callable[[Mapping[str, Any]], Job]

KEY = "bucket"  # the name of a Secret
EVERY_STEPS = 10


@pytest.fixture(scope="module")
def bucket(_running_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    """Return an empty bucket that pods reach."""
    with serving(tmp_path_factory.mktemp("s3")) as bucket:
        yield bucket


def test_a_run_goes_on_from_a_bucket(
    apply: Apply, bucket: Bucket, cluster: Cluster, cluster_namespace: str, tmp_path: Path
) -> None:
    """A job deleted while it trains, whose run directory is lost, loses nothing: it is in the bucket.

    It ends with the digest and the losses of the same file on one machine, which keeps its checkpoints in a folder.
    """
    make_secret(cluster.client, cluster_namespace, bucket.environment)
    job = apply(job_with(bucket, steps=1_000_000))
    job.until("checkpoints", lambda: job.status.get("checkpoint", {}).get("step", 0) >= 2 * EVERY_STEPS)
    nodes = job.kubectl("get", "pods", "--output=jsonpath={.items[*].spec.nodeName}").split()
    assert len(set(nodes)) == len(nodes) == 2
    job.delete()
    first_half = job.losses
    assert first_half
    assert not (job.folder / "checkpoints").exists()
    saved = committed(bucket, job.name)[-1]
    shutil.rmtree(job.folder)

    ended = job_with(bucket, steps=saved + 2 * EVERY_STEPS)
    job.apply(ended)
    job.until_phase("Complete", 600)
    assert restored(job) == [saved]
    assert job.status["checkpoint"]["step"] == committed(bucket, job.name)[-1] == saved + 2 * EVERY_STEPS
    del ended["spec"]["training"]["checkpoint"]["path"]
    assert job.status["digest"] == train_here(ended, tmp_path / "here")["digest"]
    whole = losses(tmp_path / "here" / "run" / "metrics.jsonl")
    assert {step: loss for step, loss in first_half.items() if step <= saved} | job.losses == whole


def test_a_wrong_key_is_told(apply: Apply, bucket: Bucket, cluster: Cluster, cluster_namespace: str) -> None:
    """The job fails at once as bad input, and its message has the address and what the server said."""
    key = {"AWS_SECRET_ACCESS_KEY": "a guess"}
    make_secret(cluster.client, cluster_namespace, bucket.environment | key)
    job = apply(job_with(bucket, steps=20))

    job.until("its end", lambda: job.phase == "Failed")
    message = job.status["message"]
    assert "s3://runs/cpu-two-hosts cannot be read: PERMISSION_DENIED: SignatureDoesNotMatch" in message, message
    assert job.status.get("restarts", {}) == {}


def job_with(bucket: Bucket, *, steps: int) -> dict[str, Any]:
    """Two small hosts that keep their checkpoints in the bucket, with the key in a Secret."""
    checkpoint = {"everySteps": EVERY_STEPS, "path": f"s3://{bucket.name}/cpu-two-hosts", "keep": {"last": 2}}
    small = {"model": {"preset": "tiny", "seqLen": 64}, "batch": {"sequences": 8}}
    job = manifest("cpu-two-hosts", steps=steps, checkpoint=checkpoint, **small)
    job["spec"]["hardware"]["topology"] = "2x2"
    job["spec"]["pod"]["envFrom"] = [{"secretRef": {"name": KEY}}]
    return job


def make_secret(client: Client, namespace: str, variables: Mapping[str, str]) -> None:
    """Make the Secret that the job's pods take their variables from."""
    body = {"metadata": {"name": KEY}, "stringData": dict(variables)}
    client.request("POST", f"/api/v1/namespaces/{namespace}/secrets", body)


def committed(bucket: Bucket, run: str) -> list[int]:
    """The steps of the run's checkpoints in the bucket that are whole."""
    return sorted(int(marker.parent.name.removeprefix("step-")) for marker in (bucket.folder / run).glob("*/COMMITTED"))


def restored(job: Job) -> list[int]:
    """The steps that the run has been restored at."""
    records = [json.loads(line) for line in (job.folder / "metrics.jsonl").read_text().splitlines()]
    return [record["step"] for record in records if record.get("event") == "restored"]
