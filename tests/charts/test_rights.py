"""The rights that the chart gives its service accounts are the rights that are used: none is missing, none is idle.

On a real API server the operator and the hooks run as those accounts through all that makes them ask for something. The
server's audit log says what they asked for; the rendered roles say what they may.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from uuid import uuid4

import pytest
from tests.charts.helm import CHARTS, Helm, Object, named
from tests.charts.stand_in_kubelet import hooks_run, replica_runs
from tests.cluster.api_server import ApiServer
from tests.cluster.client import Client
from tests.cluster.commands import ClusterError, wait
from tests.operator.building import manifest, record
from tests.operator.operating import Place

NAMESPACE = "shardwise-system"
RELEASE = ("shardwise", CHARTS / "shardwise", "--namespace", NAMESPACE)
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:shardwise"
CATALOG_CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/acceleratorcatalogs.shardwise.dev"
CATALOG = "/apis/shardwise.dev/v1alpha1/acceleratorcatalogs/shardwise"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/shardwise"
NETWORKING, JOBS = "apis/networking.k8s.io/v1", "apis/shardwise.dev/v1alpha1"


@dataclass(frozen=True)
class Right:
    """What an account may do; also one request that it made. An empty namespace or name is any, or none."""

    account: str
    group: str
    resource: str
    verb: str
    namespace: str = ""
    name: str = ""

    def allows(self, request: "Right") -> bool:
        """Whether a request needs this right."""
        namespace, name = request.namespace if self.namespace else "", request.name if self.name else ""
        return self == replace(request, namespace=namespace, name=name)


# No requests of their own: a plugin of the API server looks for one at each that makes an object of a job (the last
# test), for the other where an object gets another owner.
CHECKED = {
    Right(ACCOUNT, "shardwise.dev", "trainingjobs/finalizers", "update"),
    Right(ACCOUNT, "networking.k8s.io", "networkpolicies", "delete"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """Return an API server with the chart, which is as strict with owners as the strictest clusters are."""
    with ApiServer(admission=["OwnerReferencesPermissionEnforcement"]) as server:
        Helm(server.kubeconfig)("install", *RELEASE, "--create-namespace")
        wait("the plugin to know the jobs", lambda: not _refusal(server.client, ACCOUNT))
        yield server


@pytest.fixture(scope="module")
def events(server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    """Return the audit log of the release's whole life."""
    try:
        _release_lives(server, [tmp_path_factory.mktemp(name) for name in ("one", "other", "hooks")])
    except ClusterError as error:
        error.add_note(f"forbidden: {_forbidden(_log(server))}")
        raise
    return _log(server)


def test_every_right_is_used(helm: Helm, events: list[Object]) -> None:
    """A role that grants what nobody needs is too wide."""
    requests = {request for event in events for request in _requests(event)}

    idle = {right for right in _granted(helm.render("shardwise")) if not any(map(right.allows, requests))}

    assert idle == CHECKED


def test_nothing_else_is_asked_for(events: list[Object]) -> None:
    """A request that is forbidden is a right that the chart forgot, or one that the code should not need."""
    assert not _forbidden(events)


def test_only_who_may_finalize_a_job_can_block_its_deletion(server: ApiServer) -> None:
    """So the operator, all of whose objects block their job's, needs the right that no request in the log shows."""
    binding = ("clusterrolebinding", "edits", "--clusterrole=edit", "--serviceaccount=default:default")
    server.client.kubectl("create", *binding)

    said = _refusal(server.client, "system:serviceaccount:default:default")

    assert "refers to a resource you can't set finalizers on" in said


# -------------------------------------------------------------------------------------------- what makes them ask


def _release_lives(server: ApiServer, folders: list[Path]) -> None:
    """Two operators, of which one leads after the other, and every hook."""
    client, admin, place = server.client, Helm(server.kubeconfig), Place(server.client, "default")
    one, other, hooks = folders
    with replica_runs(client, one, NAMESPACE, "shardwise") as first:
        wait("the first operator's catalogue", lambda: client.answers(CATALOG))
        _catalogue_is_edited(client)
        with replica_runs(client, other, NAMESPACE, "shardwise"):
            _from_start_to_removal(place)
            _a_slice_lands(place)
            leader = _leader(client)
            first.terminate()
            wait("the other operator to lead", lambda: _leader(client) not in ("", leader))
            _suspended_twice(place)
            _names_are_taken(place)
            with hooks_run(client, hooks, NAMESPACE):
                admin("test", "shardwise", "--namespace", NAMESPACE)
    _upgrade_brings_a_crd(client, admin, hooks)
    with hooks_run(client, hooks, NAMESPACE):
        admin("uninstall", "shardwise", "--namespace", NAMESPACE)


def _catalogue_is_edited(client: Client) -> None:
    """By somebody who has the right to."""
    client.request("PATCH", CATALOG, {"spec": {"classes": []}}, "application/merge-patch+json")
    wait("the edit's end", lambda: bool(client.request("GET", CATALOG)["spec"]["classes"]))


def _from_start_to_removal(place: Place) -> None:
    """A job whose host 0 disappears and comes back elsewhere, and that is removed after its end."""
    place.apply(manifest("ends", ttlAfterFinished="1s"))
    place.until_pods("ends-0-0-0", "ends-0-1-0", job="ends")
    place.run("ends-0-0-0", "ends-0-1-0")
    place.until("host 0's policy", lambda: _guards(place, "ends") == ["ends-0-0-0"])
    place.remove("ends-0-0-0")
    place.until_pods("ends-0-0-1", "ends-0-1-0", job="ends")
    place.bind("ends-0-0-1")
    place.report("ends-0-0-1", phase="Running", podIP="192.0.2.77")
    place.until("its successor's", lambda: _guards(place, "ends") == ["ends-0-0-1"])
    for pod in place.pods("ends"):
        place.end(pod, 0, record(0))
    place.until("the job's removal", lambda: not place.there("trainingjobs", "ends", JOBS))


def _a_slice_lands(place: Place) -> None:
    """Of a class with a place for each slice, the hosts that wait go where the first one went."""
    node = {"metadata": {"name": "tpu-node", "labels": {"cloud.google.com/gke-nodepool": "tpu-pool"}}}
    place.client.request("POST", "/api/v1/nodes", node)
    place.apply(manifest("lands", hardware={"accelerator": "tpu-v5e-4t", "topology": "2x4"}))
    place.until_pods("lands-0-0-0", "lands-0-1-0", job="lands")
    place.bind("lands-0-0-0", "tpu-node")
    place.until("the open gate", lambda: "schedulingGates" not in place.pods("lands")["lands-0-1-0"]["spec"])


def _suspended_twice(place: Place) -> None:
    """The second time the same words are said about the same job: an event is counted up."""
    place.apply(manifest("rests"))
    for attempt in range(2):
        place.until_pods(f"rests-0-0-{attempt}", f"rests-0-1-{attempt}", job="rests")
        place.change("rests", suspend=True)
        place.until_phase("Suspended", "rests")
        place.change("rests", suspend=False)
    place.until("the count", lambda: [event for event in _events(place, "rests") if event["count"] == 2])


def _names_are_taken(place: Place) -> None:
    """Somebody has an object of the name that a job's own would bear, of each kind in another job's way."""
    taken: list[tuple[str, str, str, Object]] = [
        ("config", "configmaps", "api/v1", {"metadata": {"name": "config-shardwise-0"}}),
        ("policy", "networkpolicies", NETWORKING, {"spec": {"podSelector": {}}}),
    ]
    for job, plural, group, body in taken:
        theirs = {"metadata": {"name": f"{job}-shardwise"}, **body}
        place.client.request("POST", place.path(plural, group=group), theirs)
        place.apply(manifest(job))
    place.until("the conflicts", lambda: all(place.status(job).get("reason") == "NameConflict" for job, *_ in taken))


def _upgrade_brings_a_crd(client: Client, admin: Helm, folder: Path) -> None:
    """The release lacks one CRD that the chart has, as one of an earlier chart would."""
    client.request("DELETE", CATALOG_CRD)
    wait("the CRD's end", lambda: not client.answers(CATALOG_CRD))
    with hooks_run(client, folder, NAMESPACE):
        admin("upgrade", *RELEASE)
    assert client.answers(CATALOG_CRD)


def _leader(client: Client) -> str:
    return str(client.request("GET", LEASE)["spec"].get("holderIdentity") or "")


def _guards(place: Place, job: str) -> list[str]:
    """The pods that own the job's NetworkPolicy."""
    if not place.there("networkpolicies", f"{job}-shardwise", NETWORKING):
        return []
    found = place.client.request("GET", place.path("networkpolicies", f"{job}-shardwise", NETWORKING))
    return [owner["name"] for owner in found["metadata"]["ownerReferences"] if owner["kind"] == "Pod"]


def _events(place: Place, job: str) -> list[Object]:
    listed = place.client.request("GET", f"{place.path('events')}?fieldSelector=involvedObject.name={job}")
    return list(listed["items"])


def _refusal(client: Client, account: str) -> str:
    """Why this account may not make an object that blocks a job's deletion; empty where it may."""
    owner = {"apiVersion": "shardwise.dev/v1alpha1", "kind": "TrainingJob", "name": "job", "uid": str(uuid4())}
    metadata = {"name": "blocks", "namespace": "default", "ownerReferences": [{**owner, "blockOwnerDeletion": True}]}
    config_map = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    try:
        client.kubectl("create", "--dry-run=server", f"--as={account}", "--filename=-", stdin=config_map)
    except ClusterError as error:
        return str(error)
    return ""


# ------------------------------------------------------------------------------------- what they may, and what they did


def _granted(objects: list[Object]) -> Iterator[Right]:
    """Every single right that a binding of these objects gives to a service account."""
    for binding in objects:
        if binding["kind"] in ("ClusterRoleBinding", "RoleBinding"):
            role = named(objects, binding["roleRef"]["kind"], binding["roleRef"]["name"])
            namespace = binding["metadata"].get("namespace", "")
            for subject in binding["subjects"]:
                if subject["kind"] != "ServiceAccount":
                    continue
                account = f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
                for rule in role["rules"]:
                    yield from _of_rule(account, namespace, rule)


def _of_rule(account: str, namespace: str, rule: Object) -> Iterator[Right]:
    names = rule.get("resourceNames", [""])
    for group, resource, verb, name in product(rule["apiGroups"], rule["resources"], rule["verbs"], names):
        yield Right(account, group, resource, verb, namespace, name)


def _log(server: ApiServer) -> list[Object]:
    return [json.loads(line) for line in server.audit.read_text(encoding="utf-8").splitlines()]


def _forbidden(events: list[Object]) -> set[Right]:
    return {request for event in events if event["responseStatus"]["code"] == 403 for request in _requests(event)}


def _requests(event: Object) -> Iterator[Right]:
    """What an event of the audit log needed a right to: one thing, but for an apply that made its object."""
    about = event["objectRef"]
    resource = "/".join(part for part in (about["resource"], about.get("subresource")) if part)
    where = (about.get("namespace", ""), about.get("name", ""))
    made = event["verb"] == "patch" and event["responseStatus"]["code"] == 201
    for verb in (event["verb"], "create") if made else (event["verb"],):
        yield Right(event["user"]["username"], about.get("apiGroup", ""), resource, verb, *where)
