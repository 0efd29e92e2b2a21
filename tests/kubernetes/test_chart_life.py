"""The chart over its life while a job trains on the cluster: upgrade, rollback, uninstall, install again.

tests/charts/test_life.py has what needs no pods that run.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from tests.kubernetes.jobs import Job, small
from tests.kubernetes.release import SYSTEM, Release

Apply = Callable[[Mapping[str, Any]], Job]

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainingjobs.shardwise.dev"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/shardwise"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
CLASSES = "/apis/shardwise.dev/v1alpha1/acceleratorclasses"
# All that the chart may have left, with the kinds of things that it brings.
KINDS = (
    "crd,acceleratorclasses,acceleratorcatalogs,validatingadmissionpolicies,validatingadmissionpolicybindings,"
    "clusterroles,clusterrolebindings,deployments,pods,jobs,services,serviceaccounts,roles,rolebindings,"
    "secrets,configmaps,leases,networkpolicies,poddisruptionbudgets"
)
# What docs/kubernetes.md and the chart's notes say that an uninstall leaves.
LEFT = {
    "customresourcedefinition.apiextensions.k8s.io/trainingjobs.shardwise.dev",
    "customresourcedefinition.apiextensions.k8s.io/acceleratorclasses.shardwise.dev",
    "customresourcedefinition.apiextensions.k8s.io/acceleratorcatalogs.shardwise.dev",
    "acceleratorcatalog.shardwise.dev/shardwise",
    "secret/shardwise-key",
    "lease.coordination.k8s.io/shardwise",
}
MORE_STEPS = 5


def test_a_job_trains_on_whatever_becomes_of_the_chart(release: Release, apply_alone: Apply) -> None:
    """No verb of Helm's touches the pods or the frozen ConfigMap, or costs the job a step.

    An upgrade brings the CRDs and a rollback leaves them. An uninstall removes the policy of classes before these, and
    leaves what the documents say. The operator of the next install has the job in hand again, and suspends it.
    """
    client = release.client
    job = apply_alone(small(checkpoint={"everySteps": 500}))
    job.until_step(3)
    before = kept(job)
    client.request("PATCH", CRD, {"spec": {"names": {"categories": []}}}, "application/merge-patch+json")

    release.upgrade(pollSeconds="1", **{"images.cpu": "localhost/of-later-jobs:1"})
    assert {"--poll-seconds=1", "--trainer-image=localhost/of-later-jobs:1"} <= arguments(release)
    assert client.request("GET", CRD)["spec"]["names"]["categories"] == ["shardwise"]
    goes_on(job)
    assert kept(job) == before

    release.rollback()
    assert "--poll-seconds=2" in arguments(release)
    assert client.request("GET", CRD)["spec"]["names"]["categories"] == ["shardwise"]
    goes_on(job)
    assert kept(job) == before

    moment = client.request("GET", POLICIES)["metadata"]["resourceVersion"]
    release.uninstall()
    policy_of_classes = removals(release, POLICIES, moment)["shardwise-accelerators"]
    assert policy_of_classes < min(removals(release, CLASSES, moment).values())
    assert left(release) == LEFT
    step = max(job.losses)
    job.until("steps without an operator", lambda: max(job.losses) >= step + 10 * MORE_STEPS)
    assert kept(job) == before

    release.install()
    job.until("the operator to see it train on", lambda: job.step > step)
    assert kept(job) == before
    job.patch(suspend=True)
    job.until_phase("Suspended", 120)
    assert job.taken == list(range(1, job.status["checkpoint"]["step"] + 1))
    assert job.status.get("restarts", {}) == {}


def goes_on(job: Job) -> None:
    """Wait until the operator tells further steps."""
    job.until_step(max(job.losses) + MORE_STEPS)


def kept(job: Job) -> tuple[dict[str, str], str, dict[str, str]]:
    """What nothing may touch while the job runs: the UIDs of its pods, and its frozen ConfigMap."""
    frozen = json.loads(job.kubectl("get", "configmap", f"{job.name}-shardwise-0", "--output=json"))
    return job.pods, frozen["metadata"]["uid"], frozen["data"]


def arguments(release: Release) -> set[str]:
    """The arguments that every operator that runs was started with."""
    wanted = release.client.request("GET", DEPLOYMENT)
    assert wanted["status"]["updatedReplicas"] == wanted["status"]["readyReplicas"] == wanted["spec"]["replicas"]
    return set(wanted["spec"]["template"]["spec"]["containers"][0]["args"])


def removals(release: Release, path: str, since: str) -> dict[str, int]:
    """The moments, on the one clock of the API server's store, at which objects of a kind went, by their names."""
    said = release.client.kubectl("get", "--raw", f"{path}?watch=1&timeoutSeconds=2&resourceVersion={since}")
    gone = [event["object"] for event in map(json.loads, said.splitlines()) if event["type"] == "DELETED"]
    return {one["metadata"]["name"]: int(one["metadata"]["resourceVersion"]) for one in gone}


def left(release: Release) -> set[str]:
    """What there is of the chart in the cluster, and in its namespace."""
    shown = release.client.kubectl("get", KINDS, "--namespace", SYSTEM, "--output=name").split()
    return {name for name in shown if "shardwise" in name}
