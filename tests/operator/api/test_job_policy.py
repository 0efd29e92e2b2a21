"""The admission policy of jobs: what it says, when it looks, and how much it can judge; on a real API server."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.client import Client, RefusedError
from tests.cluster.commands import wait
from tests.operator.api.jobs import JOBS, create, job
from tests.operator.operating import MERGE

from shardwise_operator.api.crds import crds

LONG = "x" * 40
TOO_LONG = "training.optimizer.schedule={warmupSteps: 1000000}"
BINDING = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/shardwise-jobs"


def test_all_mistakes_are_told_at_once(shardwise_api: Client) -> None:
    """Each with its path, an item of a list by its name; a person mends them in one go, not one after the other."""
    side = "{name: side, image: a, securityContext: {privileged: true}, ports: [{hostPort: 1}]}"
    wrong = job(
        "training.model.heads=12",
        TOO_LONG,
        "training.data={train: [{name: text, paths: [a]}], phases: [{fromStep: 5, weights: {text: 0}}]}",
        f"pod.template.spec.containers.1={side}",
    )

    with pytest.raises(RefusedError) as refused:
        create(shardwise_api, wrong)

    said = str(refused.value).partition("denied request: ")[2].split("; spec.")
    assert sorted(mistake.removeprefix("spec.").partition(":")[0] for mistake in said) == [
        "pod.template.spec.containers[side].ports[].hostPort",
        "pod.template.spec.containers[side].securityContext.privileged",
        "training.data.phases[5].weights",
        "training.model.heads",
        "training.optimizer.schedule.warmupSteps",
    ]


def test_far_too_much_is_cut_short(shardwise_api: Client) -> None:
    """A message of more than the API server takes still names places; a line break in a name does not end it."""
    secrets = ", ".join(f'{{name: "{LONG}\\n{number}", hostPath: {{path: /}}}}' for number in range(32))

    with pytest.raises(RefusedError) as refused:
        create(shardwise_api, job(f"pod.template.spec.volumes=[{secrets}]"))

    said = str(refused.value)
    assert f"spec.pod.template.spec.volumes[{LONG} 0].hostPath: expected it left out" in said
    assert said.endswith(" ...")


@pytest.fixture
def old_job(shardwise_api: Client) -> Iterator[str]:
    """Make a job that breaks a rule, as one may from before there was that rule; return its path."""
    manifest = job(TOO_LONG)
    manifest["metadata"]["name"] = "old"
    shardwise_api.request("PATCH", BINDING, {"spec": {"validationActions": ["Audit"]}}, MERGE)
    wait("the policy to let it through", lambda: not _is_refused(shardwise_api))
    shardwise_api.request("POST", JOBS, manifest)
    shardwise_api.request("PATCH", BINDING, {"spec": {"validationActions": ["Deny"]}}, MERGE)
    wait("the policy", lambda: _is_refused(shardwise_api))
    yield f"{JOBS}/old"
    shardwise_api.request("DELETE", f"{JOBS}/old")


def _is_refused(client: Client) -> bool:
    try:
        create(client, job(TOO_LONG))
    except RefusedError:
        return True
    return False


def test_a_job_from_before_a_rule_lives_on(shardwise_api: Client, old_job: str) -> None:
    """Its status and its labels are written; only who changes its spec has to mend it."""
    shardwise_api.request("PATCH", f"{old_job}/status", {"status": {"phase": "Running"}}, MERGE)
    shardwise_api.request("PATCH", old_job, {"metadata": {"labels": {"team": "vision"}}}, MERGE)

    with pytest.raises(RefusedError, match="expected fewer warmupSteps"):
        shardwise_api.request("PATCH", old_job, {"spec": {"suspend": True}}, MERGE)


def test_a_status_is_held_against_next_to_nothing() -> None:
    """Rules that the CRD has are checked at each write of a status: they took longer than all else of one."""
    (schema,) = (
        crd["spec"]["versions"][0]["schema"] for crd in crds() if crd["spec"]["names"]["kind"] == "TrainingJob"
    )

    rules = [*_rules(schema)]
    assert [rule["rule"].partition(" || ")[0] for rule in rules if "oldSelf" in rule["rule"]] == ["self == oldSelf"]
    assert {rule["rule"] for rule in rules if "oldSelf" not in rule["rule"]} == {"self.matches('[1-9]')"}


def _rules(node: Any) -> Iterator[dict[str, str]]:
    if isinstance(node, dict):
        yield from node.get("x-kubernetes-validations", [])
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _rules(child)


def test_the_largest_job_can_be_judged(shardwise_api: Client) -> None:
    """As many sources, phases, containers, volumes and mounts as the schema takes cost no more than a policy may."""
    sources = [{"name": f"source-{number}", "paths": ["a"]} for number in range(64)]
    weights = {source["name"]: 1.0 for source in sources}
    phases = [{"fromStep": number + 1, "weights": weights} for number in range(16)]
    largest = job("training.steps=100")
    largest["spec"]["training"]["data"] = {"train": sources, "phases": phases}
    pod = largest["spec"]["pod"]["template"]["spec"]
    pod["volumes"] += [{"name": f"v{number}", "emptyDir": {}} for number in range(63)]
    mounts = [{"name": each["name"], "mountPath": f"/m/{each['name']}"} for each in pod["volumes"]]
    pod["containers"] += [{"name": f"c{number}", "image": "a", "volumeMounts": mounts} for number in range(7)]
    pod["initContainers"] = [{"name": f"i{number}", "image": "a", "volumeMounts": mounts} for number in range(8)]

    create(shardwise_api, largest)
