"""What Prometheus would scrape of a job in each state of its life, recorded from an operator on a real API server.

The recordings, in `golden/`, are what the tests of the chart's alerts are made of. Times are in seconds from the moment
of the recording, which all of them are.
"""

import re
from collections.abc import Callable

import pytest
from prometheus_client import generate_latest
from tests.operator.building import manifest, record
from tests.operator.operating import Operator, Place, StandInAgents, told
from tests.operator.queues import Queues, queued_job

Golden = Callable[[str, str], None]
Queueing = Callable[..., Queues]

PHASES = {"stalled": "Running"}

_TIMES = re.compile(r"(_timestamp_seconds\{[^}]*\} ).*")


@pytest.fixture
def recorded(place: Place, operator: Operator, golden: Golden) -> Callable[[str], None]:
    """Return what compares the series of a job that is in some state with the recording of that name."""

    def check(name: str) -> None:
        place.until(name, lambda: f'phase="{PHASES.get(name, name.capitalize())}"' in _series(operator, place))
        place.until("the operator to know it", lambda: operator.has_heard_of(place.job("job")))
        golden(f"{name}.prom", _series(operator, place))

    return check


def test_a_job_that_waits(place: Place, recorded: Callable[[str], None]) -> None:
    """No node, no pod that runs: the job has a phase all the same."""
    place.apply(manifest())
    place.until("it to say why", lambda: place.status().get("reason") == "Scheduling")
    recorded("pending")


def test_a_job_that_trains(place: Place, agents: StandInAgents, recorded: Callable[[str], None]) -> None:
    """From the first step to a hang, a suspension and the end."""
    running = told(checkpoint={"step": 8, "seconds": 1.0}, restarts={"failure": 1})
    agents.answer = running
    place.train(manifest())
    place.until("a checkpoint", lambda: place.status().get("checkpoint"))
    place.until("its hosts", lambda: place.status()["hosts"]["ready"] == 2)
    recorded("running")
    agents.answer = running.model_copy(update={"phase": "stalled", "reason": "rank 1 makes no progress"})
    place.until("the stall", lambda: place.status().get("reason") == "Stalled")
    recorded("stalled")
    agents.answer = running
    place.until("its end", lambda: place.status().get("reason") == "Running")
    place.change("job", suspend=True)
    place.until("the question", lambda: place.status().get("phase") == "Suspending")
    for pod in place.pods():
        place.end(pod, 143, record(80, step=10, checkpoint_step=10, loss="2.5"))
    place.until_phase("Suspended")
    recorded("suspended")


@pytest.mark.parametrize("phase", ["complete", "failed"])
def test_a_job_that_ends(place: Place, agents: StandInAgents, recorded: Callable[[str], None], phase: str) -> None:
    """What it has reached stays to be seen until it is deleted."""
    agents.answer = told()
    place.train(manifest())
    end = record(0) if phase == "complete" else record(82, step=10, cause="nonfinite", message="the loss is nan")
    place.end("job-0-0-0", end.code or 0, end)
    place.end("job-0-1-0", end.code or 0, end)
    place.until_phase(phase.capitalize())
    place.until("its pods' end", lambda: place.status()["hosts"]["ready"] == 0)
    recorded(phase)


def test_a_job_in_a_queue(place: Place, queueing_operator: Operator, queues: Queueing, golden: Golden) -> None:
    """Of a real Kueue: it waits for quota that another job has, is admitted when that is gone, and waits for a node."""
    queues(2)
    place.apply(queued_job("other"))
    place.until("the quota to be another's", lambda: len(place.pods("other")) == 2)
    place.apply(queued_job())
    place.until("it to wait in the queue", lambda: "insufficient" in place.status().get("message", ""))
    place.until("the operator to know it", lambda: queueing_operator.has_heard_of(place.job("job")))
    golden("queued.prom", _of_the_job(queueing_operator, place))
    place.delete("other")
    place.until("it to say why", lambda: place.status().get("reason") == "Scheduling")
    place.until("the operator to know it", lambda: queueing_operator.has_heard_of(place.job("job")))
    golden("admitted.prom", _of_the_job(queueing_operator, place))


def test_a_job_that_is_deleted(place: Place, operator: Operator) -> None:
    """Its series go with it."""
    place.apply(manifest())
    place.until("its series", lambda: 'job="job"' in _series(operator, place))
    place.delete()
    place.until("their end", lambda: 'job="job"' not in _series(operator, place))


def _of_the_job(operator: Operator, place: Place) -> str:
    """Return the series without those of the job beside it."""
    return "".join(line for line in _series(operator, place).splitlines(keepends=True) if 'job="other"' not in line)


def _series(operator: Operator, place: Place) -> str:
    """Return the series of jobs and of the lead, with the names and times that a recording has."""
    lines = generate_latest(operator.metrics.registry).decode().splitlines()
    kept = [line for line in lines if line.startswith(("shardwise_job_", "shardwise_operator_leader"))]
    text = "\n".join(sorted(line for line in kept if "_created{" not in line)) + "\n"
    return _TIMES.sub(r"\g<1>0.0", text.replace(place.namespace, "research"))
