"""charts/shardwise over its life on a real API server: install, test, upgrade, rollback, uninstall, install again.

There are no nodes: a stand-in runs the operator and the hooks as processes, as the chart's own service accounts. The
release is one for all tests, and each leaves it as it found it.
"""

import json
import re
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.charts.helm import CHARTS, JOBS, SWEEP, Helm, of_teams
from tests.charts.stand_in_kubelet import command, hooks_run
from tests.cluster.api_server import ApiServer
from tests.cluster.client import Client
from tests.cluster.commands import wait

from shardwise_operator import hooks
from shardwise_operator.config import read_key
from shardwise_operator.runtime.connection import connect
from shardwise_operator.runtime.metrics import Metrics
from shardwise_operator.runtime.pace import Limiter
from shardwise_operator.runtime.transport import Api

NAMESPACE = "shardwise-system"
CHART = CHARTS / "shardwise"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/shardwise"
RELEASE = ("shardwise", CHART, "--namespace", NAMESPACE)
KEY = f"/api/v1/namespaces/{NAMESPACE}/secrets/shardwise-key"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainingjobs.shardwise.dev"
JOB = "/apis/shardwise.dev/v1alpha1/namespaces/default/trainingjobs/cpu-two-hosts"
CLASSES = "/apis/shardwise.dev/v1alpha1/acceleratorclasses"

with_operator = pytest.mark.usefixtures("operator")
pytestmark = pytest.mark.usefixtures("installed")


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """Return an API server of this file's own: the chart's objects belong to no namespace."""
    with ApiServer() as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ApiServer) -> Client:
    """Return its administrator."""
    return server.client


@pytest.fixture(scope="module")
def admin(server: ApiServer) -> Helm:
    """Return Helm as its administrator."""
    return Helm(server.kubeconfig)


@pytest.fixture(scope="module")
def installed(admin: Helm) -> None:
    """Install the chart."""
    admin("install", *RELEASE, "--create-namespace")


@pytest.fixture(scope="module")
def operator(client: Client, installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:  # noqa: ARG001  must be there first
    """Run the operator of the Deployment, as its service account, and return its log."""
    folder = tmp_path_factory.mktemp("operator")
    deployment = client.request("GET", DEPLOYMENT)
    words, variables = command(client, folder, NAMESPACE, deployment["spec"]["template"]["spec"])
    words = [re.sub(r"address=:\d+", "address=127.0.0.1:0", word) for word in words]
    log = folder / "operator.log"
    with log.open("w") as output:
        process = subprocess.Popen(words, env=variables, stdout=output, stderr=output)
    catalog = "/apis/shardwise.dev/v1alpha1/acceleratorcatalogs/shardwise"
    try:
        wait("the operator's catalogue", lambda: process.poll() is not None or client.answers(catalog))
        assert process.poll() is None, log.read_text(encoding="utf-8")
        yield log
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def job(operator: Path, client: Client) -> Iterator[None]:  # noqa: ARG001  makes its pods
    """Apply a job whose pods are made; delete it, and wait until its objects are gone too."""
    client.kubectl("apply", "-f", JOBS[0].parent / "cpu-two-hosts.yaml")
    wait("the job's pods", lambda: len(_pods(client)) == 2)
    yield
    client.kubectl("delete", "tj", "cpu-two-hosts")
    wait("the end of its pods", lambda: not _pods(client))


def test_helm_test_fails_without_an_operator(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody looks at jobs, the test says so, and leaves nothing."""
    monkeypatch.setattr(hooks, "_WAIT_SECONDS", 1.0)
    api = Api(connect(str(client.kubeconfig)), Metrics(), limiter=Limiter(20, 20))

    with pytest.raises(hooks.HookError, match="was not refused by the admission policy"):
        hooks.try_install(api, "default")
    with pytest.raises(hooks.HookError, match="no operator has looked at the job shardwise-helm-test"):
        hooks.try_install(api, "default", policy=False)
    assert not client.request("GET", JOB.rsplit("/", 1)[0])["items"]


@pytest.mark.usefixtures("job")
def test_operator_has_the_rights_that_it_needs(client: Client, operator: Path) -> None:
    """With the chart's role the operator makes all objects of a job, and nothing that it asks for is forbidden."""
    kinds = "pods,configmaps,secrets,networkpolicies"

    made = client.kubectl("get", kinds, "-l", "shardwise.dev/job=cpu-two-hosts", "-o", "name").split()

    assert {name.split("/")[0] for name in made} == {
        "configmap",
        "networkpolicy.networking.k8s.io",
        "pod",
        "secret",
    }
    assert "403 Forbidden" not in operator.read_text(encoding="utf-8")


@with_operator
def test_helm_test(admin: Helm, client: Client, tmp_path: Path) -> None:
    """`helm test` sees a wrong job refused and a right one taken up, and leaves nothing."""
    with hooks_run(client, tmp_path, NAMESPACE) as printed:
        admin("test", "shardwise", "--namespace", NAMESPACE)

    assert printed == ["a wrong job is refused, and the operator answers\n"]
    assert not client.request("GET", f"/apis/shardwise.dev/v1alpha1/namespaces/{NAMESPACE}/trainingjobs")["items"]


@with_operator
def test_examples_are_accepted(client: Client) -> None:
    """Every example passes schema, rules and policy as it stands."""
    said = client.kubectl("apply", "--dry-run=server", *(word for job in JOBS for word in ("-f", job)))

    assert said.count("created (server dry run)") == len(JOBS)


@with_operator
def test_sweep_is_accepted(admin: Helm, client: Client) -> None:
    """A sweep is a release: its jobs come and go with it."""
    values = ("-f", JOBS[0].parent / "cpu-two-hosts.yaml", "-f", SWEEP)

    admin("install", "rates", CHARTS / "training-job", *values)
    jobs = client.kubectl("get", "tj", "-l", "app.kubernetes.io/instance=rates", "-o", "name").split()
    admin("uninstall", "rates")

    assert len(jobs) == 4
    wait("the end of the sweep", lambda: "rates" not in client.kubectl("get", "tj", "-o", "name"))


def test_a_team_has_the_rights_of_its_chart(client: Client, helm: Helm) -> None:
    """What `kubectl` and `shardwise` need for jobs in its own namespace, and nothing by which it would get more."""
    rights = [each for each in of_teams(helm) if each["apiVersion"].startswith("rbac") or each["kind"] == "Namespace"]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": rights})
    client.kubectl("apply", "--filename=-", stdin=listed)
    jobs = {("vision", verb, "shardwise.dev/trainingjobs") for verb in ("create", "get", "list", "patch", "delete")}
    others = {("vision", "list", "/pods"), ("vision", "get", "/pods/log"), ("vision", "list", "/events")}
    queues = {("vision", "list", f"kueue.x-k8s.io/{kind}") for kind in ("workloads", "localqueues")}
    brings = {("vision", "create", kind) for kind in ("/configmaps", "/secrets", "/pods/exec")}
    sees = {("vision", "list", "/persistentvolumeclaims"), ("", "list", "shardwise.dev/acceleratorclasses")}
    may = {*jobs, *others, *queues, *brings, *sees}
    may_not = {
        ("default", "create", "shardwise.dev/trainingjobs"),
        ("vision", "create", "/pods"),
        ("vision", "get", "/secrets"),
        ("vision", "update", "shardwise.dev/trainingjobs/status"),
        ("", "update", "shardwise.dev/acceleratorclasses"),
    }

    assert {each for each in may | may_not if _team_may(client, *each)} == may
    client.kubectl("delete", "--wait=false", "--filename=-", stdin=listed)


def test_operator_pod_is_admitted_as_restricted(client: Client) -> None:
    """A namespace that enforces Pod Security "restricted" takes the pods of the Deployment."""
    client.kubectl("label", "namespace", "default", "pod-security.kubernetes.io/enforce=restricted")
    deployment = client.request("GET", DEPLOYMENT)
    spec = deployment["spec"]["template"]["spec"] | {"serviceAccountName": "default", "serviceAccount": "default"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}

    said = client.kubectl("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(pod))
    client.kubectl("label", "namespace", "default", "pod-security.kubernetes.io/enforce-")

    assert "pod/x created" in said


@pytest.mark.usefixtures("job")
def test_upgrade_and_rollback(admin: Helm, client: Client, tmp_path: Path) -> None:
    """Neither touches the key, a job, its pods or its ConfigMap; an upgrade brings the CRDs, a rollback leaves them."""
    client.request("PATCH", CRD, {"spec": {"names": {"categories": []}}}, "application/merge-patch+json")
    before = _kept(client)

    with hooks_run(client, tmp_path, NAMESPACE) as printed:
        admin("upgrade", *RELEASE, "--set", "replicas=3")
    after_upgrade, categories = _kept(client), client.request("GET", CRD)["spec"]["names"].get("categories")
    with hooks_run(client, tmp_path, NAMESPACE):
        admin("rollback", "shardwise", "1", "--namespace", NAMESPACE)

    assert "applied: " in printed[0]
    assert categories
    assert before == after_upgrade == _kept(client)
    assert client.request("GET", CRD)["spec"]["names"]["categories"] == categories
    assert client.request("GET", DEPLOYMENT)["spec"]["replicas"] == 2


def test_an_older_chart_leaves_newer_crds(admin: Helm, client: Client, tmp_path: Path) -> None:
    """A rollback may be an upgrade to an older chart: what only the cluster's CRD knows stays in jobs that have it."""
    found = client.request("GET", CRD)
    newer = deepcopy(found)
    spec = newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["ofALaterRelease"] = {"type": "string"}
    client.request("PUT", CRD, newer)

    with hooks_run(client, tmp_path, NAMESPACE) as printed:
        admin("upgrade", *RELEASE)
    left = client.request("GET", CRD)
    client.request("PUT", CRD, left | {"spec": found["spec"]})

    assert left["spec"] == newer["spec"]
    assert "left as it is: trainingjobs.shardwise.dev, which is newer" in printed[0]
    assert "v1alpha1.spec.ofALaterRelease" in printed[0]
    assert "applied: acceleratorclasses.shardwise.dev" in printed[0]


def test_a_rotated_key_outlives_an_upgrade(admin: Helm, client: Client, tmp_path: Path) -> None:
    """The chart keeps both keys as they are, and the operator's pod mounts both."""
    first = client.request("GET", KEY)["data"]["key"]
    rotated = {"previous": first, "key": b64encode(b"n" * 64).decode()}
    client.request("PATCH", KEY, {"data": rotated}, "application/merge-patch+json")

    with hooks_run(client, tmp_path, NAMESPACE):
        admin("upgrade", *RELEASE)
    kept = client.request("GET", KEY)["data"]
    words, _ = command(client, tmp_path, NAMESPACE, client.request("GET", DEPLOYMENT)["spec"]["template"]["spec"])
    (key,) = [word.removeprefix("--key-file=") for word in words if word.startswith("--key-file=")]
    back = {"data": {"key": first, "previous": None}}
    client.request("PATCH", KEY, back, "application/merge-patch+json")

    assert kept == rotated
    assert len(read_key(Path(key)).statuses("uid")) == 2


@pytest.mark.usefixtures("job")
def test_uninstall_and_install_again(admin: Helm, client: Client, tmp_path: Path) -> None:
    """The policy goes before the classes; the jobs and the key stay, and a new install finds both."""
    before = _kept(client)

    with hooks_run(client, tmp_path, NAMESPACE) as printed:
        admin("uninstall", "shardwise", "--namespace", NAMESPACE)
    left = client.kubectl("get", "clusterrole,validatingadmissionpolicy,accel", "-o", "name")
    admin("install", *RELEASE)

    assert printed == ["removed: the admission policy shardwise-accelerators and its binding\n"]
    assert "shardwise" not in left
    assert _kept(client) == before
    assert client.request("GET", CLASSES)["items"]


def _team_may(client: Client, namespace: str, verb: str, what: str) -> bool:
    """Whether a member of the group `vision` may do this to a resource, `group/kind` or `group/kind/part`."""
    group, resource, *part = what.split("/")
    asked = {"namespace": namespace, "verb": verb, "group": group, "resource": resource, "subresource": "".join(part)}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": "ann", "groups": ["vision"], "resourceAttributes": asked},
    }
    return bool(
        client.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)["status"]["allowed"]
    )


def _pods(client: Client) -> list[dict[str, Any]]:
    pods: list[dict[str, Any]] = client.request("GET", "/api/v1/namespaces/default/pods")["items"]
    return pods


def _kept(client: Client) -> object:
    """What no release may touch: the key, the job's UID and wish, its pods, and its frozen ConfigMap."""
    job = client.request("GET", JOB)
    frozen = client.request("GET", "/api/v1/namespaces/default/configmaps/cpu-two-hosts-shardwise-0")
    return (
        client.request("GET", KEY)["data"],
        (job["metadata"]["uid"], job["metadata"]["generation"], job["spec"]),
        sorted(pod["metadata"]["uid"] for pod in _pods(client)),
        (frozen["metadata"]["uid"], frozen["data"]),
    )
