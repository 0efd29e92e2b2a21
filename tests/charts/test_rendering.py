"""charts/shardwise as it is rendered: the default in a golden file, and what must hold of every rendering."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from tests.charts.helm import CHARTS, Helm, Object, named, operator_of
from tests.operator.test_job_metrics import SERVED

from shardwise.protocol.pods import CONTRACT

Golden = Callable[[str, str], None]

CHART = CHARTS / "shardwise"
EVERYTHING = (
    *("--set", "metrics.serviceMonitor.create=true"),
    *("--set", "metrics.alerts.create=true"),
    *("--set", "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.a=b"),
    *("--set", "images.pullSecrets[0].name=registry"),
    *("--set", "priorityClassName=high"),
    *("--set", "page.enabled=true"),
    *("--set", "metrics.tokenSecret=scrape"),
    *("--set", "tls.existingSecret=certificate"),
    *("--set", "tracing.endpoint=http://collector.monitoring:4318"),
)
ONE_NAMESPACE = ("--set", "watchNamespace=ml", "--set", "managedBy=ours")

variants = pytest.mark.parametrize("options", [(), EVERYTHING, ONE_NAMESPACE], ids=["default", "all", "one-namespace"])


def test_default(helm: Helm, golden: Golden) -> None:
    """What `helm install` without values makes is seen in review; files of the chart by their path alone."""
    golden("shardwise.yaml", yaml.safe_dump_all(_short(helm.render("shardwise")), sort_keys=False))


def test_one_namespace(helm: Helm, golden: Golden) -> None:
    """What the operator may do where it is held to one namespace, and how it is started there."""
    objects = helm.render("shardwise", *ONE_NAMESPACE)
    kept = [item for item in objects if item["kind"] in {"ClusterRole", "Role", "RoleBinding", "Deployment"}]

    golden("one-namespace.yaml", yaml.safe_dump_all(kept, sort_keys=False))


@variants
def test_no_wildcards(helm: Helm, options: tuple[str, ...]) -> None:
    """No role grants `*`, and none may read a Secret, make a role, or act as another."""
    for rule in _rules(helm.render("shardwise", *options)):
        granted = {verb for verb in rule["verbs"] if "secrets" in rule["resources"]}

        assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
        assert granted <= {"create"}
        assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])
        assert "pods/exec" not in rule["resources"]


def test_one_namespace_keeps_to_it(helm: Helm) -> None:
    """Held to one namespace, the operator has no right in another, but for the lease in its own."""
    objects = helm.render("shardwise", *ONE_NAMESPACE)
    cluster_wide = named(objects, "ClusterRole", "shardwise-operator")
    roles = [item for item in objects if item["kind"] == "Role" and item["metadata"]["name"] == "shardwise-operator"]

    assert {resource for rule in cluster_wide["rules"] for resource in rule["resources"]} == {
        "acceleratorcatalogs",
        "acceleratorclasses",
        "nodes",
    }
    assert [role["metadata"]["namespace"] for role in roles] == ["ml"]


def test_same_rights_everywhere(helm: Helm) -> None:
    """A cluster-wide operator may do the same as one of a namespace, and nothing more."""
    everywhere, one = (helm.render("shardwise", *options) for options in ((), ONE_NAMESPACE))
    parts = [named(one, "ClusterRole", "shardwise-operator"), named(one, "Role", "shardwise-operator")]

    assert named(everywhere, "ClusterRole", "shardwise-operator")["rules"] == [
        r for part in parts for r in part["rules"]
    ]


NOT_AGGREGATED = ("--set", "userRoles.aggregate=false")


def test_people(helm: Helm) -> None:
    """Jobs are for those who may edit a namespace; the role view may read them, as it may read pods."""
    objects = helm.render("shardwise")
    label = "rbac.authorization.k8s.io/aggregate-to-"
    verbs: dict[str, set[str]] = {}
    for item in objects:
        for role in (each.removeprefix(label) for each in item["metadata"]["labels"] if each.startswith(label)):
            (rule,) = item["rules"]
            assert rule["resources"] == ["trainingjobs"]
            verbs[role] = {*verbs.get(role, ()), *rule["verbs"]}

    assert verbs["view"] == {"get", "list", "watch"}
    assert verbs["edit"] == verbs["admin"] > {"create", "update", "patch", "delete"}
    assert not any("aggregate-to" in str(item) for item in helm.render("shardwise", *NOT_AGGREGATED))


def test_everybody_sees_the_machines(helm: Helm) -> None:
    """A job names one, and the notes of the chart say how to look at them; classes hold no secret."""
    objects = helm.render("shardwise")
    (binding,) = [item for item in objects if item["kind"] == "ClusterRoleBinding" and "Group" in str(item["subjects"])]

    assert binding["subjects"][0]["name"] == "system:authenticated"
    (rule,) = named(objects, "ClusterRole", binding["roleRef"]["name"])["rules"]
    assert (rule["resources"], rule["verbs"]) == (["acceleratorclasses"], ["get", "list", "watch"])
    assert "system:authenticated" not in str(helm.render("shardwise", *NOT_AGGREGATED))


@variants
def test_pods_are_restricted(helm: Helm, options: tuple[str, ...]) -> None:
    """Every container of the chart is what Pod Security "restricted" asks for, with a read-only root and limits."""
    for pod in _pods(helm.render("shardwise", *options)):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["enableServiceLinks"] is False
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert "memory" in container["resources"]["limits"]


@variants
def test_labels(helm: Helm, options: tuple[str, ...]) -> None:
    """Every object carries Helm's recommended labels, and no label is longer than Kubernetes takes."""
    for item in helm.render("shardwise", *options):
        labels = item["metadata"]["labels"]

        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels.keys() >= {f"app.kubernetes.io/{key}" for key in ("name", "instance", "version", "part-of")}
        assert all(len(value) <= 63 for value in labels.values())


def test_a_users_label_goes_over_the_charts(helm: Helm) -> None:
    """The closest one counts, but for those by which Helm and a selector know the release."""
    parts = ("serviceMonitor", "alerts", "dashboard")
    theirs = {
        "team": "near",
        **{f"app.kubernetes.io/{key}": "x" for key in ("part-of", "name", "instance", "managed-by")},
    }
    values = {"commonLabels": {"team": "far"}, "metrics": {part: {"create": True, "labels": theirs} for part in parts}}

    objects = helm.render("shardwise", *(word for item in values.items() for word in _set(*item)))

    for kind, name in (("ServiceMonitor", ""), ("PrometheusRule", ""), ("ConfigMap", "-dashboard")):
        labels = named(objects, kind, f"shardwise{name}")["metadata"]["labels"]
        assert [labels[f"app.kubernetes.io/{key}"] for key in ("name", "instance", "managed-by")] == [
            "shardwise",
            "shardwise",
            "Helm",
        ]
        assert (labels["team"], labels["app.kubernetes.io/part-of"]) == ("near", "x")


def test_an_empty_label_of_a_user_goes_over_the_charts(helm: Helm) -> None:
    """A label without a value is a value: it is not taken for one that was not given."""
    empty = {"team": "", "app.kubernetes.io/part-of": ""}
    values = {"commonLabels": {"team": "far"}, "metrics": {"alerts": {"create": True, "labels": empty}}}

    objects = helm.render("shardwise", *(word for item in values.items() for word in _set(*item)))

    labels = named(objects, "PrometheusRule", "shardwise")["metadata"]["labels"]
    assert labels.items() >= empty.items()


def test_an_annotation_of_the_operators_pods_goes_over_the_charts(helm: Helm) -> None:
    """And stands there once: a key that is there twice is refused by `kubectl apply` and by Kustomize."""
    key = "kubectl.kubernetes.io/default-container"
    printed = helm("template", "x", CHART, *_set("podAnnotations", {key: "proxy", "why": "try"}))

    (line,) = [line.strip() for line in printed.splitlines() if key in line]
    assert line == f"{key}: proxy"
    assert "why: try" in printed


@variants
def test_namespaces(helm: Helm, options: tuple[str, ...]) -> None:
    """Every namespaced object says its namespace, so that `helm template | kubectl apply` puts it where it belongs."""
    for item in helm.render("shardwise", *options):
        cluster_wide = item["kind"].startswith(("Cluster", "Accelerator", "ValidatingAdmission"))

        assert ("namespace" in item["metadata"]) is not cluster_wide, item["kind"]


NAMES = (
    "priorityClassName",
    "key.existingSecret",
    "page.existingSecret",
    "tls.existingSecret",
    "metrics.tokenSecret",
    "trainingPods.annotations.a",
    "managedBy",
)


@pytest.mark.parametrize("name", ["1000000", "1e5", "2026"])
def test_objects_may_have_names_that_are_numbers_in_yaml(helm: Helm, name: str) -> None:
    """As of a day, or of a priority: wherever one stands it is text, and so are the keys of labels."""
    options = [word for value in NAMES for word in ("--set-string", f"{value}={name}")]
    flags = ("--set", "page.enabled=true,metrics.serviceMonitor.create=true", "--set-string", f"commonLabels.{name}=x")
    objects = helm.render("shardwise", *options, *flags)
    spec = operator_of(objects)
    monitor = named(objects, "ServiceMonitor", "shardwise")["spec"]["endpoints"][0]
    secrets = [volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume]

    assert spec["priorityClassName"] == name
    assert secrets == [name] * 4
    assert monitor["authorization"]["credentials"]["name"] == monitor["tlsConfig"]["ca"]["secret"]["name"] == name
    assert f"--managed-by={name}" in spec["containers"][0]["args"]
    assert all(made["metadata"]["labels"][name] == "x" for made in objects)


def test_a_dollar_of_a_variable_of_training_pods_is_one(helm: Helm) -> None:
    """A kubelet makes one of two in an argument, and of $(NAME) a variable of the operator's container."""
    options = ("--set-string", "trainingPods.env.A=$(HTTPS_PROXY) costs $$9")
    (argument,) = [
        word for word in operator_of(helm.render("shardwise", *options))["containers"][0]["args"] if "$" in word
    ]

    seen = re.sub(r"\$(\$|\((.*?)\))", lambda found: "$" if found[1] == "$" else "expanded", argument)
    assert json.loads(seen.partition("=")[2]) == {"env": {"A": "$(HTTPS_PROXY) costs $$9"}}


def test_the_token_of_the_page_stays(helm: Helm) -> None:
    """It may be named as page.existingSecret later, by the name that the chart gave it: Helm does not delete it."""
    secret = named(helm.render("shardwise", "--set", "page.enabled=true"), "Secret", "shardwise-page")

    assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


@pytest.mark.parametrize("namespace", ["20261127", "1e5"])
def test_a_namespace_may_have_a_name_that_is_a_number_in_yaml(helm: Helm, namespace: str) -> None:
    """As one that is named after a day: wherever it stands it is text, that of the jobs too."""
    options = (*EVERYTHING, "--set", "metrics.dashboard.create=true", "--set-string", f"watchNamespace={namespace}")
    objects = [each for each in yaml.safe_load_all(helm("template", "x", CHART, "-n", namespace, *options)) if each]
    placed = [*objects, *(subject for each in objects for subject in each.get("subjects", ()))]
    metadata = [each.get("metadata", each) for each in placed]
    commands = [container["command"] for pod in _pods(objects) for container in pod["containers"]]

    assert {each["namespace"] for each in metadata if "namespace" in each} == {namespace}
    assert all(isinstance(word, str) for command in commands for word in command)
    for group in named(objects, "PrometheusRule", "x-shardwise")["spec"]["groups"]:
        assert {rule["labels"].get("namespace", namespace) for rule in group["rules"]} == {namespace}


@pytest.mark.parametrize("release", ["1", "2-shardwise", "shardwise.v2"])
def test_a_release_after_which_no_service_can_be_named_is_refused(helm: Helm, release: str) -> None:
    """Helm takes a dot and a leading digit, and Kubernetes takes neither in a Service's name; it is said in words."""
    said = helm.refused("template", release, CHART)

    assert "a Service is named after the release, so that it has to begin with a letter and to have no dot" in said


def test_alerts_read_what_is_served(helm: Helm) -> None:
    """Every metric of an alert is one that the operator serves."""
    groups = named(helm.render("shardwise", *EVERYTHING), "PrometheusRule", "shardwise")["spec"]["groups"]
    read = {name for group in groups for rule in group["rules"] for name in re.findall(r"(\w+)\{", rule["expr"])}
    families = [family for what in ("jobs", "operator") for family in SERVED[what]().collect()]
    served = {family.name + suffix for family in families for suffix in ("", "_total", "_bucket")}

    assert len(read) == 10
    assert read <= served


def test_one_operator(helm: Helm) -> None:
    """A single operator has no disruption budget, which would hold up every drain or do nothing."""
    kinds = {item["kind"] for item in helm.render("shardwise", "--set", "replicas=1")}

    assert "PodDisruptionBudget" not in kinds
    assert "PodDisruptionBudget" in {item["kind"] for item in helm.render("shardwise")}


def test_key(helm: Helm) -> None:
    """The key is 64 characters of chance that outlive the release, unless a Secret is named."""
    renderings = [helm.render("shardwise", *options) for options in ((), ("--set", "replicas=3"))]
    first, second = (named(rendering, "Secret", "shardwise-key") for rendering in renderings)
    theirs = helm.render("shardwise", "--set", "key.existingSecret=mine")
    volumes = named(theirs, "Deployment", "shardwise")["spec"]["template"]["spec"]["volumes"]

    assert first["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert first["data"] != second["data"]
    assert not [item for item in theirs if item["kind"] == "Secret"]
    assert volumes[0]["secret"]["secretName"] == "mine"


def test_images(helm: Helm) -> None:
    """A registry and a tag hold for all images; a full name for one."""
    options = ("--set", "images.registry=r.example/x", "--set", "images.tag=v1", "--set", "images.tpu=y@sha256:00")
    objects = helm.render("shardwise", *options)
    classes = {item["metadata"]["name"]: item["spec"] for item in objects if item["kind"] == "AcceleratorClass"}
    container = named(objects, "Deployment", "shardwise")["spec"]["template"]["spec"]["containers"][0]

    assert {c["image"] for pod in _pods(objects) for c in pod["containers"]} == {"r.example/x/shardwise-operator:v1"}
    assert "--trainer-image=r.example/x/shardwise-trainer:v1-cpu" in container["args"]
    assert "image" not in classes["cpu-sim"]
    assert classes["gpu"]["image"] == "r.example/x/shardwise-trainer:v1-gpu"
    assert classes["tpu-v5p"]["image"] == "y@sha256:00"


def test_images_that_were_not_published(helm: Helm) -> None:
    """The values of `make publish` name what it has published; the other classes have an image that is nowhere."""
    objects = helm.render(
        "shardwise", "--set", "images.operator=r.example/o@sha256:00,images.cpu=r.example/t@sha256:00"
    )
    classes = [each for each in objects if each["kind"] == "AcceleratorClass" and each["spec"]["platform"] != "cpu"]

    assert {each["spec"]["image"].partition(":")[0] for each in classes} == {"localhost/shardwise-trainer"}


def test_files_of_the_chart(helm: Helm) -> None:
    """Classes and policy are the generated files, with the chart's labels and the images."""
    objects = helm.render("shardwise")
    files = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(CHART.glob("files/*/*.yaml"))]

    assert {file["kind"] for file in files} == {
        "AcceleratorClass",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }
    for file in files:
        spec = named(objects, file["kind"], file["metadata"]["name"])["spec"]
        assert file["spec"] | {"image": spec.get("image")} == spec | {"image": spec.get("image")}


def test_jobs_can_do_without_a_policy_each(helm: Helm) -> None:
    """The operator is told so, and only then."""
    words = "--no-job-network-policies"
    (usual,), (told,) = (
        [item for item in helm.render("shardwise", *options) if item["kind"] == "Deployment"]
        for options in ((), ("--set", "networkPolicy.jobs=false"))
    )

    assert words not in usual["spec"]["template"]["spec"]["containers"][0]["args"]
    assert words in told["spec"]["template"]["spec"]["containers"][0]["args"]


def test_parts_can_be_left_out(helm: Helm) -> None:
    """Where a second operator or a platform team brings classes and policy, the chart brings none."""
    options = [word for key in ("classes", "policy", "networkPolicy") for word in ("--set", f"{key}.create=false")]
    kinds = {item["kind"] for item in helm.render("shardwise", *options)}

    assert not {kind for kind in kinds if kind.startswith(("Accelerator", "Validating", "NetworkPolicy"))}


def test_hooks_know_their_objects(helm: Helm) -> None:
    """The hooks' roles name every CRD and the policy of classes, and nothing else but what no name can limit."""
    objects = helm.render("shardwise")
    crds = {yaml.safe_load(path.read_text(encoding="utf-8"))["metadata"]["name"] for path in CHART.glob("crds/*.yaml")}
    policies = [item for item in objects if item["kind"] == "ValidatingAdmissionPolicy"]
    carried = [text for item in objects if item["kind"] == "ConfigMap" for text in item["data"].values()]

    assert crds
    assert set(named(objects, "ClusterRole", "shardwise-crds")["rules"][0]["resourceNames"]) == crds
    assert [json.loads(text) for text in carried] == [
        yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(CHART.glob("crds/*.yaml"))
    ]
    of_classes = [item["metadata"]["name"] for item in policies if "paramKind" in item["spec"]]
    assert of_classes == named(objects, "ClusterRole", "shardwise-policy")["rules"][0]["resourceNames"]


@variants
def test_a_client_side_apply_takes_every_object(helm: Helm, options: tuple[str, ...]) -> None:
    """Argo CD's is one: it keeps the object as JSON in an annotation, of 262,144 bytes at most."""
    for item in helm.render("shardwise", *options, "--include-crds"):
        assert len(_written_by_go(item)) < 200_000, (item["kind"], item["metadata"]["name"])


def _set(key: str, value: object) -> tuple[str, str]:
    return "--set-json", f"{key}={json.dumps(value)}"


def _short(objects: list[Object]) -> Iterator[Object]:
    """The objects without what chance or another file says."""
    for item in objects:
        if item["kind"] == "Secret":
            item["data"] = {"key": "(chance)"}
        if item["metadata"]["name"].startswith("shardwise-crds-"):
            item["data"] = dict.fromkeys(item["data"], "(the file)")
        if item["kind"].startswith(("Accelerator", "ValidatingAdmission")):
            item["spec"] = {key: value for key, value in item["spec"].items() if key == "image"} or "(the file)"
        yield item


def _written_by_go(item: Object) -> bytes:
    """As kubectl writes it: Go escapes what HTML would take for its own."""
    text = json.dumps(item, separators=(",", ":"), ensure_ascii=False)
    for character in "&<>":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode()


def _pods(objects: list[Object]) -> list[dict[str, Any]]:
    found = [item["spec"]["template"]["spec"] for item in objects if item["kind"] in {"Deployment", "Job"}]
    assert len(found) == 4
    return found


def _rules(objects: list[Object]) -> list[dict[str, Any]]:
    found = [rule for item in objects if item["kind"] in {"ClusterRole", "Role"} for rule in item["rules"]]
    assert found
    return found


def test_the_notes_name_the_contract_of_the_pods(helm: Helm) -> None:
    """By it one knows before an upgrade whether jobs have to be suspended; the command in the notes prints it."""
    notes = helm("install", "other", CHART, "-n", "elsewhere", "--dry-run=client").partition("NOTES:")[2]

    assert f"made by contract {CONTRACT}." in notes
    assert "helm install other CHART -n elsewhere --dry-run=client | grep 'by contract'" in notes
