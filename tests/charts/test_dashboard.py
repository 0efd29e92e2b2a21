"""The chart's Grafana board: of Grafana's own schema, of queries that Prometheus parses and metrics that exist."""

import json
import re
import subprocess
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.charts.board_schema import refused
from tests.charts.helm import CHARTS, Helm, named
from tests.cluster.packages import PROMTOOL, require
from tests.operator.test_job_metrics import SERVED

Board = dict[str, Any]

FILE = CHARTS / "shardwise" / "monitoring" / "dashboard.json"
COLUMNS = 24
# What Grafana puts in place of variables, in a form that any query may have there.
VARIABLES = {"$__rate_interval": "5m", "$namespace": ".*", "$job": ".*"}
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


@pytest.fixture(scope="module")
def board() -> Board:
    """Return the board."""
    loaded: Board = json.loads(FILE.read_text(encoding="utf-8"))
    return loaded


def test_queries_are_parsed(board: Board, tmp_path: Path) -> None:
    """Every query of a panel is one that Prometheus accepts, once Grafana has filled in the variables."""
    require(PROMTOOL)
    queries = list(_queries(board))
    rules = [{"record": f"query{number}", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))

    told = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, check=False)

    assert told.returncode == 0, told.stdout + told.stderr
    assert len(queries) > 20
    assert not [query for query in queries if "$" in query]


def test_the_first_restart_counts(board: Board, tmp_path: Path) -> None:
    """A cause has a series only from its first restart on: that one counts for an hour, as later ones do."""
    require(PROMTOOL)
    (panel,) = [each for each in board["panels"] if each["title"] == "Restarts"]
    (target,) = panel["targets"]
    series = 'shardwise_job_restarts_total{{namespace="r",job="j",cause="{}",pod="{}"}}'
    given = {
        series.format("preempted", "a"): "_x59 1x140",
        series.format("preempted", "b"): "_x79 1x120",  # another operator has taken the lead
        series.format("failure", "a"): "2x99 3x100",
    }
    counts = {90: {"preempted": 1, "failure": 0}, 110: {"preempted": 1, "failure": 1}}
    counts[180] = {"preempted": 0, "failure": 0}
    asked = [
        {
            "expr": _filled(target["expr"]),
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": f'{{cause="{cause}"}}', "value": value} for cause, value in found.items()],
        }
        for minute, found in counts.items()
    ]
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in given.items()],
            "promql_expr_test": asked,
        }
    ]
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [], "evaluation_interval": "1m", "tests": tests}))

    told = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, check=False)

    assert told.returncode == 0, told.stdout + told.stderr


def test_metrics_exist(board: Board) -> None:
    """Every metric and label of a query is one that the operator serves; variables read one that each job has."""
    served = {
        family.name + suffix: {label for sample in family.samples for label in sample.labels}
        for what in ("jobs", "operator")
        for family in SERVED[what]().collect()
        for suffix in SUFFIXES.get(family.type, ("",))
    }
    variables = [each["definition"] for each in board["templating"]["list"] if each["type"] == "query"]

    for query in (*_queries(board), *map(_filled, variables)):
        metrics = set(re.findall(r"\b(?:shardwise|workqueue)_\w+", query))
        known = {"service", *(label for name in metrics for label in served.get(name, ()))}
        labels = {label for group in re.findall(r"(?:by|on) \(([^)]*)\)", query) for label in group.split(", ")}
        labels |= set(re.findall(r"(\w+)(?:=~|!~|!=|=)\"", query))
        assert metrics, query
        assert metrics <= served.keys(), query
        assert labels <= known, query


def test_grafana_s_schema_takes_it() -> None:
    """Grafana's own types, with those of each panel and query, know every field of the board and miss none."""
    assert refused(FILE) == ""


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"panel": {"lineWidth": 1}}, "unexpected field 'lineWidth'"),
        ({"options": {"showHeaders": True}}, "unexpected field 'showHeaders'"),
        ({"target": {"query": "up"}}, "unexpected field 'query'"),
        ({"target": {"expr": 1}}, "cannot unmarshal number"),
        ({"board": {"fiscalYearStartMonth": 12}}, "must be < 12"),
    ],
)
def test_grafana_s_schema_refuses(board: Board, tmp_path: Path, change: dict[str, Board], told: str) -> None:
    """What is no field of its kind, has another type or is out of its range is refused, by name."""
    broken = deepcopy(board)
    panel = next(each for each in broken["panels"] if each["type"] == "table")
    parts = {"board": broken, "panel": panel, "options": panel["options"], "target": panel["targets"][0]}
    for part, fields in change.items():
        parts[part].update(fields)
    file = tmp_path / "board.json"
    file.write_text(json.dumps(broken))

    assert told in refused(file)


def test_panels_are_as_grafana_expects(board: Board) -> None:
    """One id each, within the grid and over no other, of a type that every Grafana has, with the chosen data source."""
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & own, panel["title"]
        assert max(x for x, _ in own) < COLUMNS
        cells |= own
        if panel["type"] == "row":
            assert panel["panels"] == []
            continue
        assert panel["type"] in {"timeseries", "table"}
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert [target["refId"] for target in panel["targets"]] == ["A", "B", "C", "D", "E"][: len(panel["targets"])]
        for owner in (panel, *panel["targets"]):
            assert owner["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    assert 36 <= board["schemaVersion"] <= 42  # Grafana 9 reads 36; newer ones migrate what is older than theirs
    assert "id" not in board  # Grafana gives it one; a fixed one would be somebody else's board
    assert [each["name"] for each in board["templating"]["list"]] == ["datasource", "namespace", "job"]


def test_the_sidecar_finds_it(helm: Helm) -> None:
    """Off by default; a ConfigMap with the label that Grafana's sidecar looks for, or the one that is asked for."""
    assert not [item for item in helm.render("shardwise") if item["metadata"]["name"] == "shardwise-dashboard"]
    objects = helm.render(
        "shardwise", "--set", "metrics.dashboard.create=true", "--set", "metrics.dashboard.labels.a=b"
    )
    made = named(objects, "ConfigMap", "shardwise-dashboard")

    assert {"grafana_dashboard": "1", "a": "b"}.items() <= made["metadata"]["labels"].items()
    assert json.loads(made["data"]["shardwise.json"]) == json.loads(FILE.read_text(encoding="utf-8"))


def _queries(board: Board) -> Iterator[str]:
    for panel in board["panels"]:
        yield from (_filled(target["expr"]) for target in panel.get("targets", ()))


def _filled(query: str) -> str:
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return query
