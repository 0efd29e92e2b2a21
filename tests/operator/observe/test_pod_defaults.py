"""What a platform team gives to the pods of all jobs: the job's own words go over it, and a round keeps it."""

from typing import Any

import pytest
from tests.operator.building import IMAGE, asking, begun, classes, manifest, seen

from shardwise.protocol.errors import JobError
from shardwise_operator.observe.pod_defaults import read_pod_defaults
from shardwise_operator.observe.snapshot import read_snapshot, take_snapshot
from shardwise_operator.observe.state import Phase
from shardwise_operator.render.pods import Place, pod_manifest

DEFAULTS = """{
    "labels": {"team": "none", "cost-centre": "7"},
    "annotations": {"note": "default"},
    "imagePullSecrets": [{"name": "registry"}],
    "serviceAccountName": "trainer",
    "runtimeClassName": "gvisor"
}"""


def pod(job: dict[str, Any], defaults: str = DEFAULTS) -> dict[str, Any]:
    """The first pod of a job, made of what its round's ConfigMap holds."""
    taken = take_snapshot(job, classes(), image=IMAGE, pod_defaults=read_pod_defaults(defaults))
    return pod_manifest(seen(begun(Phase.PENDING), made_of=read_snapshot(taken.data)), "0-0", Place())


def test_what_a_job_leaves_out_is_filled_in() -> None:
    """Labels, annotations, pull secrets, service account and RuntimeClass; the operator's own labels stay."""
    made = pod(manifest())

    assert (
        made["metadata"]["labels"].items() >= {"team": "none", "cost-centre": "7", "shardwise.dev/job": "job"}.items()
    )
    assert made["metadata"]["annotations"]["note"] == "default"
    assert made["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert made["spec"]["serviceAccountName"] == "trainer"
    assert made["spec"]["runtimeClassName"] == "gvisor"


def test_the_job_s_own_words_win() -> None:
    """Key by key; its pull secrets come beside the default ones."""
    own: dict[str, Any] = {"imagePullSecrets": [{"name": "own"}, {"name": "registry"}], "serviceAccountName": "mine"}
    job = asking(manifest(), runtimeClassName="kata", **own)
    job["spec"]["pod"]["template"]["metadata"] = {"labels": {"team": "ours"}}
    made = pod(job)

    assert made["metadata"]["labels"].items() >= {"team": "ours", "cost-centre": "7"}.items()
    assert made["spec"]["imagePullSecrets"] == [{"name": "own"}, {"name": "registry"}]
    assert made["spec"]["serviceAccountName"] == "mine"
    assert made["spec"]["runtimeClassName"] == "kata"


def test_where_pods_run_and_with_what_variables() -> None:
    """Defaults come below the job's own words, and below what the class asks for; ours are not to be had."""
    defaults = """{
        "env": {"HTTPS_PROXY": "http://proxy:3128", "HF_HUB_OFFLINE": "1"},
        "nodeSelector": {"team": "ml", "pool": "spare", "cloud.google.com/gke-tpu-accelerator": "none"},
        "tolerations": [{"key": "ml", "operator": "Exists", "effect": "NoSchedule"}]
    }"""
    own, side = {"env": [{"name": "HF_HUB_OFFLINE", "value": "0"}]}, {"name": "side", "image": "side"}
    toleration = {"key": "spot", "operator": "Exists"}
    job = asking(manifest(), nodeSelector={"pool": "mine"}, tolerations=[toleration])
    template = job["spec"]["pod"]["template"]["spec"]
    template["containers"] = [side, template["containers"][0] | own]
    job["spec"]["hardware"] = {"accelerator": "tpu-v5e", "topology": "2x4"}
    plain, made = pod(job, "{}")["spec"], pod(job, defaults)["spec"]

    assert made["nodeSelector"] == plain["nodeSelector"] | {"team": "ml"}
    assert [each for each in made["tolerations"] if each not in plain["tolerations"]] == [
        {"key": "ml", "operator": "Exists", "effect": "NoSchedule"}
    ]
    agent, beside = made["containers"]
    variables = {each["name"]: each.get("value") for each in agent["env"]}
    assert variables.items() >= {"HTTPS_PROXY": "http://proxy:3128", "HF_HUB_OFFLINE": "0"}.items()
    assert {**agent, "env": 0} == {**plain["containers"][0], "env": 0}
    assert "env" not in beside
    assert {each["name"] for each in pod(manifest(), defaults)["spec"]["containers"][0]["env"]} >= {"HTTPS_PROXY"}


def test_the_user_of_a_namespace() -> None:
    """Then the pod names no user or group, which admission fills in; it is still held to the restricted level.

    A round keeps it, as the rest. A class whose pods are root or privileged stays with its own user.
    """
    ours, theirs = pod(manifest(), "{}")["spec"], pod(manifest(), '{"userOfNamespace": true}')["spec"]
    numbers = {"runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001}
    assert ours["securityContext"] == theirs["securityContext"] | numbers
    assert theirs["securityContext"]["runAsNonRoot"] is True
    assert {**ours, "securityContext": 0} == {**theirs, "securityContext": 0}

    job = manifest()
    job["spec"]["hardware"] = {"accelerator": "tpu-v5e", "topology": "2x4"}
    assert pod(job, '{"userOfNamespace": true}') == pod(job, "{}")


def test_without_defaults_nothing_is_added() -> None:
    """A template is as its author wrote it."""
    assert pod(manifest(), "{}") == pod(manifest(), '{"labels": {}}')
    assert "imagePullSecrets" not in pod(manifest(), "{}")["spec"]
    assert "serviceAccountName" not in pod(manifest(), "{}")["spec"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"label": {}}', 'given the unknown key "label"'),
        ('{"labels": {"a": 1}}', "labels.a"),
        ('{"imagePullSecrets": ["x"]}', "imagePullSecrets.0"),
        ('{"env": {"SHARDWISE_TOKEN": "x"}}', "env"),
        ('{"tolerations": [{"keys": "x"}]}', "tolerations.0.keys"),
        ('{"env": {"SHARDWISE_TOKEN": "x"}}', "expected a name that does not begin with"),
        ('{"labels": {"bad key": "x"}}', "expected the key of a label"),
        ('{"labels": {"team": "a b"}}', "labels.team"),
        ('{"nodeSelector": {"pool/": "a"}}', "expected the key of a label"),
        ('{"nodeSelector": {"pool": "-a"}}', "nodeSelector.pool"),
        ('{"tolerations": [{"key": "k", "operator": "Exists", "value": "v"}]}', "expected no value with Exists"),
        ('{"tolerations": [{"key": "k", "effect": "NoSchedule", "tolerationSeconds": 3}]}', "with NoExecute alone"),
        ("[]", "pod-defaults"),
    ],
)
def test_wrong_defaults_are_refused(text: str, words: str) -> None:
    """The operator does not start with them."""
    with pytest.raises(JobError, match=words):
        read_pod_defaults(text)
