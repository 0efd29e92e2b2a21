"""The API server by itself: what tests of the operator stand on."""

import json

import pytest
from tests.cluster.api_server import ApiServer
from tests.cluster.client import RefusedError
from tests.cluster.commands import wait

PODS = "/api/v1/namespaces/{}/pods"


def pod(name: str, **metadata: object) -> dict[str, object]:
    """A pod that nothing will run."""
    return {"metadata": {"name": name, **metadata}, "spec": {"containers": [{"name": "agent", "image": "none"}]}}


def test_deletion_takes_the_dependents(api_server: ApiServer, namespace: str) -> None:
    """Garbage collection is real: an object whose owner is deleted goes too."""
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    owner = api_server.client.request("POST", maps, {"metadata": {"name": "owner"}})
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    api_server.client.request("POST", PODS.format(namespace), pod("one", ownerReferences=[reference]))
    api_server.client.request("DELETE", f"{maps}/owner")
    wait("the end of the pod", lambda: not api_server.client.answers(f"{PODS.format(namespace)}/one"))


def test_roles_are_enforced(api_server: ApiServer, namespace: str) -> None:
    """A service account without a role may do nothing, so a test of the chart's role means something."""
    said = api_server.client.refused(
        "get", "pods", "--namespace", namespace, f"--as=system:serviceaccount:{namespace}:default"
    )

    assert "Forbidden" in said


def test_a_policy_with_a_parameter_refuses(api_server: ApiServer, namespace: str) -> None:
    """Validating admission policies are evaluated, which the catalogue's policy needs."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": namespace},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "object.metadata.name != 'wrong'", "message": "expected another name"}],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": namespace},
        "spec": {
            "policyName": namespace,
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}},
        },
    }
    for item in (policy, binding):
        api_server.client.kubectl("create", "--filename=-", stdin=json.dumps(item))
    maps = f"/api/v1/namespaces/{namespace}/configmaps"

    def refused() -> bool:
        try:
            api_server.client.request("POST", f"{maps}?dryRun=All", {"metadata": {"name": "wrong"}})
        except RefusedError as refusal:
            return "expected another name" in str(refusal)
        return False

    wait("the policy", refused)
    with pytest.raises(RefusedError, match="422"):
        api_server.client.request("POST", maps, {"metadata": {"name": "wrong"}})
    api_server.client.request("POST", maps, {"metadata": {"name": "right"}})


def test_two_run_at_once(api_server: ApiServer, namespace: str) -> None:
    """Each process of pytest has its own: neither sees the other's objects, and one that ends leaves nothing."""
    with ApiServer() as other:
        assert other.client.url != api_server.client.url
        assert not other.client.answers(f"/api/v1/namespaces/{namespace}")
    assert not other.folder.exists()
    assert not other.client.answers("/readyz")
    assert api_server.client.answers(f"/api/v1/namespaces/{namespace}")
