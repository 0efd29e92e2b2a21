"""charts/generate.py: values.yaml is the one source of a chart's schema and of the table in its README."""

import importlib.util
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from tests.charts.helm import CHARTS, JOBS, TEAMS, Helm, operator_of

NAMES = sorted(path.parent.name for path in CHARTS.glob("*/values.yaml"))

GIVEN = {  # what a chart can't do without
    "shardwise": (),
    "training-job": ("--set", "spec.suspend=true"),
    "training-teams": ("--set", "teams.text.group=text"),
}

each = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """The generator as a module; importing it writes nothing."""
    spec = importlib.util.spec_from_file_location("generate", CHARTS / "generate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_charts_are_found(generate: ModuleType) -> None:
    """The generator writes the files of every chart."""
    assert [chart.name for chart in generate.CHARTS] == NAMES == ["shardwise", "training-job", "training-teams"]


@each
@pytest.mark.golden
def test_schema_is_generated(generate: ModuleType, name: str) -> None:
    """values.schema.json is what values.yaml says; `make golden` writes it."""
    _is(CHARTS / name / "values.schema.json", generate.schema_text(CHARTS / name))


@each
@pytest.mark.golden
def test_table_is_generated(generate: ModuleType, name: str) -> None:
    """README.md has every value with its default and its words; `make golden` writes it."""
    _is(CHARTS / name / "README.md", generate.readme_text(CHARTS / name))


@each
def test_values_are_few(name: str) -> None:
    """A person reads all of values.yaml: what few ask for is left to a post-renderer."""
    assert len((CHARTS / name / "values.yaml").read_text(encoding="utf-8").splitlines()) < 170


@each
def test_lint(helm: Helm, name: str) -> None:
    """`helm lint` has no word against the chart."""
    printed = helm("lint", "--strict", CHARTS / name)

    assert "[WARNING]" not in printed
    assert "[ERROR]" not in printed


@each
def test_a_version_with_a_build_is_a_label(helm: Helm, tmp_path: Path, name: str) -> None:
    """As Flux gives a chart of a commit: no label may have its `+`, or more than 63 characters."""
    version = "0.1.0+" + "7c5e96ea" * 7
    chart = shutil.copytree(CHARTS / name, tmp_path / name)
    about = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    (chart / "Chart.yaml").write_text(yaml.safe_dump({**about, "version": version, "appVersion": version}))
    values = {"shardwise": (), "training-job": ("-f", JOBS[0]), "training-teams": ("-f", TEAMS)}[name]

    objects = [each for each in yaml.safe_load_all(helm("template", "x", chart, *values)) if each]

    for made in objects:
        for key, value in made["metadata"]["labels"].items():
            assert re.fullmatch(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", value), (key, value)
    assert objects[0]["metadata"]["labels"]["helm.sh/chart"].startswith(f"{name}-0.1.0_7c5e96ea")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("replica=3", "additional properties 'replica' not allowed"),
        ("images.tags=1", "additional properties 'tags' not allowed"),
        ("replicas=0", "minimum: got 0, want 1"),
        ("replicas=many", "got string, want integer"),
        ("images.pullPolicy=Sometimes", "must be one of 'Always', 'IfNotPresent', 'Never'"),
        ("metrics.alerts.create=yes", "got string, want boolean"),
        ("images.pullSecrets[0].nam=x", "missing property 'name'"),
        ("serviceAccount.annotations.a=1", "got number, want string"),
        ("managedBy=Team A", "'Team A' does not match pattern"),
        ("ttlAfterFinished=0s", "'/ttlAfterFinished': '0s' does not match pattern"),
        ("ttlAfterFinished=99999d", "'/ttlAfterFinished': '99999d' does not match pattern"),
        ("trainingPods.env.XLA_FLAGS=x", "'/trainingPods/env/XLA_FLAGS'"),
        (
            "trainingPods.tolerations[0].operator=Exists,trainingPods.tolerations[0].value=b",
            "'/trainingPods/tolerations/0'",
        ),
        (
            "trainingPods.tolerations[0].tolerationSeconds=9,trainingPods.tolerations[0].effect=NoSchedule",
            "tolerations/0'",
        ),
    ],
)
def test_wrong_values_are_refused(helm: Helm, option: str, words: str) -> None:
    """A value that the chart does not have, or of the wrong type or range, is refused where it is given."""
    assert words in helm.refused("template", "x", CHARTS / "shardwise", "--set", option)


@pytest.mark.parametrize(
    "option",
    [
        *("managedBy=team-a", "managedBy=acme.com/shardwise"),
        *("ttlAfterFinished=7d", "ttlAfterFinished=90000s", "ttlAfterFinished=1h30m", "ttlAfterFinished=0.5h"),
        "trainingPods.env.MY_XLA_FLAGS=x",
        "trainingPods.tolerations[0].operator=Exists,trainingPods.tolerations[0].effect=NoExecute",
        "trainingPods.tolerations[0].tolerationSeconds=9,trainingPods.tolerations[0].effect=NoExecute",
    ],
)
def test_right_values_are_taken(helm: Helm, option: str) -> None:
    """What the operator takes, the chart does."""
    helm("template", "x", CHARTS / "shardwise", "--set", option)


def test_null_takes_a_map_of_labels_out(helm: Helm) -> None:
    """As it does any default of a chart: what has the labels is made without them."""
    parts = ("dashboard", "alerts", "serviceMonitor")
    words = [f"metrics.{part}.create=true,metrics.{part}.labels=null" for part in parts]
    made = helm.render("shardwise", "--set", ",".join([*words, "classes.overrides=null"]))

    assert {"PrometheusRule", "ServiceMonitor", "ConfigMap"} <= {each["kind"] for each in made}
    assert not [each for each in made if "grafana_dashboard" in each["metadata"].get("labels", {})]


@each
def test_null_for_what_is_empty_says_nothing(helm: Helm, generate: ModuleType, name: str) -> None:
    """It renders as without it: a file of values has such keys where a line below them is commented out."""
    empty = [value.path for value in _values(generate, name) if not value.default]

    assert _printed(helm, name, *_null(empty)) == _printed(helm, name)


def test_null_takes_a_map_out(helm: Helm) -> None:
    """What the pods ask for and their user are left to the cluster; what is of security beside them stays."""
    made = helm.render("shardwise", *_null([("resources",), ("podSecurityContext",)]))
    pod = operator_of(made)

    assert "resources" not in pod["containers"][0]
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


@each
def test_null_for_anything_else_is_refused(helm: Helm, generate: ModuleType, name: str) -> None:
    """Each group, number, text and `true` is named: no policy is dropped without a word, no template meets a nil."""
    values = _values(generate, name)
    leaves = [value.path for value in values if value.default and not isinstance(value.default, list | dict)]
    groups = {value.path[:depth] for value in values for depth in range(1, len(value.path))}
    sweeps = [leaves, *([path for path in groups if len(path) == depth] for depth in {len(path) for path in groups})]

    for paths in sweeps:
        said = helm.refused("template", "x", CHARTS / name, *GIVEN[name], *_null(paths))
        found = re.findall(r"^- at '(.*)': missing propert(?:y|ies) (.*)$", said, re.MULTILINE)
        assert {f"{at}/{key}" for at, keys in found for key in re.findall(r"'(\w+)'", keys)} == {
            "/" + "/".join(path) for path in paths
        }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\n", "a has no `# --` line above it"),
        ("# -- A group.\na: {b: 1}\n", "a is a map: say of what"),
        ("# -- A list.\na: []\n", "a is a list: say of what"),
        ("# schema: {minimum: 1}\na: 1\n", "a has a `# schema:` line and no `# --` line"),
        ("# -- A.\na: 1\nb:\n  c: 2\n", "b.c has no `# --` line above it"),
    ],
)
def test_what_is_not_documented_is_refused(generate: ModuleType, text: str, words: str) -> None:
    """A key without words, or a list or map of unknown content, cannot get into a chart."""
    with pytest.raises(generate.ValuesError, match=words):
        generate.schema(text)


def test_schema_follows_defaults_and_comments(generate: ModuleType) -> None:
    """Types come from the defaults, bounds from the comments, and every group is closed."""
    made = generate.schema("a:\n  # -- Words.\n  # schema: {minimum: 1}\n  b: 2\n")

    assert made["properties"]["a"] == {
        "type": "object",
        "additionalProperties": False,
        "properties": {"b": {"type": "integer", "description": "Words.", "minimum": 1}},
        "required": ["b"],
    }
    assert made["additionalProperties"] is False


def _values(generate: ModuleType, name: str) -> list[Any]:
    """The documented keys of a chart, without the one that it is all about."""
    text = (CHARTS / name / "values.yaml").read_text(encoding="utf-8")
    return [value for value in generate.values(text) if value.path not in {("spec",), ("teams",)}]


def _null(paths: Iterable[tuple[str, ...]]) -> tuple[str, str]:
    return "--set", ",".join(f"{'.'.join(path)}=null" for path in sorted(paths))


def _printed(helm: Helm, name: str, *options: str) -> str:
    """What is rendered, but for a key that is made by chance."""
    return re.sub(r"(?m)^  key: .*$", "", helm("template", "x", CHARTS / name, *GIVEN[name], *options))


def _is(path: Path, text: str) -> None:
    """As the fixture golden, for a file that is no test's."""
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
