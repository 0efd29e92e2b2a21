"""charts/training-teams: but for the operator's own namespace, a job is made with a queue, and keeps one."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.charts.helm import ROOT, Helm, of_teams
from tests.cluster.client import Client, RefusedError
from tests.cluster.commands import wait
from tests.operator.api.jobs import JOBS, job

MERGE = "application/merge-patch+json"
TEAM = JOBS.replace("default", "vision")
OURS = JOBS.replace("default", "shardwise-system")
QUEUE = "kueue.x-k8s.io/queue-name"
WORDS = f"metadata.labels: expected {QUEUE}, a LocalQueue of this namespace"


def named(name: str, **labels: str) -> dict[str, Any]:
    """A job with labels."""
    return {**job(), "metadata": {"name": name, "labels": labels}}


def _holds(client: Client) -> bool:
    try:
        client.request("POST", f"{TEAM}?dryRun=All", named("probe"))
    except RefusedError as refusal:
        return WORDS in str(refusal)
    return False


@pytest.fixture(scope="module")
def team(shardwise_api: Client) -> Iterator[Client]:
    """Return the client, once the rule holds in the namespace `vision`, which had a job `earlier` before it."""
    parts = of_teams(Helm())
    ours = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shardwise-system"}}
    namespaces = [ours, *(each for each in parts if each["kind"] == "Namespace")]
    rule = [each for each in parts if each["kind"].startswith("ValidatingAdmissionPolicy")]
    for items in (namespaces, rule):
        shardwise_api.kubectl("apply", "--filename=-", stdin=_list(items))
        if items is namespaces:
            shardwise_api.request("POST", TEAM, named("earlier"))
    wait("the rule", lambda: _holds(shardwise_api))
    yield shardwise_api
    shardwise_api.kubectl("delete", "--filename=-", stdin=_list(rule))
    wait("the end of the rule, for other tests", lambda: not _holds(shardwise_api))
    shardwise_api.kubectl("delete", "--wait=false", "--filename=-", stdin=_list(namespaces))


def test_no_job_is_made_without_a_queue(team: Client) -> None:
    """Not even with an empty one, nor in a namespace of no team; `helm test` makes one without. The page shows it."""
    with pytest.raises(RefusedError, match=WORDS) as refusal:
        team.request("POST", TEAM, named("job", **{QUEUE: ""}))
    with pytest.raises(RefusedError, match=WORDS):
        team.request("POST", f"{JOBS}?dryRun=All", named("job"))
    team.request("POST", f"{OURS}?dryRun=All", named("job"))
    team.request("POST", f"{TEAM}?dryRun=All", named("job", **{QUEUE: "team"}))

    page = (ROOT / "docs" / "how-to" / "platform.md").read_text(encoding="utf-8")
    assert str(refusal.value).partition("forbidden: ")[2] in page


def test_a_job_keeps_its_queue(team: Client) -> None:
    """It may be changed, and moved to another one, but its label does not go."""
    team.request("POST", TEAM, named("queued", **{QUEUE: "team"}))
    url = f"{TEAM}/queued"
    team.request("PATCH", url, {"metadata": {"labels": {QUEUE: "other"}}, "spec": {"suspend": True}}, MERGE)

    with pytest.raises(RefusedError, match=WORDS):
        team.request("PATCH", url, {"metadata": {"labels": {QUEUE: None}}}, MERGE)


def test_the_job_of_helm_test_has_no_queue_and_never_runs(team: Client) -> None:
    """With watchNamespace that test is in a team's namespace; its name opens no way around the rule."""
    tried = named("shardwise-helm-test")
    with pytest.raises(RefusedError, match=WORDS):
        team.request("POST", TEAM, tried)
    team.request("POST", TEAM, {**tried, "spec": {**tried["spec"], "suspend": True}})
    with pytest.raises(RefusedError, match=WORDS):
        team.request("PATCH", f"{TEAM}/shardwise-helm-test", {"spec": {"suspend": False}}, MERGE)
    team.request("DELETE", f"{TEAM}/shardwise-helm-test")


def test_a_job_of_before_is_not_locked(team: Client) -> None:
    """It has no queue, and is suspended like any other."""
    team.request("PATCH", f"{TEAM}/earlier", {"spec": {"suspend": True}}, MERGE)

    assert team.request("GET", f"{TEAM}/earlier")["spec"]["suspend"] is True


def _list(items: list[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
