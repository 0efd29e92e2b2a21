"""Requests to the API server, and what they raise: against a real one, and a scripted one where it must misbehave."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.api_server import ApiServer
from tests.operator.runtime.scripted_server import Answer, ScriptedServer, listing

from shardwise_operator.runtime.connection import Connection, connect
from shardwise_operator.runtime.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    KubernetesError,
    NotFoundError,
    NotLeadingError,
    TooManyRequestsError,
    UnreachableError,
)
from shardwise_operator.runtime.kinds import CONFIG_MAPS, EVENTS, LEASES, NODES, PODS, SECRETS, TRAINING_JOBS
from shardwise_operator.runtime.login import login_of_pod
from shardwise_operator.runtime.metrics import Metrics
from shardwise_operator.runtime.pace import Limiter
from shardwise_operator.runtime.transport import Api


def configmap(namespace: str, name: str = "a", **data: str) -> dict[str, Any]:
    """A ConfigMap to write."""
    metadata = {"namespace": namespace, "name": name}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def pod(namespace: str, name: str = "p") -> dict[str, Any]:
    """A pod with a scheduling gate to write."""
    spec = {"containers": [{"name": "c", "image": "i"}], "schedulingGates": [{"name": "shardwise.dev/slice"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "name": name}, "spec": spec}


def test_paths() -> None:
    """Core and named groups, one namespace, all, and none."""
    assert PODS.path("ns", "p", "status") == "/api/v1/namespaces/ns/pods/p/status"
    assert TRAINING_JOBS.path() == "/apis/shardwise.dev/v1alpha1/trainingjobs"
    assert NODES.path("", "n") == "/api/v1/nodes/n"
    assert NODES.path("ns") == "/api/v1/nodes"
    assert LEASES.api_version == "coordination.k8s.io/v1"
    assert EVENTS.api_version == "v1"


def test_a_name_is_taken_once(api: Api, namespace: str) -> None:
    """A second create is AlreadyExists, which is a conflict; and the first object is as it was."""
    api.create(CONFIG_MAPS, configmap(namespace, text="mine"))

    with pytest.raises(AlreadyExistsError, match='configmaps "a" already exists') as refused:
        api.create(CONFIG_MAPS, configmap(namespace, text="yours"))

    assert isinstance(refused.value, ConflictError)
    assert (refused.value.status, refused.value.reason) == (409, "AlreadyExists")
    assert api.get(CONFIG_MAPS, namespace, "a")["data"] == {"text": "mine"}


def test_who_looks_for_objects_alone_is_sent_no_more(api: Api, namespace: str) -> None:
    """Of a list and of a watch: names, owners and versions are there, what an object holds is not."""
    (empty,) = api.pages(SECRETS, namespace, metadata_alone=True)
    assert empty.items == []
    api.create(CONFIG_MAPS, configmap(namespace, "one", text="1"))
    (page,) = api.pages(CONFIG_MAPS, namespace, metadata_alone=True)
    api.create(CONFIG_MAPS, configmap(namespace, "two", text="2"))
    stream = api.watch(
        CONFIG_MAPS, namespace, metadata_alone=True, resource_version=page.resource_version, timeout_seconds=30.0
    )
    event = next(iter(stream))
    stream.shut()

    listed = {item["metadata"]["name"] for item in page.items}
    assert ("one" in listed, "two" in listed) == (True, False)
    assert not any("data" in item for item in page.items)
    assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "two")
    assert "data" not in event["object"]


def test_replace_needs_the_version_it_was_decided_on(api: Api, namespace: str) -> None:
    """A status, or a whole object, that was decided on an older one is refused."""
    old = api.create(CONFIG_MAPS, configmap(namespace, n="1"))
    new = api.replace(CONFIG_MAPS, old | {"data": {"n": "2"}})
    made = api.create(PODS, pod(namespace))
    api.replace_status(PODS, made | {"status": {"phase": "Running"}})

    with pytest.raises(ConflictError):
        api.replace(CONFIG_MAPS, old | {"data": {"n": "3"}})
    with pytest.raises(ConflictError):
        api.replace_status(PODS, made | {"status": {"phase": "Failed"}})

    assert api.get(CONFIG_MAPS, namespace, "a")["data"] == new["data"] == {"n": "2"}
    assert api.get(PODS, namespace, "p")["status"]["phase"] == "Running"


def test_patch_meets_the_object_it_means(api: Api, namespace: str) -> None:
    """A gate is taken off the pod with this UID; one made anew under its name is left alone."""
    made = api.create(PODS, pod(namespace))
    patch = {"spec": {"schedulingGates": [], "nodeSelector": {"pool": "x"}}}

    with pytest.raises(ConflictError):
        api.patch(PODS, namespace, "p", patch, uid="00000000-0000-0000-0000-000000000000")
    with pytest.raises(ConflictError):
        api.patch(PODS, namespace, "p", patch, resource_version="1")
    assert "schedulingGates" in api.get(PODS, namespace, "p")["spec"]
    api.patch(PODS, namespace, "p", patch, uid=made["metadata"]["uid"])

    spec = api.get(PODS, namespace, "p")["spec"]
    assert "schedulingGates" not in spec
    assert spec["nodeSelector"] == {"pool": "x"}


def test_delete_meets_the_object_it_means(api: Api, namespace: str) -> None:
    """Another UID is a conflict, no object at all is what was wanted."""
    made = api.create(CONFIG_MAPS, configmap(namespace))

    with pytest.raises(ConflictError):
        api.delete(CONFIG_MAPS, namespace, "a", uid="00000000-0000-0000-0000-000000000000")
    assert api.get(CONFIG_MAPS, namespace, "a")
    api.delete(CONFIG_MAPS, namespace, "a", uid=made["metadata"]["uid"], grace_seconds=0)
    api.delete(CONFIG_MAPS, namespace, "a", uid=made["metadata"]["uid"])

    with pytest.raises(NotFoundError):
        api.get(CONFIG_MAPS, namespace, "a")


def test_apply_owns_what_it_says(api: Api, namespace: str) -> None:
    """Applied again without a field, the field goes, others' stay; a UID is a precondition."""
    api.apply(CONFIG_MAPS, configmap(namespace, ours="1", more="1"))
    api.patch(CONFIG_MAPS, namespace, "a", {"data": {"theirs": "1"}})
    api.apply(CONFIG_MAPS, configmap(namespace, ours="2"))
    assert api.get(CONFIG_MAPS, namespace, "a")["data"] == {"ours": "2", "theirs": "1"}

    other = configmap(namespace, ours="3")
    other["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
    with pytest.raises(ConflictError):
        api.apply(CONFIG_MAPS, other)


def test_the_server_says_what_is_wrong(api: Api, namespace: str) -> None:
    """A broken object is Invalid, with the field in the message."""
    broken = pod(namespace)
    broken["spec"]["containers"][0]["image"] = ""

    with pytest.raises(InvalidError, match=r"containers\[0\].image: Required value"):
        api.create(PODS, broken)


def test_what_the_role_does_not_grant(api_server: ApiServer, namespace: str, metrics: Metrics, tmp_path: Path) -> None:
    """A pod's token opens what was granted to it alone, and is read anew from its file, where it is renewed."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = api_server.client.request("POST", f"{path}/default/token", asked)["status"]["token"]
    host, port = api_server.client.url.removeprefix("https://").split(":")
    (tmp_path / "token").write_text("not-a-token\n")
    (tmp_path / "ca.crt").write_bytes((api_server.folder / "pki" / "ca.crt").read_bytes())

    now = [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBERNETES_SERVICE_HOST", host)
        patch.setenv("KUBERNETES_SERVICE_PORT", port)
        login = login_of_pod(tmp_path, lambda: now[0])
    api = Api(Connection(login), metrics, limiter=Limiter(100, 100))

    with pytest.raises(ApiError, match="401"):
        api.get(CONFIG_MAPS, namespace, "a")
    (tmp_path / "token").write_text(token + "\n")
    now[0] += 60.0
    with pytest.raises(ForbiddenError, match="cannot get resource"):
        api.get(CONFIG_MAPS, namespace, "a")


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (403, ForbiddenError),
        (404, NotFoundError),
        (409, ConflictError),
        (410, GoneError),
        (422, InvalidError),
        (500, ApiError),
    ],
)
def test_every_status_has_its_error(
    status: int, error: type[ApiError], scripted_api: Api, script: ScriptedServer
) -> None:
    """With the server's words where it sent some, and without where a proxy answered in its place."""
    script.lists.extend([Answer({"reason": "Because", "message": "no"}, status), Answer("<html>", status)])

    with pytest.raises(error, match=f"{status} Because: no"):
        scripted_api.get(CONFIG_MAPS, "ns", "a")
    with pytest.raises(error, match="no message that could be read"):
        scripted_api.get(CONFIG_MAPS, "ns", "a")


def test_no_answer_is_unreachable(scripted_api: Api, script: ScriptedServer, metrics: Metrics, tmp_path: Path) -> None:
    """Nothing that listens, an answer that is no JSON, and one that never comes."""
    script.lists.append(Answer("[1, 2]"))
    with pytest.raises(UnreachableError, match="no object"):
        scripted_api.get(CONFIG_MAPS, "ns", "a")
    script.lists[0] = Answer("<html>")
    with pytest.raises(UnreachableError, match="not JSON"):
        scripted_api.get(CONFIG_MAPS, "ns", "a")
    with ScriptedServer() as silent:
        silent.answer = lambda *_: [silent.closing.wait(), Answer()][1]  # type: ignore[method-assign,assignment]
        api = Api(connect(silent.kubeconfig(tmp_path)), metrics, limiter=Limiter(9, 9), read_seconds=0.2)
        with pytest.raises(UnreachableError, match="timed out"):
            api.get(CONFIG_MAPS, "ns", "a")
    with pytest.raises(UnreachableError, match="refused"):
        api.get(CONFIG_MAPS, "ns", "a")


def test_a_server_that_is_too_busy_slows_everybody(script: ScriptedServer, metrics: Metrics, tmp_path: Path) -> None:
    """429 with Retry-After is the caller's to try again, and nobody asks before that time."""
    slept: list[float] = []
    limiter = Limiter(100, 100, sleep=slept.append)
    api = Api(connect(script.kubeconfig(tmp_path)), metrics, limiter=limiter)
    script.lists.extend([Answer({"message": "busy"}, 429, {"Retry-After": "7"}), listing(version=1)])

    with pytest.raises(TooManyRequestsError):
        api.get(CONFIG_MAPS, "ns", "a")
    list(api.pages(CONFIG_MAPS))

    assert slept == [pytest.approx(7, abs=1)]


def test_who_does_not_lead_writes_nothing(script: ScriptedServer, metrics: Metrics, tmp_path: Path) -> None:
    """Reads go through; every kind of write is held back before it is sent."""
    script.lists.append(Answer())
    api = Api(connect(script.kubeconfig(tmp_path)), metrics, limiter=Limiter(99, 99), may_write=lambda: False)
    obj = configmap("ns")

    api.get(CONFIG_MAPS, "ns", "a")
    for write in (api.create, api.apply, api.replace, api.replace_status):
        with pytest.raises(NotLeadingError):
            write(CONFIG_MAPS, obj)
    with pytest.raises(NotLeadingError):
        api.patch(CONFIG_MAPS, "ns", "a", {})
    with pytest.raises(NotLeadingError):
        api.delete(CONFIG_MAPS, "ns", "a", uid="u")

    assert [method for method, _, _ in script.asked] == ["GET"]


def test_requests_are_counted(api: Api, namespace: str, metrics: Metrics) -> None:
    """By verb, kind and status, one that failed too."""
    api.create(CONFIG_MAPS, configmap(namespace))
    with pytest.raises(KubernetesError):
        api.get(PODS, namespace, "none")

    def count(**labels: str) -> float | None:
        return metrics.registry.get_sample_value("shardwise_operator_api_requests_total", labels)

    assert count(verb="create", kind="configmaps", status="201") == 1
    assert count(verb="get", kind="pods", status="404") == 1


def test_many_threads_share_the_pace() -> None:
    """Sixteen threads together are no faster than one limiter allows: the burst at once, the rest in turn."""
    lock, slept = threading.Lock(), []

    def sleep(seconds: float) -> None:
        with lock:
            slept.append(seconds)

    limiter = Limiter(8, 4, clock=lambda: 50.0, sleep=sleep)
    threads = [threading.Thread(target=limiter.wait) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(slept) == [n / 8 for n in range(1, 13)]
    assert not limiter.taken()


def test_the_pace_recovers() -> None:
    """After a quiet time there is one burst again, never more."""
    now = [0.0]
    limiter = Limiter(2, 3, clock=lambda: now[0], sleep=time.sleep)
    now[0] = 1000.0

    assert [limiter.taken() for _ in range(5)] == [True, True, True, False, False]
    now[0] += 0.5
    assert [limiter.taken(), limiter.taken()] == [True, False]
