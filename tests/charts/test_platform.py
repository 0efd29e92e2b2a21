"""The values by which a platform team fits the chart to its cluster, each against what it changes."""

import json
import os
from itertools import dropwhile
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.charts.helm import ARGOCD, CHARTS, PLATFORM, ROOT, TEAMS, Helm, named, of_teams, operator_of
from tests.cluster.programs import programs
from typer.testing import CliRunner

from shardwise.job.accelerators import class_of
from shardwise.job.load import as_data
from shardwise_operator.main import app
from shardwise_operator.observe.pod_defaults import read_pod_defaults
from shardwise_operator.runtime.tracing import checked_endpoint

JSON = "--set-json"
KUSTOMIZE = ROOT / "examples" / "kustomize"
KUEUE = ROOT / "examples" / "kueue"


@pytest.mark.parametrize(
    ("value", "given"),
    [
        ("affinity", {"nodeAffinity": {"x": []}}),
        ("nodeSelector", {"pool": "system"}),
        ("topologySpreadConstraints", [{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone"}]),
        ("priorityClassName", "system-cluster-critical"),
    ],
)
def test_where_the_operator_runs(helm: Helm, value: str, given: object) -> None:
    """As Kubernetes writes it, in the place of the chart's own where it has one."""
    assert operator_of(helm.render("shardwise", JSON, f"{value}={json.dumps(given)}"))[value] == given


def test_tolerations_come_beside_the_chart_s(helm: Helm) -> None:
    """An operator on a lost node is given up soon, whatever else it tolerates."""
    found = operator_of(helm.render("shardwise", JSON, 'tolerations=[{"key":"system"}]'))["tolerations"]

    assert [each["key"] for each in found] == [
        *(f"node.kubernetes.io/{w}" for w in ("not-ready", "unreachable")),
        "system",
    ]


def test_labels_and_annotations(helm: Helm) -> None:
    """Labels are on every object and the operator's pods, annotations on those; what selects the pods stays."""
    plain = named(helm.render("shardwise"), "Deployment", "shardwise")["spec"]["selector"]
    objects = helm.render("shardwise", "--set", "commonLabels.team=ml", "--set", "podAnnotations.scrape=no")
    deployment = named(objects, "Deployment", "shardwise")

    assert {item["metadata"]["labels"]["team"] for item in objects} == {"ml"}
    assert deployment["spec"]["template"]["metadata"]["labels"]["team"] == "ml"
    assert deployment["spec"]["template"]["metadata"]["annotations"]["scrape"] == "no"
    assert deployment["spec"]["selector"] == plain
    said = helm.refused("template", "x", CHARTS / "shardwise", "--set", r"commonLabels.helm\.sh/chart=x")
    assert "the chart has labels of that prefix itself" in said


def test_the_cluster_may_choose_users(helm: Helm) -> None:
    """Without fixed numbers the pods are still what "restricted" asks for; OpenShift fills in its own."""
    options = [
        word for key in ("runAsUser", "runAsGroup", "fsGroup") for word in ("--set", f"podSecurityContext.{key}=null")
    ]
    for item in helm.render("shardwise", *options):
        if item["kind"] in {"Deployment", "Job"}:
            context = item["spec"]["template"]["spec"]["securityContext"]
            assert context == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_variables_and_arguments(helm: Helm) -> None:
    """The operator's command takes what the chart gives it, further arguments last: they win."""
    options = ("--set", "logLevel=debug", "--set", "logFormat=text", JSON, 'extraArgs=["--qps=50","--workers=8"]')
    spec = operator_of(helm.render("shardwise", *options, JSON, 'env=[{"name":"HTTPS_PROXY","value":"http://p"}]'))
    (container,) = spec["containers"]

    assert container["args"][-2:] == ["--qps=50", "--workers=8"]
    assert {"--log-level=debug", "--log-format=text"} <= {*container["args"]}
    assert container["env"] == [{"name": "HTTPS_PROXY", "value": "http://p"}]
    known = CliRunner().invoke(app, [*container["command"][1:], *container["args"], "--help"])
    assert known.exit_code == 0, known.output
    assert CliRunner().invoke(app, [*container["command"][1:], *container["args"], "--none", "--help"]).exit_code == 2


def test_a_collector_of_spans(helm: Helm) -> None:
    """The operator is told where it is, by a URL that it takes; without one there is no such argument."""
    url = "https://collector.monitoring:4318/v1/traces?a=b&c={d}"
    (container,) = operator_of(helm.render("shardwise", JSON, f"tracing.endpoint={json.dumps(url)}"))["containers"]
    (argument,) = [word for word in container["args"] if word.startswith("--tracing-endpoint=")]

    assert checked_endpoint(argument.removeprefix("--tracing-endpoint=")) == url
    assert "--tracing-endpoint" not in str(operator_of(helm.render("shardwise")))
    for given in ("collector:4318", "grpc://collector:4317", "http://me:secret@collector"):
        said = helm.refused("template", "x", CHARTS / "shardwise", "--set-string", f"tracing.endpoint={given}")
        assert "/tracing/endpoint" in said


def test_defaults_of_training_pods(helm: Helm) -> None:
    """The operator reads what the chart writes; without values there is no such argument."""
    given: dict[str, Any] = {"labels": {"team": "ml"}, "serviceAccountName": "trainer", "userOfNamespace": True}
    given |= {"imagePullSecrets": [{"name": "registry"}], "tolerations": [{"key": "ml", "operator": "Exists"}]}
    given |= {"env": {"A": "b"}, "nodeSelector": {"pool": "ml"}}
    (container,) = operator_of(helm.render("shardwise", JSON, f"trainingPods={json.dumps(given)}"))["containers"]
    (argument,) = [word for word in container["args"] if word.startswith("--pod-defaults=")]
    defaults = read_pod_defaults(argument.removeprefix("--pod-defaults="))

    assert defaults.below({}) == {
        "metadata": {"labels": {"team": "ml"}},
        "spec": {
            "nodeSelector": {"pool": "ml"},
            "containers": [{"name": "agent", "env": [{"name": "A", "value": "b"}]}],
            "tolerations": [{"key": "ml", "operator": "Exists"}],
            "imagePullSecrets": [{"name": "registry"}],
            "serviceAccountName": "trainer",
        },
    }
    assert defaults.user_of_namespace
    assert "--pod-defaults" not in str(operator_of(helm.render("shardwise")))
    for wrong in (
        'trainingPods={"tolerations":[{"operater":"Exists"}]}',
        'trainingPods={"env":[]}',
        'trainingPods={"env":{"A B":"x"}}',
        'trainingPods={"labels":{"team":"a b"}}',
        'trainingPods={"labels":{"bad key":"x"}}',
        'trainingPods={"nodeSelector":{"pool":"a b"}}',
        'trainingPods={"imagePullSecrets":[{"name":""}]}',
        'ttlAfterFinished="7days"',
    ):
        said = helm.refused("template", "x", CHARTS / "shardwise", JSON, wrong)
        assert "/trainingPods/" in said or "/ttlAfterFinished" in said


def test_classes_are_changed_by_values(helm: Helm) -> None:
    """What is merged over a built-in class is there after each upgrade; the rest of it stays; a typo is refused."""
    given = {"image": "mine", "tolerations": [{"key": "tpu", "operator": "Exists"}], "allowed": {"namespaces": ["ml"]}}
    plain = named(helm.render("shardwise"), "AcceleratorClass", "tpu-v5p")
    changed = named(
        helm.render("shardwise", JSON, f"classes.overrides.tpu-v5p={json.dumps(given)}"), "AcceleratorClass", "tpu-v5p"
    )

    assert changed["spec"] == plain["spec"] | given
    class_of(changed)
    said = helm.refused("template", "x", CHARTS / "shardwise", "--set", "classes.overrides.tpu-5.image=x")
    assert "classes.overrides.tpu-5: no built-in class has that name; they are cpu-sim" in said


def test_only_some_classes_are_offered(helm: Helm) -> None:
    """Those that are named, with what is merged over them, and no other; a typo is refused."""
    names = ("--set", "classes.only={cpu-sim,tpu-v5e}")
    objects = helm.render("shardwise", *names, "--set", "classes.overrides.tpu-v5e.image=mine")
    classes = [each["metadata"]["name"] for each in objects if each["kind"] == "AcceleratorClass"]

    assert classes == ["cpu-sim", "tpu-v5e"]
    assert named(objects, "AcceleratorClass", "tpu-v5e")["spec"]["image"] == "mine"
    said = helm.refused("template", "x", CHARTS / "shardwise", "--set", "classes.only={tpu-5}")
    assert "classes.only: given tpu-5, expected built-in classes; they are cpu-sim" in said


def test_how_classes_are_merged(helm: Helm) -> None:
    """Maps merge key by key, a list replaces the built-in one, and null takes a key out; it is still a class."""
    given = {"nodeSelector": {"nvidia.com/gpu.product": None, "pool": "h100"}, "tolerations": [{"key": "mine"}]}
    plain = named(helm.render("shardwise"), "AcceleratorClass", "gpu-h100")
    options = (JSON, f"classes.overrides.gpu-h100={json.dumps(given)}")
    changed = named(helm.render("shardwise", *options), "AcceleratorClass", "gpu-h100")

    assert "nvidia.com/gpu.product" in plain["spec"]["nodeSelector"]
    labels = {key: value for key, value in plain["spec"]["nodeSelector"].items() if key != "nvidia.com/gpu.product"}
    assert changed["spec"] == plain["spec"] | {
        "nodeSelector": {**labels, "pool": "h100"},
        "tolerations": [{"key": "mine"}],
    }
    class_of(changed)

    new = {"annotations": {"a": None, "b": "c"}}
    options = (JSON, f"classes.overrides.gpu-h100={json.dumps(new)}")
    changed = named(helm.render("shardwise", *options), "AcceleratorClass", "gpu-h100")
    assert changed["spec"] == plain["spec"] | {"annotations": {"b": "c"}}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"nodeSelectr": {"a": "b"}}, "'nodeSelectr' not allowed"),
        ({"nodeSelector": "pool=h100"}, "got string, want"),
        ({"hosts": {"maximum": 2}}, "'maximum' not allowed"),
        ({"podSecurity": "strict"}, "podSecurity"),
    ],
    ids=str,
)
def test_what_no_class_has_is_refused(helm: Helm, given: dict[str, Any], said: str) -> None:
    """Helm knows what an override may hold, before the API server would leave it out."""
    options = (JSON, f"classes.overrides.gpu-h100={json.dumps(given)}")
    assert said in helm.refused("template", "x", CHARTS / "shardwise", *options)


def test_a_namespace_that_cannot_be_is_refused(helm: Helm) -> None:
    """By its name, before a Role is made for it."""
    said = helm.refused("template", "x", CHARTS / "shardwise", "--set", "watchNamespace=Team_A")
    assert "/watchNamespace" in said
    assert "Team_A" in said


def test_a_label_that_is_no_text_is_refused(helm: Helm) -> None:
    """The schema says so, before Kubernetes would."""
    assert "got number" in helm.refused("template", "x", CHARTS / "shardwise", "--set", "commonLabels.a=1")


def test_everything_at_once_is_yaml(helm: Helm) -> None:
    """Values that need quotes come through whole."""
    odd = json.dumps({"a": "yes", "b": "1", "c": 'x: "y"'})
    options = (JSON, f"podAnnotations={odd}", JSON, f"commonLabels={json.dumps({'team': '1'})}")
    objects = helm.render("shardwise", *options, JSON, f"trainingPods.annotations={odd}")
    deployment = named(objects, "Deployment", "shardwise")

    assert deployment["spec"]["template"]["metadata"]["annotations"].items() >= json.loads(odd).items()
    assert deployment["metadata"]["labels"]["team"] == "1"
    (argument,) = [w for w in operator_of(objects)["containers"][0]["args"] if w.startswith("--pod-defaults=")]
    assert yaml.safe_load(argument.removeprefix("--pod-defaults=")) == {"annotations": json.loads(odd)}


def test_the_example_of_a_post_renderer(helm: Helm, monkeypatch: pytest.MonkeyPatch) -> None:
    """It adds to the ServiceMonitor what the chart has no value for, and changes nothing else."""
    monkeypatch.setenv("HELM_PLUGINS", str(KUSTOMIZE.parent))
    monkeypatch.setenv("PATH", f"{programs()}{os.pathsep}{os.environ['PATH']}")  # it calls kubectl
    # The chart makes another key each time, so it is named one.
    words = ("--set", "metrics.serviceMonitor.create=true", "--set", "key.existingSecret=key")
    plain = helm.render("shardwise", *words)
    changed = helm.render("shardwise", *words, "--post-renderer", "kustomize")

    (endpoint,) = named(plain, "ServiceMonitor", "shardwise")["spec"]["endpoints"]
    endpoint["relabelings"] = [{"targetLabel": "cluster", "replacement": "training-eu"}]
    endpoint["metricRelabelings"] = [{"sourceLabels": ["__name__"], "regex": "process_.*", "action": "drop"}]
    assert _sorted(changed) == _sorted(plain)


def test_the_page_shows_the_kustomization() -> None:
    """docs/kubernetes.md has it as it stands, without the comment above it."""
    text = (KUSTOMIZE / "kustomization.yaml").read_text(encoding="utf-8")
    shown = text[text.index("apiVersion") :]

    assert f"```yaml\n{shown}```" in (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")


def test_the_example_of_a_platform(helm: Helm) -> None:
    """`helm template` takes it, twice the same: it makes no Secret. Operator, monitor and rules are told all of it."""
    words = ("template", "shardwise", CHARTS / "shardwise", "--namespace", "shardwise-system", "--values", PLATFORM)
    printed = helm(*words)
    objects = [each for each in yaml.safe_load_all(printed) if each]
    (container,) = operator_of(objects)["containers"]
    arguments = dict(word.removeprefix("--").partition("=")[::2] for word in container["args"])
    given = yaml.safe_load(PLATFORM.read_text(encoding="utf-8"))
    (endpoint,) = named(objects, "ServiceMonitor", "shardwise")["spec"]["endpoints"]

    assert printed == helm(*words)
    assert not [each for each in objects if each["kind"] == "Secret"]
    assert {"kueue", "page-address", "page-token", "metrics-token"} <= arguments.keys()
    assert arguments["ttl-after-finished"] == "7d"
    assert as_data(read_pod_defaults(arguments["pod-defaults"])).items() >= given["trainingPods"].items()
    assert endpoint["authorization"] == {"credentials": {"name": "shardwise-metrics", "key": "token"}}
    for kind in ("ServiceMonitor", "PrometheusRule"):
        assert named(objects, kind, "shardwise")["metadata"]["labels"]["release"] == "prometheus"
    assert {each["spec"]["image"].rpartition("/")[0] for each in objects if "image" in each.get("spec", {})} == {
        given["images"]["registry"]
    }


def test_what_teams_get_names_what_is_there(helm: Helm) -> None:
    """Rights are those of one chart's roles or the other's; queues, flavors and namespaces are those of the teams."""
    objects = helm.render("shardwise", "--values", PLATFORM)
    teams = of_teams(helm)
    roles = {each["metadata"]["name"] for each in (*objects, *teams) if each["kind"] == "ClusterRole"}
    names = {kind: {each["metadata"]["name"] for each in teams if each["kind"] == kind} for kind in _kinds(teams)}
    (api,) = {each["apiVersion"] for each in teams if "kueue" in each["apiVersion"]}

    assert {each["roleRef"]["name"] for each in teams if "roleRef" in each} <= roles
    assert {each["metadata"].get("namespace", "vision") for each in teams} == names["Namespace"]
    assert {"vision", "language"} == names["Namespace"] == names["ClusterQueue"]
    assert {each["metadata"]["namespace"] for each in teams if each["metadata"]["name"] == "runs"} == names["Namespace"]
    assert api in (KUEUE / "queue.yaml").read_text(encoding="utf-8")
    for each in teams:
        if each["kind"] == "ClusterQueue":
            (group,) = each["spec"]["resourceGroups"]
            assert {flavor["name"] for flavor in group["flavors"]} == names["ResourceFlavor"]
            assert all([one["name"] for one in of["resources"]] == group["coveredResources"] for of in group["flavors"])
        elif each["kind"] == "LocalQueue":
            assert each["metadata"]["namespace"] == each["spec"]["clusterQueue"]


def test_kueue_reads_jobs() -> None:
    """Kueue asks for the owner of each pod: it may read the kind that its configuration names, and no more."""
    role, binding = yaml.safe_load_all((KUEUE / "kueue.yaml").read_text(encoding="utf-8"))
    (crd,) = CHARTS.glob("shardwise/crds/trainingjobs.*.yaml")
    names = yaml.safe_load(crd.read_text(encoding="utf-8"))["spec"]

    (rule,) = role["rules"]
    assert (rule["apiGroups"], rule["resources"]) == ([names["group"]], [names["names"]["plural"]])
    assert rule["verbs"] == ["get", "list", "watch"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    page = (ROOT / "docs" / "queues.md").read_text(encoding="utf-8")
    assert f"externalFrameworks: [{names['names']['kind']}.v1alpha1.{names['group']}]" in page


def test_every_class_of_a_platform_counts_in_a_queue(helm: Helm) -> None:
    """What a pod of it requests is counted, on nodes of one flavor alone; privileged ones are for the teams alone."""
    objects = helm.render("shardwise", "--values", PLATFORM)
    teams = of_teams(helm)
    namespaces = [each["metadata"]["name"] for each in teams if each["kind"] == "Namespace"]
    flavors = {each["metadata"]["name"]: each.get("spec", {}) for each in teams if each["kind"] == "ResourceFlavor"}
    covered = {
        name
        for each in teams
        if each["kind"] == "ClusterQueue"
        for group in each["spec"]["resourceGroups"]
        for name in group["coveredResources"]
    }
    classes = {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "AcceleratorClass"}

    assert set(classes) == {"cpu-sim", "gke-gpu-h100", "tpu-v5e"}
    for spec in classes.values():
        counted = {*spec["requests"], *([spec["deviceResource"]] if "deviceResource" in spec else [])}
        (flavor,) = [
            each
            for each, of in flavors.items()
            if of.get("nodeLabels", {}).items() <= spec.get("nodeSelector", {}).items()
            and bool(of) == ("deviceResource" in spec)
        ]
        tolerated = {each["key"] for each in spec.get("tolerations", ())}
        assert {"cpu", "memory"} <= counted <= covered
        assert {taint["key"] for taint in flavors[flavor].get("nodeTaints", ())} <= tolerated
        if spec["podSecurity"] == "privileged":
            assert sorted(spec["allowed"]["namespaces"]) == sorted(namespaces)


def test_the_example_of_argo_cd(helm: Helm, tmp_path: Path) -> None:
    """Its values are the chart's, no hook applies CRDs, and what tracking writes over a label is what selects by it."""
    application = yaml.safe_load(ARGOCD.read_text(encoding="utf-8"))
    chart, others = application["spec"]["sources"]
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(chart["helm"]["valuesObject"]), encoding="utf-8")
    objects = helm.render("shardwise", "--values", PLATFORM, "--values", values, "--include-crds")
    crds = [each for each in objects if each["kind"] == "CustomResourceDefinition"]
    monitor = named(objects, "ServiceMonitor", "shardwise")

    assert (ROOT / chart["path"] / "Chart.yaml").is_file()
    assert others["ref"] == "values"
    assert "ServerSideApply=true" in application["spec"]["syncPolicy"]["syncOptions"]
    assert "pre-upgrade" not in str(objects)
    assert len(crds) == 3
    for crd in crds:  # with one that is pruned all its jobs go
        assert "Prune=false" in crd["metadata"]["annotations"]["argocd.argoproj.io/sync-options"]
    assert application["metadata"]["name"] == chart["helm"]["releaseName"]
    assert monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/instance"] == chart["helm"]["releaseName"]


@pytest.mark.parametrize("values", [PLATFORM, TEAMS], ids=lambda values: values.stem)
def test_the_page_shows_the_values_of_a_platform(values: Path) -> None:
    """docs/how-to/platform.md has them as they stand, without the comment above."""
    lines = values.read_text(encoding="utf-8").splitlines(keepends=True)
    shown = "".join(dropwhile(lambda line: line.startswith("#"), lines))

    assert f"```yaml\n{shown}```" in (ROOT / "docs" / "how-to" / "platform.md").read_text(encoding="utf-8")


def _kinds(objects: list[dict[str, Any]]) -> set[str]:
    return {each["kind"] for each in objects}


def _sorted(objects: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(each, sort_keys=True) for each in objects)
