"""What values make of charts/training-teams. tests/operator/controller/test_queues.py installs it by a real Kueue."""

import json
from typing import Any

import pytest
import yaml
from tests.charts.helm import CHARTS, Helm, Object, named

CHART = "training-teams"
FLAVORS = '[{"name": "plain"}, {"name": "tpu", "nodeLabels": {"a": "b"}}]'
TEAMS: dict[str, dict[str, Any]] = {
    "one": {"group": "ones", "quota": {"tpu": {"google.com/tpu": 8, "cpu": "32"}}},
    "two": {"quota": {"plain": {"memory": "1Gi"}}},
    "three": {},
}
OPTIONS = ("--set-json", f"flavors={FLAVORS}", "--set-json", f"teams={json.dumps(TEAMS)}")


@pytest.fixture
def objects(helm: Helm) -> list[Object]:
    """Return the objects of three teams, of which one has no quota."""
    return helm.render(CHART, *OPTIONS)


def test_every_flavor_and_resource_may_be_lent(objects: list[Object]) -> None:
    """A queue has each of all of them, in one order, as Kueue demands; what its team has no quota of is 0."""
    for team, of in TEAMS.items():
        (group,) = named(objects, "ClusterQueue", team)["spec"]["resourceGroups"]
        assert group["coveredResources"] == ["cpu", "google.com/tpu", "memory"]
        assert [flavor["name"] for flavor in group["flavors"]] == ["plain", "tpu"]
        found = {
            flavor["name"]: {one["name"]: one["nominalQuota"] for one in flavor["resources"] if one["nominalQuota"]}
            for flavor in group["flavors"]
        }
        assert {name: quota for name, quota in found.items() if quota} == of.get("quota", {})


def test_a_team_may_have_a_name_that_is_a_number_in_yaml(helm: Helm) -> None:
    """As one that is named after a year: every name and label stays text."""
    teams = {"2024": {"quota": {"plain": {"cpu": 4}}}, "on": {}}
    made = helm.render(CHART, "--set-json", f"flavors={FLAVORS}", "--set-json", f"teams={json.dumps(teams)}")

    assert {named(made, kind, team)["kind"] for kind in ("ClusterQueue", "Namespace") for team in teams}
    for each in made:
        metadata = each["metadata"]
        texts = [metadata["name"], metadata.get("namespace", ""), *metadata["labels"].values()]
        assert all(isinstance(text, str) for text in texts), texts
    assert {each["spec"]["clusterQueue"] for each in made if each["kind"] == "LocalQueue"} == {*teams}


def test_a_team_is_its_group(objects: list[Object]) -> None:
    """Every right of a team is its group's, in its namespace; the group has the team's name by default."""
    groups = {"one": "ones", "two": "two", "three": "three"}
    bound = [each for each in objects if each["kind"] == "RoleBinding"]
    assert len(bound) == 2 * len(TEAMS)
    for each in bound:
        assert [subject["name"] for subject in each["subjects"]] == [groups[each["metadata"]["namespace"]]]
    everywhere = named(objects, "ClusterRoleBinding", "shardwise-teams-classes")
    assert {subject["name"] for subject in everywhere["subjects"]} == {*groups.values()}


@pytest.mark.parametrize(
    "release", ["shardwise", "training", "our-shardwise", "of-a-platform-whose-name-is-long-and-longer"]
)
def test_the_roles_are_those_of_the_operators_chart(helm: Helm, release: str) -> None:
    """Every role that a team is bound to is there, whatever the operator's release is called."""
    operator = yaml.safe_load_all(helm("template", release, CHARTS / "shardwise"))
    teams = helm.render(CHART, *OPTIONS, "--set", f"operatorRelease={release}")
    roles = {each["metadata"]["name"] for each in (*operator, *teams) if each["kind"] == "ClusterRole"}
    bound = {each["roleRef"]["name"] for each in teams if each["kind"].endswith("RoleBinding")}
    assert len(bound) == 3
    assert bound <= roles


def test_another_operator_is_another_binding(helm: Helm, objects: list[Object]) -> None:
    """The role of a binding cannot change: an upgrade that corrects the operator's release makes bindings anew."""
    others = helm.render(CHART, *OPTIONS, "--set", "operatorRelease=platform")
    first, second = (
        {
            (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]): each["roleRef"]
            for each in made
            if each["kind"].endswith("RoleBinding")
        }
        for made in (objects, others)
    )
    for key in first.keys() & second.keys():
        assert first[key] == second[key], key
    assert len(first) == len(second) == 2 * len(TEAMS) + 1


def test_a_service_account_for_buckets(helm: Helm, objects: list[Object]) -> None:
    """One in each namespace, if it is named, with no token of the cluster in its pods."""
    assert "ServiceAccount" not in {each["kind"] for each in objects}
    made = helm.render(CHART, *OPTIONS, "--set", "serviceAccount=trainer")
    accounts = [each for each in made if each["kind"] == "ServiceAccount"]
    assert {each["metadata"]["namespace"] for each in accounts} == {*TEAMS}
    assert {(each["metadata"]["name"], each["automountServiceAccountToken"]) for each in accounts} == {
        ("trainer", False)
    }


def test_runs_outlive_the_chart(objects: list[Object]) -> None:
    """Neither Helm nor Argo CD takes a namespace or a claim away with its team."""
    kept = [each for each in objects if each["kind"] in {"Namespace", "PersistentVolumeClaim"}]
    assert len(kept) == 2 * len(TEAMS)
    for each in kept:
        assert each["metadata"]["annotations"] == {
            "helm.sh/resource-policy": "keep",
            "argocd.argoproj.io/sync-options": "Prune=false",
        }


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("createNamespaces=false", "Namespace"),
        ("runs.create=false", "PersistentVolumeClaim"),
        ("requireQueue=false", "ValidatingAdmissionPolicy"),
    ],
)
def test_what_is_there_already_is_left_out(helm: Helm, objects: list[Object], value: str, kind: str) -> None:
    """A platform may have its own."""
    fewer = helm.render(CHART, *OPTIONS, "--set", value)
    gone = {each["kind"] for each in objects} - {each["kind"] for each in fewer}
    assert kind in gone
    assert all(each.startswith(kind) for each in gone)


def test_a_flavor_that_is_not_there_is_refused(helm: Helm) -> None:
    """Its quota would be 0 of everything, without a word; so would that of a misspelt key."""
    said = helm.refused("template", "x", CHARTS / CHART, "--set", "teams.one.quota.tpus.cpu=1")
    assert "teams.one.quota: given tpus, expected flavors; they are plain" in said
    assert "quotas" in helm.refused("template", "x", CHARTS / CHART, "--set", "teams.one.quotas.plain.cpu=1")
    assert "teams" in helm.refused("template", "x", CHARTS / CHART, "--set", "teams.One.group=a")
