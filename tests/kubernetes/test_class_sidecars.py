"""A class whose machines need a container beside the trainer, as GKE's H100 do: real pods, with simulated devices."""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest
from tests.cluster.cluster import Cluster
from tests.cluster.commands import wait
from tests.kubernetes.jobs import STEPS, Ended, Job, let_in, small

Apply = Callable[[Mapping[str, Any]], Job]
Here = Callable[[Mapping[str, Any]], Ended]

NAME = "cpu-receiver"
NET_ADMIN = 1 << 12
# Takes a while until it is up, and goes when it is told to.
RECEIVER = "trap 'exit 0' TERM; sleep 2; touch /tmp/up; while :; do sleep 0.1; done"


def accelerator(image: str) -> dict[str, Any]:
    """Return a class whose container runs an image."""
    receiver = {
        "name": "receiver",
        "image": image,
        "command": ["sh", "-c", RECEIVER],
        "started": ["test", "-e", "/tmp/up"],  # noqa: S108  the container's own
        "capabilities": ["NET_ADMIN"],
        "env": [{"name": "RECEIVES", "value": "all"}],
        "hostPaths": [{"name": "sys", "path": "/sys", "mountPath": "/hostsysfs"}],
    }
    spec = {
        "platform": "cpu",
        "description": "simulated devices behind a receiver",
        "kernels": ["plain", "blockwise"],
        "hosts": {"max": 4, "maxDevices": 8},
        "podSecurity": "privileged",
        "sidecars": [receiver],
        "annotations": {"networks.example/interfaces": "eth0"},
    }
    metadata = {"name": NAME}
    return {"apiVersion": "shardwise.dev/v1alpha1", "kind": "AcceleratorClass", "metadata": metadata, "spec": spec}


@pytest.fixture
def behind_a_receiver(cluster: Cluster, _chart: Cluster, cluster_namespace: str) -> Iterator[dict[str, Any]]:
    """Have the cluster offer the class until the test ends, and return a job for it."""
    job = small(steps=STEPS, checkpoint={"everySteps": 100}) | {"metadata": {"name": "received"}}
    job["spec"]["hardware"]["accelerator"] = NAME
    cluster.client.kubectl("apply", "--filename=-", stdin=json.dumps(accelerator(cluster.load("cpu"))))
    wait(f"a job of {NAME} to be let in", partial(let_in, cluster.client, cluster_namespace, job))
    yield job
    cluster.client.kubectl("delete", "accel", NAME)


@pytest.mark.long  # such pods are rendered in tests/operator/render, and their states decided on in its policies
def test_a_job_trains_beside_the_container_of_its_class(
    behind_a_receiver: dict[str, Any], apply: Apply, here: Here
) -> None:
    """It is up before the trainer starts, has what the class gives it, and keeps no pod from its end."""
    job = apply(behind_a_receiver)
    job.until_taken(5)
    (pod, *_) = job.all_pods
    inside = ("exec", pod["metadata"]["name"], "--container=receiver", "--")
    status = job.kubectl(*inside, "cat", "/proc/1/status")
    (capabilities,) = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff"))
    assert capabilities & NET_ADMIN
    assert "lo" in job.kubectl(*inside, "ls", "/hostsysfs/class/net").split()
    assert job.kubectl(*inside, "printenv", "RECEIVES").strip() == "all"
    assert pod["metadata"]["annotations"]["networks.example/interfaces"] == "eth0"
    (receiver,), (agent,) = pod["status"]["initContainerStatuses"], pod["status"]["containerStatuses"]
    assert receiver["started"]
    assert agent["state"]["running"]["startedAt"] > receiver["state"]["running"]["startedAt"]

    job.until_phase("Complete", 600)
    job.until("the pods' end", lambda: {one["status"]["phase"] for one in job.all_pods} == {"Succeeded"}, 60)
    assert Ended(job.status["digest"], job.losses) == here(small(steps=STEPS))
