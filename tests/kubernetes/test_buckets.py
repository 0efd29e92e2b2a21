"""Checkpoints and run directories in a bucket: pods that find its key in a Secret, and an S3 server that checks it.

That a run whose directory is lost goes on from its bucket is shown without a cluster: tests/hosts/test_in_a_bucket.py.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from tests.cluster.client import Client
from tests.cluster.cluster import Cluster
from tests.kubernetes.bucket import Bucket, serving
from tests.kubernetes.jobs import STEPS, Ended, Job, small

Apply = Callable[..., Job]
Here = Callable[[Mapping[str, Any]], Ended]

KEY = "bucket"  # the name of a Secret
EVERY_STEPS = 20


@pytest.fixture(scope="module")
def bucket(_running_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    """Return an empty bucket that pods reach."""
    with serving(_running_cluster.address, tmp_path_factory.mktemp("s3")) as bucket:
        yield bucket


def test_without_a_volume(apply: Apply, bucket: Bucket, cluster: Cluster, cluster_namespace: str, here: Here) -> None:
    """A job whose pods mount no volume goes on after the loss of host 0 with its disk, to the same digest."""
    make_secret(cluster.client, cluster_namespace, bucket.environment)
    example = job_with(bucket)
    example["spec"]["training"]["checkpoint"]["path"] = f"s3://{bucket.name}/alone/checkpoints"
    agent = {"name": "agent", "envFrom": [{"secretRef": {"name": KEY}}]}
    template = {"spec": {"containers": [agent]}}
    example["spec"]["pod"] |= {"directory": f"s3://{bucket.name}/alone", "template": template}
    job = apply(example, bucket.folder)
    job.until("checkpoints", lambda: len(committed(bucket, "alone/checkpoints")) >= 2)
    job.kubectl("delete", "pod", f"{job.name}-0-0-0", "--grace-period=0", "--force")

    job.until_phase("Complete", 600)
    expected = here(example)
    assert job.status["digest"] == expected.digest
    assert (job.status["restartCount"], len(job.began)) == (1, 2)
    assert job.losses.items() <= expected.losses.items()
    assert max(job.losses) == STEPS


def test_a_wrong_key_is_told(apply: Apply, bucket: Bucket, cluster: Cluster, cluster_namespace: str) -> None:
    """The job fails at once as bad input, and its message has the address and what the server said."""
    key = {"AWS_SECRET_ACCESS_KEY": "a guess"}
    make_secret(cluster.client, cluster_namespace, bucket.environment | key)
    job = apply(job_with(bucket))

    job.until("its end", lambda: job.phase == "Failed")
    message = job.status["message"]
    assert "s3://runs/cpu-two-hosts cannot be used: PERMISSION_DENIED: SignatureDoesNotMatch" in message, message
    assert job.status.get("restarts", {}) == {}


def job_with(bucket: Bucket) -> dict[str, Any]:
    """Two small hosts that keep their checkpoints in the bucket, with the key in a Secret."""
    checkpoint = {"everySteps": EVERY_STEPS, "path": f"s3://{bucket.name}/cpu-two-hosts", "keep": {"last": 2}}
    job = small(steps=STEPS, checkpoint=checkpoint)
    job["spec"]["pod"]["template"]["spec"]["containers"][0]["envFrom"] = [{"secretRef": {"name": KEY}}]
    return job


def make_secret(client: Client, namespace: str, variables: Mapping[str, str]) -> None:
    """Make the Secret that the job's pods take their variables from."""
    body = {"metadata": {"name": KEY}, "stringData": dict(variables)}
    client.request("POST", f"/api/v1/namespaces/{namespace}/secrets", body)


def committed(bucket: Bucket, run: str) -> list[int]:
    """The steps of the run's checkpoints in the bucket that are whole."""
    return sorted(int(marker.parent.name.removeprefix("step-")) for marker in (bucket.folder / run).glob("*/COMMITTED"))
