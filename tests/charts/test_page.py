"""The chart's page of all jobs and the guard of the metrics: off and closed by default, and whole where asked for."""

import re

import pytest
import yaml
from tests.charts.helm import CHARTS, Helm, Object, named, operator_of
from typer.testing import CliRunner

from shardwise_operator.main import app

PAGE = ("--set", "page.enabled=true")
GUARDED = ("--set", "metrics.tokenSecret=scrape", "--set", "tls.existingSecret=certificate")
MONITOR = ("--set", "metrics.serviceMonitor.create=true")


def open_ports(objects: list[Object]) -> dict[str, object]:
    """The ports of the operator that its policy opens, and to whom; None is everybody."""
    rules = named(objects, "NetworkPolicy", "shardwise")["spec"]["ingress"]
    return {rule["ports"][0]["port"]: rule.get("from") for rule in rules}


def test_off_by_default(helm: Helm) -> None:
    """No port, no Service, no Secret, no argument: nothing of a job is served."""
    objects = helm.render("shardwise")
    (container,) = operator_of(objects)["containers"]

    assert [port["name"] for port in container["ports"]] == ["metrics", "health"]
    assert not [word for word in container["args"] if word.startswith(("--page", "--tls", "--metrics-token"))]
    assert not [item for item in objects if item["metadata"]["name"] == "shardwise-page"]
    assert open_ports(objects).keys() == {"metrics", "health"}


def test_page(helm: Helm) -> None:
    """A token of chance in a Secret of its own, which the operator has as a file, a Service, and no open port."""
    objects = helm.render("shardwise", *PAGE)
    other = helm.render("shardwise", *PAGE, "--set", "replicas=3")
    pod = operator_of(objects)
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}

    assert named(objects, "Secret", "shardwise-page")["data"] != named(other, "Secret", "shardwise-page")["data"]
    assert {"--page-address=:8082", "--page-token=/etc/shardwise-page/token"} <= {*container["args"]}
    assert mounts["page-token"] == "/etc/shardwise-page"
    assert volumes["page-token"]["secret"]["secretName"] == "shardwise-page"
    assert {"name": "page", "containerPort": 8082} in container["ports"]
    assert named(objects, "Service", "shardwise-page")["spec"]["ports"] == [
        {"name": "page", "port": 8082, "targetPort": "page"}
    ]
    assert open_ports(objects).keys() == {"metrics", "health"}


def test_prometheus_does_not_read_the_page(helm: Helm) -> None:
    """The monitor selects the Service of the metrics alone: of two each series would be there twice."""
    objects = helm.render("shardwise", *PAGE, *MONITOR)
    wanted = named(objects, "ServiceMonitor", "shardwise")["spec"]["selector"]["matchLabels"].items()
    services = [item["metadata"] for item in objects if item["kind"] == "Service"]

    assert len(services) == 2
    assert [each["name"] for each in services if wanted <= each["labels"].items()] == ["shardwise-metrics"]


def test_page_asks_for_no_rights(helm: Helm) -> None:
    """What it shows is in the operator's caches, so that no role says more with it than without."""
    roles = [
        [item for item in helm.render("shardwise", *options) if item["kind"] in {"Role", "ClusterRole"}]
        for options in ((), PAGE)
    ]

    assert roles[0] == roles[1] != []


def test_who_may_reach_the_page(helm: Helm) -> None:
    """Those who are named, and nobody else."""
    peers = ("--set", "networkPolicy.pageFrom[0].namespaceSelector.matchLabels.a=b")

    assert open_ports(helm.render("shardwise", *PAGE, *peers))["page"] == [
        {"namespaceSelector": {"matchLabels": {"a": "b"}}}
    ]
    assert "page" not in open_ports(helm.render("shardwise", *peers))


def test_a_secret_of_theirs(helm: Helm) -> None:
    """It is mounted, and none is made beside it."""
    objects = helm.render("shardwise", *PAGE, "--set", "page.existingSecret=mine")
    volumes = {volume["name"]: volume for volume in operator_of(objects)["volumes"]}

    assert volumes["page-token"]["secret"]["secretName"] == "mine"
    assert [item["metadata"]["name"] for item in objects if item["kind"] == "Secret"] == ["shardwise-key"]


def test_guarded_metrics(helm: Helm) -> None:
    """A token and a certificate reach the operator, and the Prometheus Operator is told of both."""
    objects = helm.render("shardwise", *GUARDED, *MONITOR)
    pod = operator_of(objects)
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume.get("secret", {}).get("secretName") for volume in pod["volumes"]}
    (endpoint,) = named(objects, "ServiceMonitor", "shardwise")["spec"]["endpoints"]

    assert {"--metrics-token=/etc/shardwise-metrics/token", "--tls=/etc/shardwise-tls"} <= {*container["args"]}
    assert (mounts["metrics-token"], mounts["tls"]) == ("/etc/shardwise-metrics", "/etc/shardwise-tls")
    assert (volumes["metrics-token"], volumes["tls"]) == ("scrape", "certificate")
    assert endpoint["authorization"] == {"credentials": {"name": "scrape", "key": "token"}}
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"] == {
        "ca": {"secret": {"name": "certificate", "key": "ca.crt"}},
        "serverName": "shardwise-metrics.shardwise-system.svc",
    }
    (plain,) = named(helm.render("shardwise", *MONITOR), "ServiceMonitor", "shardwise")["spec"]["endpoints"]
    assert plain == {"port": "metrics", "interval": "30s", "honorLabels": True}


def test_the_operator_knows_the_arguments(helm: Helm) -> None:
    """Its command takes every word that the chart writes."""
    (container,) = operator_of(helm.render("shardwise", *PAGE, *GUARDED))["containers"]
    known = CliRunner().invoke(app, [*container["command"][1:], *container["args"], "--help"])

    assert known.exit_code == 0, known.output


@pytest.mark.parametrize(("options", "scheme"), [(PAGE, "http"), ((*PAGE, *GUARDED), "https")])
def test_the_notes_lead_to_the_page(helm: Helm, options: tuple[str, ...], scheme: str) -> None:
    """Where it is, how its port is forwarded, and which Secret has the token; nothing of it where it is off."""
    words = ("install", "shardwise", CHARTS / "shardwise", "-n", "shardwise-system", "--dry-run=client")
    notes = helm(*words, *options).partition("NOTES:")[2]

    assert f"at {scheme}://127.0.0.1:8082/jobs" in notes
    assert "kubectl port-forward deployment/shardwise 8082 -n shardwise-system" in notes
    assert "kubectl get secret shardwise-page -n shardwise-system" in notes
    assert "8082" not in helm(*words).partition("NOTES:")[2]


def test_the_reader_of_a_claim_is_restricted() -> None:
    """The pod of docs/page.md that reads a run on a claim is one that a namespace of the restricted level admits."""
    page = (CHARTS.parent / "docs" / "page.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (pod,) = [yaml.safe_load(block) for block in blocks if "kind: Pod" in block]

    assert pod["spec"]["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    for container in pod["spec"]["containers"]:
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
