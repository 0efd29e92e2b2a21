"""The series of jobs: there in every phase, of bounded number, gone with the job, and in docs/metrics.md."""

import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from tests.cluster.commands import wait
from tests.cluster.packages import PROMTOOL, require
from tests.operator.building import NOW, manifest
from tests.operator.operating import StandInAgents, told

from shardwise.launcher.leader import prometheus
from shardwise.protocol.contract import Cause
from shardwise.protocol.run_status import GOODPUT_CATEGORIES, HostStatus, RunStatus, RunSummary
from shardwise_operator import reasons
from shardwise_operator.job_metrics import JobMetrics
from shardwise_operator.observe.agents import Target
from shardwise_operator.observe.poll import Poller
from shardwise_operator.observe.state import Phase
from shardwise_operator.reasons import Lost
from shardwise_operator.runtime.kinds import timestamp
from shardwise_operator.runtime.metrics import Metrics

Job = dict[str, Any]

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
CONDITIONS = [
    *(reasons.COMPLETE, reasons.FAILED, reasons.SUSPENDED, reasons.READY, reasons.STALLED, reasons.RECONCILING),
    *(reasons.SCHEDULED, reasons.NOTICE_TOO_SHORT, reasons.FITS),
]
LABELS = {"namespace": "default", "job": "job"}


def job(phase: str | None, **status: Any) -> Job:
    """Return a job as the cache has it; without a phase nobody has looked at it yet."""
    made = manifest()
    made["metadata"] |= {"creationTimestamp": timestamp(NOW - 100), "uid": "uid"}
    return {**made, "status": {"phase": phase, **status}} if phase else made


def registry(*jobs: Job, run: RunSummary | None = None, leads: bool = True) -> CollectorRegistry:
    """Return what an operator with these jobs serves of them; `run` is what host 0 of each has said."""
    made = CollectorRegistry()
    latest = {each["metadata"]["uid"]: run for each in jobs if run}
    made.register(JobMetrics(lambda: jobs, lambda: latest, leads=lambda: leads))
    return made


def full() -> tuple[Job, RunSummary]:
    """Return a running job of which everything is known."""
    conditions = [{"type": kind, "status": "False"} for kind in ("Ready", "Stalled", "Scheduled")]
    status = job(
        "Running",
        reason="Running",
        conditions=conditions,
        startTime=timestamp(NOW - 90),
        runTime=timestamp(NOW - 80),
        completionTime=timestamp(NOW - 1),
        hosts={"ready": 1, "of": 2},
        progress={"step": 5, "of": 100, "loss": "2.5"},
        checkpoint={"step": 4, "time": timestamp(NOW - 30)},
        restarts={"hang": 2},
        goodput="25%",
    )
    return status, told(step=7)


@pytest.mark.parametrize("phase", [None, *Phase])
def test_every_phase_has_its_series(phase: str | None) -> None:
    """Also of jobs that nobody answers for: an alert on a job that waits or has failed needs something to look at."""
    served = registry(job(phase))

    assert served.get_sample_value("shardwise_job_phase", {**LABELS, "phase": phase or "Pending"}) == 1
    assert served.get_sample_value("shardwise_job_created_timestamp_seconds", LABELS) == NOW - 100
    asked = {"accelerator": "cpu-sim", "topology": "2x2", "slices": "1"}
    assert served.get_sample_value("shardwise_job_info", {**LABELS, **asked}) == 1


def test_what_the_status_knows_stays_when_host_0_is_gone() -> None:
    """After the end, or in a restart: the step, the checkpoint, the restarts, the goodput; not the speed."""
    served = registry(full()[0])

    kept = {"step": 5, "steps": 100, "checkpoint_step": 4, "checkpoint_timestamp_seconds": NOW - 30}
    kept |= {"hosts": 2, "hosts_ready": 1, "goodput_ratio": 0.25, "start_timestamp_seconds": NOW - 90}
    kept |= {"run_timestamp_seconds": NOW - 80}
    found = {name: served.get_sample_value(f"shardwise_job_{name}", LABELS) for name in kept}
    assert found == kept
    assert served.get_sample_value("shardwise_job_restarts_total", {**LABELS, "cause": "hang"}) == 2
    assert served.get_sample_value("shardwise_job_condition", {**LABELS, "condition": "Ready", "status": "False"}) == 1
    assert served.get_sample_value("shardwise_job_reason", {**LABELS, "reason": "Running"}) == 1
    assert served.get_sample_value("shardwise_job_tokens_per_second", LABELS) is None


def test_host_0_knows_better() -> None:
    """While it answers, its figures count: the status is written less often."""
    served = registry(full()[0], run=full()[1])

    now = {"step": 7, "loss": 2.5, "tokens_per_second": 1000, "mfu_ratio": 0.25, "goodput_ratio": 0.5}
    assert {name: served.get_sample_value(f"shardwise_job_{name}", LABELS) for name in now} == now
    steps = {**LABELS, "category": "step"}
    assert served.get_sample_value("shardwise_job_goodput_seconds_total", steps) == 50


def test_who_does_not_lead_has_no_jobs() -> None:
    """Both operators have all jobs in their caches, and a job must count once."""
    assert not list(_samples(registry(full()[0], run=full()[1], leads=False)))


def test_a_job_that_is_deleted_has_no_series() -> None:
    """A series that stayed would alert for ever."""
    jobs = [full()[0]]
    served = CollectorRegistry()
    served.register(JobMetrics(lambda: jobs, dict, leads=lambda: True))

    assert list(_samples(served))
    jobs.clear()
    assert not list(_samples(served))


def test_lost_steps_take_nothing_back_from_a_counter() -> None:
    """Prometheus would take it for a counter that began anew, and count ten hours of steps a second time."""
    jobs, latest = [full()[0]], {"uid": told(goodput={"step": 36_000.0})}
    served = CollectorRegistry()
    served.register(JobMetrics(lambda: jobs, lambda: latest, leads=lambda: True))
    steps, lost = {**LABELS, "category": "step"}, {**LABELS, "category": "lostSteps"}

    assert served.get_sample_value("shardwise_job_goodput_seconds_total", steps) == 36_000
    latest["uid"] = told(goodput={"step": 35_700.0, "lostSteps": 300.0})
    assert served.get_sample_value("shardwise_job_goodput_seconds_total", steps) == 36_000
    assert served.get_sample_value("shardwise_job_goodput_seconds_total", lost) == 300


def test_what_is_polled_of_a_job_is_not_told_of_the_next() -> None:
    """What is still polled of a job that was deleted is not told of the one that was made in its place."""
    new, agents = job("Pending"), StandInAgents()
    agents.answer = told(step=7)
    with Poller(agents, 600.0, lambda _: None) as poller:
        poller.follow(("default", "job"), "uid of the one before", Target(pod="pod", address="", tokens=("secret",)))
        wait("an answer", poller.latest)
        served = CollectorRegistry()
        served.register(JobMetrics(lambda: [new], poller.latest, leads=lambda: True))

        figures = ("step", "loss", "tokens_per_second", "mfu_ratio", "goodput_ratio")
        found = {name: served.get_sample_value(f"shardwise_job_{name}", LABELS) for name in figures}
        assert found == dict.fromkeys(figures)
        assert served.get_sample_value("shardwise_job_goodput_seconds_total", {**LABELS, "category": "step"}) is None
        new["metadata"]["uid"] = "uid of the one before"
        assert served.get_sample_value("shardwise_job_step", LABELS) == 7


def test_a_job_made_anew_has_no_figures_of_the_one_before() -> None:
    """Until its own host 0 answers it has none, and then its counters begin where it begins."""
    jobs, latest = [full()[0]], {"uid": told(step=90, goodput={"step": 36_000.0})}
    served = CollectorRegistry()
    served.register(JobMetrics(lambda: jobs, lambda: latest, leads=lambda: True))
    steps = {**LABELS, "category": "step"}

    assert served.get_sample_value("shardwise_job_goodput_seconds_total", steps) == 36_000
    jobs[0] = job("Pending")
    jobs[0]["metadata"]["uid"] = "another"
    assert served.get_sample_value("shardwise_job_step", LABELS) is None
    assert served.get_sample_value("shardwise_job_goodput_seconds_total", steps) is None
    latest["another"] = told(step=1, goodput={"step": 1.0})
    assert served.get_sample_value("shardwise_job_step", LABELS) == 1
    assert served.get_sample_value("shardwise_job_goodput_seconds_total", steps) == 1


def test_the_number_of_series_is_bounded() -> None:
    """Whatever a job's own image says: new words bring no new series, and none is lost from the sum."""
    status, _ = full()
    words = {f"cause{number}": 1 for number in range(10)}
    known = dict.fromkeys([*map(str, Cause), *map(str, Lost)], 2)
    conditions = [{"type": value, "status": "True"} for value in CONDITIONS]
    status["status"] |= {"restarts": {**words, **known}, "reason": "Whatever", "conditions": conditions}
    strange = {f"category{number}": 1.0 for number in range(20)}
    said = told(goodput={**dict.fromkeys(GOODPUT_CATEGORIES, 1.0), **strange})
    served = registry(status, run=said)

    assert served.get_sample_value("shardwise_job_restarts_total", {**LABELS, "cause": "other"}) == 10
    assert served.get_sample_value("shardwise_job_goodput_seconds_total", {**LABELS, "category": "other"}) == 21
    assert served.get_sample_value("shardwise_job_reason", {**LABELS, "reason": "other"}) == 1
    assert 45 < len(list(_samples(served))) <= 51


@pytest.mark.parametrize("what", ["jobs", "operator", "run"])
def test_names_are_as_prometheus_asks(what: str) -> None:
    """Its own linter has no word against names, units, types and help."""
    require(PROMTOOL)
    linted = subprocess.run(
        ["promtool", "check", "metrics"], input=generate_latest(SERVED[what]()), capture_output=True, check=False
    )

    assert (linted.returncode, linted.stdout, linted.stderr) == (0, b"", b"")


@pytest.mark.parametrize("what", ["jobs", "operator", "run"])
@pytest.mark.golden
def test_the_tables_of_the_docs_are_what_is_served(what: str) -> None:
    """docs/metrics.md has each metric with its type, labels and words; `make golden` writes it."""
    rows = ["| Metric | Type | Labels | Is |", "|---|---|---|---|", *_rows(SERVED[what]().collect())]
    text = DOCS.read_text(encoding="utf-8")
    table = re.compile(rf"(?<=<!-- {what} -->\n).*?(?=<!-- end of {what} -->)", re.DOTALL)
    written = table.sub(lambda _: "".join(f"{row}\n" for row in rows), text)
    if os.environ.get("UPDATE_GOLDEN") == "1":
        DOCS.write_text(written, encoding="utf-8")

    assert len(rows) > 10
    assert written == DOCS.read_text(encoding="utf-8")


def _operator() -> CollectorRegistry:
    metrics = Metrics()
    metrics.request("get", "pods", "200", 0.1)
    counted = ((metrics.passes, "done"), (metrics.relists, "pods"), (metrics.events, "sent"), (metrics.spans, "sent"))
    for family, label in counted:
        family.labels(label).inc()
    metrics.cached.labels("pods").set(1)
    return metrics.registry


def _run() -> CollectorRegistry:
    host = HostStatus(
        host=0,
        agent_pid=1,
        trainer_pid=2,
        phase=None,
        step=7,
        step_seconds=1.0,
        own_seconds=0.1,
        age_seconds=0.1,
        state="S",
        standby=True,
        phases={},
    )
    summary = told(restarts={"hang": 1}, checkpoint={"step": 4, "age_seconds": 3.0}).model_dump()
    summary["progress"]["gradNorm"] = 1.0
    made = CollectorRegistry()
    status = RunStatus(**summary, name="job", ray_session=1, local_step=6, hosts=(host,))
    made.register(prometheus.RunMetrics(status))
    return made


SERVED = {"jobs": lambda: registry(full()[0], run=full()[1]), "operator": _operator, "run": _run}


def _rows(families: Iterable[Metric]) -> Iterator[str]:
    """Yield the rows of a table; what every program serves of its process is left out."""
    for family in families:
        if family.name.startswith("process_"):
            continue
        name = family.name + ("_total" if family.type == "counter" else "")
        (first, *_) = family.samples  # a metric that nothing is served of would be a row that nobody finds
        labels = ", ".join(f"`{label}`" for label in first.labels if label != "le")
        yield f"| `{name}` | {family.type} | {labels} | {family.documentation} |"


def _samples(served: CollectorRegistry) -> Iterator[object]:
    for family in served.collect():
        yield from family.samples
