"""`spec.preflight: plan` on a real cluster: a class whose memory is too small, and one whose memory is not."""

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

# What the small job needs of a device is between the two.
MEMORY = {"cpu-cramped": "2Mi", "cpu-roomy": "1Gi"}


def accelerator(name: str, memory: str) -> dict[str, Any]:
    """Return a class of simulated devices that says how much memory they have and how fast they are."""
    spec = {
        "platform": "cpu",
        "description": f"simulated devices with {memory} each",
        "kernels": ["plain", "blockwise"],
        "hosts": {"max": 4, "maxDevices": 8},
        "deviceMemory": memory,
        "memoryBandwidth": "10G",
        "peakFlops": {"bfloat16": "100G", "float32": "100G"},
        "interconnect": {"axes": 1, "bandwidth": "1G"},
    }
    return {
        "apiVersion": "shardwise.dev/v1alpha1",
        "kind": "AcceleratorClass",
        "metadata": {"name": name},
        "spec": spec,
    }


def planned(accelerator: str) -> dict[str, Any]:
    """Return a small job on a class, with a plan before it."""
    job = small(steps=STEPS, checkpoint={"everySteps": 100})
    job["spec"]["hardware"]["accelerator"] = accelerator
    return job | {"metadata": {"name": "planned"}, "spec": job["spec"] | {"preflight": "plan"}}


@pytest.fixture
def classes(cluster: Cluster, _chart: Cluster, cluster_namespace: str) -> Iterator[None]:
    """Have the cluster offer both classes, until the test ends."""
    made = json.dumps({"apiVersion": "v1", "kind": "List", "items": [accelerator(*each) for each in MEMORY.items()]})
    cluster.client.kubectl("apply", "--filename=-", stdin=made)
    for name in MEMORY:
        wait(f"a job of {name} to be let in", partial(let_in, cluster.client, cluster_namespace, planned(name)))
    yield
    cluster.client.kubectl("delete", "accel", *MEMORY)


@pytest.mark.long  # the controller's part of it is in tests/operator, the plan's in tests/cli
@pytest.mark.usefixtures("classes")
def test_a_job_that_does_not_fit_asks_for_no_hardware(
    apply: Apply, cluster: Cluster, cluster_namespace: str, here: Here
) -> None:
    """It says its figures and what would help, and no pod of its hosts was ever there.

    On a class that has the memory the same job fits, trains, and ends as `shardwise run` does.
    """
    pods = f"/api/v1/namespaces/{cluster_namespace}/pods"
    before = cluster.client.request("GET", pods)["metadata"]["resourceVersion"]
    job = apply(planned("cpu-cramped"))
    job.until("a verdict", lambda: job.status.get("reason") == "NotFitting")
    watched = job.kubectl("get", "--raw", f"{pods}?watch=1&resourceVersion={before}&timeoutSeconds=2")
    seen = {json.loads(line)["object"]["metadata"]["name"] for line in watched.splitlines()}
    refused = job.status

    assert seen == {"planned-plan-0"}
    assert refused["phase"] == "Pending"
    (fits,) = (each for each in refused["conditions"] if each["type"] == "Fits")
    assert (fits["status"], fits["message"]) == ("False", refused["message"])
    assert fits["message"].startswith("peak ")
    assert " MiB a device of 2.0 MiB; what makes it fit: training." in fits["message"]
    assert "does not fit" in job.kubectl("logs", "planned-plan-0")

    job.patch(suspend=True, hardware={"accelerator": "cpu-roomy"})
    job.kubectl("wait", "--for=condition=Suspended", "tj/planned", "--timeout=60s")
    job.patch(suspend=False)
    job.until_phase("Complete", 600)
    finished = job.status
    (fits,) = (each for each in finished["conditions"] if each["type"] == "Fits")
    assert fits["status"] == "True"
    assert fits["message"].endswith(" MiB a device of 1.0 GiB")
    assert {"planned-plan-1", "planned-0-0-1", "planned-0-1-1"} <= {each["metadata"]["name"] for each in job.all_pods}
    assert Ended(finished["digest"], job.losses) == here(small(steps=STEPS))
