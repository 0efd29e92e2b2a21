"""The chart's alerts, run by Prometheus' own promtool on series that were recorded from a real operator.

The recordings are those of tests/operator/controller/test_job_series.py, one for each state of a job; a timeline holds
one state after the other. A scrape adds the labels that the chart's ServiceMonitor makes. What takes hours or a broken
API server is made by hand, of series that the operator has: the counters of goodput, of passes and of the queue, and
the lead of a second operator.
"""

import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from tests.charts.helm import CHARTS, ROOT, Helm, Object, named
from tests.cluster.packages import PROMTOOL, require
from tests.operator.test_job_metrics import SERVED

RULES = CHARTS / "shardwise" / "monitoring" / "alerts.yaml"
RECORDED = ROOT / "tests" / "operator" / "controller" / "golden"
JOB = {"namespace": "research", "job": "job"}

Timeline = list[tuple[str | None, int]]
"""States of the job, None where there is none, and for how many minutes."""

Check = tuple[str, int, Mapping[str, str] | None]
"""An alert, a minute, and the labels with which it fires then; None if it does not."""

DAY = 24 * 60
# The alert, the timeline, and the minutes at which it does not fire yet, fires, and does not fire any more.
CASES: list[tuple[str, Timeline, list[int], list[int]]] = [
    ("JobFailed", [("running", 10), ("failed", 2 * DAY)], [9, DAY + 30], [12, DAY - 30]),
    ("JobFailed", [("failed", 30), (None, 30)], [30, 45], [5, 29]),
    ("JobFailed", [("complete", 60)], [5, 30, 60], []),
    ("JobPending", [("pending", 90), ("running", 60)], [30, 59, 90, 100], [61, 89]),
    ("JobPending", [("suspended", 5 * 60)], [90, 200], []),
    ("JobPending", [("queued", 5 * 60), ("pending", 90)], [90, 299, 350], [365, 385]),
    ("JobQuotaUnused", [("queued", 60), ("admitted", 30), ("queued", 60)], [59, 70, 95], [76, 88]),
    ("JobQuotaUnused", [("pending", 60)], [30, 59], []),
    ("JobStalled", [("running", 10), ("stalled", 4), ("running", 10)], [9, 10, 16], [12, 13]),
    # A hang that recovery.hangAfter ends after its default of five minutes, of which the first seconds are no stall.
    (
        "JobStalled",
        [("running", 10), ("stalled", 4), ("running", 5), ("stalled", 4), ("failed", 9)],
        [17, 25],
        [13, 22],
    ),
    ("JobCheckpointOld", [("running", 180), ("suspended", 60)], [60, 119, 180, 200], [130, 179]),
    ("JobCheckpointOld", [("complete", 180), ("pending", 60)], [130, 240], []),
]


def samples(state: str) -> Iterator[tuple[str, float]]:
    """Yield each series of a recording as Prometheus stores it, and its value."""
    for line in (RECORDED / f"{state}.prom").read_text(encoding="utf-8").splitlines():
        name, labels, value = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line).groups()  # type: ignore[union-attr]
        target = 'pod="shardwise-0",service="shardwise-metrics"'
        own = labels or 'namespace="shardwise-system"'
        yield f"{name}{{{own},{target}}}", float(value)


def scraped(timeline: Timeline) -> list[Object]:
    """Return what a Prometheus that scrapes every minute has of a timeline."""
    known = {state: dict(samples(state)) for state, _ in timeline if state}
    names = sorted({name for series in known.values() for name in series})
    return [
        {"series": name, "values": " ".join(_held(known.get(state or "", {}).get(name), n) for state, n in timeline)}
        for name in names
    ]


def _held(value: float | None, minutes: int) -> str:
    """Return a value for so long; none is what Prometheus writes where a scrape lacks a series that it had."""
    return f"stale _x{minutes - 1}" if value is None else f"{value}+0x{minutes - 1}"


def promtool(tmp_path: Path, series: list[Object], checks: Iterable[Check]) -> None:
    """Have promtool check at some minutes that an alert fires with these labels, or (None) does not."""
    rules = {rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
    tests = []
    for alert, minute, labels in checks:
        rule = rules[f"Shardwise{alert}"]
        fires = [] if labels is None else [{"exp_labels": {**rule["labels"], **labels}, "exp_annotations": _said(rule)}]
        tests.append({"eval_time": f"{minute}m", "alertname": rule["alert"], "exp_alerts": fires})

    told = judged(tmp_path, series, tests)

    assert told.returncode == 0, told.stdout + told.stderr


def judged(tmp_path: Path, series: list[Object], tests: list[Object]) -> subprocess.CompletedProcess[str]:
    """Return what promtool says to tests of the alerts."""
    require(PROMTOOL)
    whole = {"interval": "1m", "input_series": series, "alert_rule_test": tests}
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [whole]}))
    return subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, check=False)


def _said(rule: Object) -> dict[str, str]:
    """The annotations of an alert of the recorded job."""
    text: dict[str, str] = {}
    for name, words in rule["annotations"].items():
        text[name] = words.replace("{{ $labels.namespace }}", JOB["namespace"]).replace("{{ $labels.job }}", JOB["job"])
    return text


@pytest.mark.parametrize(("alert", "timeline", "quiet", "fires"), CASES)
def test_alerts_of_jobs(tmp_path: Path, alert: str, timeline: Timeline, quiet: list[int], fires: list[int]) -> None:
    """Each fires for what it is about, after its time, and ends with it."""
    checks = [(alert, minute, None) for minute in quiet] + [(alert, minute, JOB) for minute in fires]
    promtool(tmp_path, scraped(timeline), checks)


@pytest.mark.parametrize(("steps", "fires"), [(20, JOB), (40, None)], ids=["a third", "two thirds"])
def test_goodput(tmp_path: Path, steps: int, fires: Mapping[str, str] | None) -> None:
    """Less than half of the time in steps that count, over hours, is worth a look."""
    series = scraped([("running", 300)])
    for each in series:
        if each["series"].startswith("shardwise_job_goodput_seconds_total"):
            seconds = steps if 'category="step"' in each["series"] else 60 - steps
            each["values"] = f"50+{seconds}x299"
    promtool(tmp_path, series, [("JobGoodputLow", 30, None), ("JobGoodputLow", 200, fires)])


def test_a_program_that_reports_nothing_is_silent(tmp_path: Path) -> None:
    """Of a program that tells neither steps nor checkpoints nobody knows that it is slow, or that its saves fail."""
    reported = ("shardwise_job_step{", "shardwise_job_checkpoint_timestamp_seconds{")
    series = [each for each in scraped([("running", 300)]) if not each["series"].startswith(reported)]
    for each in series:
        if each["series"].startswith("shardwise_job_goodput_seconds_total"):
            each["values"] = "0+0x299" if 'category="step"' in each["series"] else "50+60x299"
    promtool(tmp_path, series, [("JobGoodputLow", 250, None), ("JobCheckpointOld", 250, None)])


def test_a_job_that_goes_on_after_a_long_pause_has_its_time(tmp_path: Path) -> None:
    """Its newest checkpoint is from before the pause: what counts is how long it has run since without another."""
    series = scraped([("running", 60), ("suspended", 180), ("running", 200)])
    for each in series:
        if each["series"].startswith("shardwise_job_run_timestamp_seconds"):
            each["values"] = "0+0x239 14400+0x199"  # it is that of the newest start
    promtool(tmp_path, series, [("JobCheckpointOld", 250, None), ("JobCheckpointOld", 375, JOB)])


@pytest.mark.parametrize("before", [[("pending", 180)], [("queued", 170), ("admitted", 10)]], ids=["nodes", "queue"])
def test_a_job_that_has_waited_for_long_has_its_time(tmp_path: Path, before: Timeline) -> None:
    """It saves for the first time minutes after it has begun to run: until then no checkpoint of it can be old."""
    series = [
        each
        for each in scraped([*before, ("running", 200)])
        if not each["series"].startswith("shardwise_job_checkpoint_timestamp_seconds")
    ]
    for each in series:
        if each["series"].startswith("shardwise_job_run_timestamp_seconds"):
            each["values"] = "_x180 10800+0x199"
    promtool(
        tmp_path,
        series,
        [("JobCheckpointOld", 190, None), ("JobCheckpointOld", 290, None), ("JobCheckpointOld", 310, JOB)],
    )


def test_a_job_alerts_once(tmp_path: Path) -> None:
    """Also while two operators have it, one of which has just taken the lead."""
    series = scraped([("pending", 120)])
    other = [{**each, "series": each["series"].replace("shardwise-0", "shardwise-1")} for each in series]
    promtool(tmp_path, [*series, *other], [("JobPending", 90, JOB)])


OWN = 'namespace="shardwise-system",pod="{}",service="shardwise-metrics"'
LEADS = f"shardwise_operator_leader{{{{{OWN}}}}}"


def made_by_hand() -> list[Object]:
    """Return counters of an hour: of five passes one fails, and half of the jobs wait longer than half a minute."""
    own = OWN.format("shardwise-0")
    return [
        {"series": f'shardwise_operator_reconciles_total{{{own},result="done"}}', "values": "0+80x60"},
        {"series": f'shardwise_operator_reconciles_total{{{own},result="failed"}}', "values": "0+20x60"},
        {"series": f'workqueue_queue_duration_seconds_bucket{{{own},le="30.0"}}', "values": "0+50x60"},
        {"series": f'workqueue_queue_duration_seconds_bucket{{{own},le="60.0"}}', "values": "0+100x60"},
        {"series": f'workqueue_queue_duration_seconds_bucket{{{own},le="+Inf"}}', "values": "0+100x60"},
    ]


def test_what_is_made_by_hand_is_served() -> None:
    """Each of these series has a name and labels that the operator serves, and the bounds of its histogram."""
    registry = SERVED["operator"]()
    served = {(sample.name, frozenset(sample.labels)) for family in registry.collect() for sample in family.samples}
    bounds = {
        sample.labels["le"]
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "workqueue_queue_duration_seconds_bucket"
    }
    of_a_scrape = {"namespace", "pod", "service"}
    for series in (LEADS.format("shardwise-0"), *(each["series"] for each in made_by_hand())):
        labels = set(re.findall(r"(\w+)=", series)) - of_a_scrape
        assert (series.partition("{")[0], frozenset(labels)) in served, series
        assert set(re.findall(r'le="(.*?)"', series)) <= bounds


def test_the_lead(tmp_path: Path) -> None:
    """None leads, or two do, for two minutes: a change of the lead within them is silent."""
    series = [
        {"series": LEADS.format("shardwise-0"), "values": "1+0x10 0+0x10 1+0x10"},
        {"series": LEADS.format("shardwise-1"), "values": "0+0x10 0+0x1 1+0x20"},
    ]
    checks: list[Check] = [
        ("NoLeader", 5, None),
        ("NoLeader", 13, None),
        ("TwoLeaders", 21, None),
        ("TwoLeaders", 25, {}),
    ]
    promtool(tmp_path, series, checks)
    promtool(tmp_path, [], [("NoLeader", 1, None), ("NoLeader", 3, {})])
    elsewhere = [{**each, "series": each["series"].replace("-system", "-other")} for each in series]
    promtool(tmp_path, elsewhere, [("NoLeader", 3, {}), ("TwoLeaders", 25, None)])


def test_failing_and_slow_passes(tmp_path: Path) -> None:
    """A tenth of the passes, or half a minute in the queue, for a quarter of an hour."""
    promtool(
        tmp_path,
        made_by_hand(),
        [(alert, at, labels) for alert in ("PassesFail", "Behind") for at, labels in ((10, None), (40, {}))],
    )


def test_every_alert_is_tried() -> None:
    """An alert without a case above would be one that nobody has seen fire."""
    rules = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    tried = {alert for alert, _, _, fires in CASES if fires}
    tried |= {"JobGoodputLow", "NoLeader", "TwoLeaders", "PassesFail", "Behind"}

    assert {f"Shardwise{alert}" for alert in tried} == set(rules)


def test_the_docs_show_what_promtool_says(tmp_path: Path) -> None:
    """Asked for no alert at three minutes of a job's life, promtool tells which fire; docs/metrics.md shows that."""
    life: Timeline = [("queued", 30), ("admitted", 20), ("running", 10), ("stalled", 10), ("failed", 10)]
    fires = {"JobQuotaUnused": 48, "JobStalled": 68, "JobFailed": 75}
    none: list[Object] = [
        {"eval_time": f"{minute}m", "alertname": f"Shardwise{alert}", "exp_alerts": []}
        for alert, minute in fires.items()
    ]
    told = judged(tmp_path, scraped(life), none)

    assert told.returncode == 1, told.stdout
    shown = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8").partition("<!-- promtool -->")[2]
    assert _of_alerts(shown.partition("<!-- end of promtool -->")[0]) == _of_alerts(told.stdout + told.stderr)
    assert len(_of_alerts(shown)) == 3 * len(fires)


def test_promtool_checks_the_rules() -> None:
    """It takes the file as it stands, which is the first thing that somebody does who has no cluster at hand."""
    require(PROMTOOL)
    done = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, text=True, check=False)

    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {len(rules)} rules found" in done.stdout


def _of_alerts(text: str) -> list[str]:
    """Return the lines that name an alert, its labels and its words."""
    return [line.strip() for line in text.splitlines() if line.strip().startswith(("alertname:", "Labels:", "Annot"))]


def test_another_release_has_rules_of_its_own(helm: Helm) -> None:
    """The chart changes the namespace and the service of the file, and nothing else."""
    options = ("--set", "metrics.alerts.create=true", "--set", "metrics.alerts.labels.team=ml")
    rule = named(helm.render("shardwise", *options), "PrometheusRule", "shardwise")

    assert rule["spec"] == yaml.safe_load(RULES.read_text())
    assert rule["metadata"]["labels"]["team"] == "ml"
    (other,) = yaml.safe_load_all(
        helm(
            "template",
            "x",
            CHARTS / "shardwise",
            "-n",
            "ns",
            *options,
            "--show-only",
            "templates/monitoring/alerts.yaml",
        )
    )
    text = str(other["spec"])
    assert 'namespace="ns"' in text
    assert 'service="x-shardwise-metrics"' in text
    assert "'namespace': 'ns'" in text
    assert "shardwise-system" not in text
