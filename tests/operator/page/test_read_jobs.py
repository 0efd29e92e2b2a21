"""shardwise_operator.page.read_jobs: what the page says of a job follows from its object alone."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.operator.building import NOW
from tests.operator.page.rows import condition, job, running

from shardwise_operator.observe.state import Phase
from shardwise_operator.page.jobs_document import JobRow
from shardwise_operator.page.read_jobs import MOST_JOBS, read_jobs
from shardwise_operator.runtime.kinds import timestamp


def row(made: dict[str, Any]) -> JobRow:
    """Return what the page says of one job."""
    (told,) = read_jobs([made], namespace="", now=NOW).jobs
    return told


def test_a_running_job() -> None:
    """Every figure of the status is there as a number, so that it can be sorted; causes that never were are not."""
    assert row(running()) == JobRow(
        namespace="default",
        name="job",
        created=NOW - 1000,
        phase="Running",
        reason="Running",
        since=NOW - 300,
        accelerator="cpu-sim",
        topology="2x2",
        step=500,
        num_steps=2000,
        loss="2.5000",
        tokens_per_second=12500,
        mfu=0.415,
        eta_seconds=3900,
        observed_at=NOW - 3,
        slowest_host="0-1",
        checkpoint_step=400,
        checkpoint_at=NOW - 120,
        restarts={"hang": 1, "failure": 2},
        goodput=0.79,
        hosts_ready=2,
        hosts=2,
        pod="job-0-0-3",
        directory="/runs/job",
    )


def test_a_job_that_nobody_has_looked_at() -> None:
    """It is pending since it was made, and nothing else is known."""
    assert row(job()) == JobRow(
        namespace="default",
        name="job",
        created=NOW - 1000,
        phase="Pending",
        since=NOW - 1000,
        accelerator="cpu-sim",
        topology="2x2",
        directory="/runs/job",
    )


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase != Phase.RUNNING])
def test_the_pace_is_of_running_jobs_alone(phase: str) -> None:
    """A status keeps the last speed; of a job that takes no steps it would be a lie. Step and loss it has reached."""
    made = running()
    made["status"]["phase"] = phase
    told = row(made)

    assert (told.tokens_per_second, told.mfu, told.eta_seconds, told.slowest_host) == (None, None, None, "")
    assert (told.step, told.loss, told.goodput) == (500, "2.5000", 0.79)


@pytest.mark.parametrize(
    ("phase", "since"),
    [
        ("Complete", NOW - 10),
        ("Failed", NOW - 10),
        ("Suspended", NOW - 20),
        ("Recovering", NOW - 30),
        ("Pending", NOW - 30),
    ],
)
def test_since_when_without_phases(phase: str, since: float) -> None:
    """The end of a job that has ended, the suspension of a suspended one, else when it ceased to be ready, or was."""
    conditions = [condition("Suspended", "True", NOW - 20), condition("Ready", "False", NOW - 30)]

    assert row(job("job", phase, completionTime=timestamp(NOW - 10), conditions=conditions)).since == since


@pytest.mark.parametrize("phase", ["Running", "Recovering", "Suspending", "Suspended", "Failed"])
def test_since_when(phase: str) -> None:
    """The beginning of the phase that is shown, however long before the job ceased to be ready, or was suspended."""
    conditions = [condition("Suspended", "False", NOW - 300), condition("Ready", "False", NOW - 200)]
    phases = [{"name": "Pending", "start": timestamp(NOW - 900)}, {"name": phase, "start": timestamp(NOW - 50)}]

    assert row(job("job", phase, phases=phases, conditions=conditions)).since == NOW - 50


@pytest.mark.parametrize("phase", ["Complete", "Failed", "Suspended"])
def test_a_job_at_rest_has_no_pod(phase: str) -> None:
    """Nobody is sent into a pod that has ended; nor into one that is not made yet."""
    made = running()
    made["status"]["phase"] = phase

    assert row(made).pod == ""
    assert row(running(pods={"0-1": "uid-1"})).pod == ""


def test_where_it_waits() -> None:
    """The queue is that of the job's label, else of its pods'; a notice that is too short is told beside the phase."""
    made = job("job", "Pending", conditions=[condition("NoticeTooShort", "True", NOW, message="the save took 40 s")])
    made["spec"]["pod"]["template"]["metadata"] = {"labels": {"kueue.x-k8s.io/queue-name": "of-pods"}}
    assert (row(made).queue, row(made).notice) == ("of-pods", "the save took 40 s")

    made["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "of-job"}
    made["status"]["conditions"] = [condition("NoticeTooShort", "False", NOW, message="the save took 4 s")]
    assert (row(made).queue, row(made).notice) == ("of-job", "")


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("0m17s", 17), ("59m0s", 3540), ("100h59m", 363540), ("soon", None), ("", None), ("1h", None)],
)
def test_time_left(written: str, seconds: float | None) -> None:
    """A time as the operator writes it; what is none is not known."""
    assert row(running(progress={"eta": written})).eta_seconds == seconds


def test_what_cannot_be_read_is_not_known() -> None:
    """Whatever another release, or a person, has written into a status, the page of all the others is made."""
    odd: dict[str, Any] = {
        "reason": 7,
        "message": "x" * 40_000,
        "progress": {
            "step": "many",
            "of": None,
            "loss": 3,
            "tokensPerSecond": "inf",
            "mfu": "fast%",
            "observedAt": "now",
        },
        "checkpoint": "none",
        "restarts": [],
        "goodput": None,
        "hosts": {"ready": True},
        "attempts": {"0-0": "first"},
    }
    told = row(job("job", "Running", **odd))

    assert told.model_dump(exclude_defaults=True).keys() == {
        *("namespace", "name", "created", "phase", "message", "since", "accelerator", "topology", "directory")
    }
    assert len(told.message) == 500


ODD: list[Any] = [
    *(None, True, 7, -1, 2.5, 10**400, float("nan"), float("inf"), "", "x", "1e999", "nan", "9" * 600, "9" * 400 + "m"),
    *("\ud800", "0001-01-01T00:00:00", "9999-12-31T23:59:59-23:59", [], [None], ["x"], {}, {"a": "x"}, {"\ud800": 1}),
    *({"a": float("nan")}, {"a": 2.5}, {"a": -1}, {1: 2}, [{}], [{"type": "Ready", "lastTransitionTime": 5}]),
]


def _paths(group: dict[str, Any], before: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, value in group.items():
        yield (*before, name)
        if isinstance(value, dict):
            yield from _paths(value, (*before, name))


@pytest.mark.parametrize("path", [("status",), *_paths(running()["status"], ("status",))], ids=".".join)
@pytest.mark.parametrize("phase", ["Running", "Complete"])
def test_an_odd_status_costs_its_own_row_at_most(path: tuple[str, ...], phase: str) -> None:
    """Whatever stands at a place of it, the job has a row, that of another job is what it was, and both are written."""
    other = row(running("other"))
    for odd in ODD:
        made = running(completionTime=timestamp(NOW - 10))
        made["status"]["phase"] = phase
        group = made
        for name in path[:-1]:
            group = group[name]
        group[path[-1]] = odd
        document = read_jobs([made, running("other")], namespace="", now=NOW)
        assert [told.name for told in document.jobs] == ["job", "other"]
        assert document.jobs[1] == other
        json.loads(document.model_dump_json(exclude_defaults=True).encode())


def test_counts_that_can_be_read_are_told() -> None:
    """One odd count of restarts takes none of the others away."""
    assert row(running(restarts={"hang": "many", "failure": 2, "eviction": float("nan")})).restarts == {"failure": 2}


def test_too_many_jobs() -> None:
    """The newest are shown, and those that are not at rest before all others; the rest is counted."""
    over = 3
    jobs = [job(f"job-{number:05}", "Complete") for number in range(MOST_JOBS + over)]
    for age, made in enumerate(jobs):
        made["metadata"]["creationTimestamp"] = timestamp(NOW - age)
    jobs[-1]["status"]["phase"] = "Pending"
    document = read_jobs(jobs, namespace="", now=NOW)

    assert (len(document.jobs), document.left_out) == (MOST_JOBS, over)
    assert [told.name for told in document.jobs] == [*(f"job-{n:05}" for n in range(MOST_JOBS - 1)), "job-02002"]
