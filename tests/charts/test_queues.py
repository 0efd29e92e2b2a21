"""kueue.enabled, gangScheduling: the operator is told, and has rights to the objects, and without them neither."""

from tests.charts.helm import CHARTS, Helm, Object

_ON = ("--set", "kueue.enabled=true")
_BOOST = ("--set", "kueue.priorityBoost=true")


def _arguments(objects: list[Object]) -> list[str]:
    (deployment,) = [item for item in objects if item["kind"] == "Deployment"]
    arguments: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    return [each for each in arguments if "kueue" in each or "gang" in each]


def _rights(objects: list[Object], group: str = "kueue.x-k8s.io") -> dict[str, set[str]]:
    """The verbs of each kind of a group, by the kind of the role that grants them."""
    roles = [item for item in objects if item["kind"] in ("ClusterRole", "Role")]
    return {
        f"{role['kind']} {resource}": set(rule["verbs"])
        for role in roles
        for rule in role["rules"]
        for resource in rule["resources"]
        if group in rule["apiGroups"]
    }


def test_a_cluster_without_kueue_is_asked_for_none_of_it(helm: Helm) -> None:
    """Neither by an argument nor by a right."""
    objects = helm.render("shardwise")

    assert _arguments(objects) == []
    assert _rights(objects) == {}


def test_a_boost_alone_is_refused(helm: Helm) -> None:
    """It would mean nothing, without a word."""
    said = helm.refused("template", "x", CHARTS / "shardwise", *_BOOST)

    assert "kueue.priorityBoost: given true with kueue.enabled: false" in said


def test_a_cluster_with_kueue(helm: Helm) -> None:
    """The operator may neither make queues nor change flavors."""
    objects = helm.render("shardwise", *_ON)

    assert _arguments(objects) == ["--kueue"]
    assert _arguments(helm.render("shardwise", *_ON, *_BOOST)) == ["--kueue", "--kueue-priority-boost"]
    assert _rights(objects) == {
        "ClusterRole workloads": {"get", "list", "watch", "create", "patch", "delete"},
        "ClusterRole workloads/status": {"update"},
        "ClusterRole resourceflavors": {"list", "watch"},
        "ClusterRole workloadpriorityclasses": {"get"},
    }


def test_rights_in_one_namespace_end_there(helm: Helm) -> None:
    """Workloads are of a namespace, flavors and classes are not."""
    rights = _rights(helm.render("shardwise", *_ON, "--set", "watchNamespace=ml"))

    assert {name for name in rights if name.startswith("Role ")} == {"Role workloads", "Role workloads/status"}
    assert {name for name in rights if name.startswith("ClusterRole ")} == {
        "ClusterRole resourceflavors",
        "ClusterRole workloadpriorityclasses",
    }


def test_a_cluster_whose_scheduler_knows_gangs(helm: Helm) -> None:
    """They are made, looked for and deleted, and never changed."""
    objects = helm.render("shardwise", "--set", "gangScheduling=true")

    assert _arguments(objects) == ["--gang-scheduling"]
    assert _rights(objects, "scheduling.k8s.io") == {
        "ClusterRole workloads": {"get", "list", "watch", "create", "delete"},
    }
    assert _rights(helm.render("shardwise"), "scheduling.k8s.io") == {}
