"""Drawn jobs on a real API server with the rules of the chart, under an operator that runs as a process.

150 in `make test`; 2,000 by `FUZZ_JOBS=2000 .venv/bin/pytest -n 0 -s tests/operator/api/test_fuzz.py`.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.client import Client, RefusedError
from tests.cluster.commands import ClusterError, wait
from tests.operator.api.drawn_jobs import Drawing
from tests.operator.live import Live, live_operator

from shardwise_operator.observe.state import Phase

NUMBER = int(os.environ.get("FUZZ_JOBS", "150"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
SHOW = "FUZZ_SHOW" in os.environ  # what is said to each of them
AT_ONCE = 50
NAMES_A_PLACE = re.compile(r"spec|metadata|status")


@dataclass(frozen=True)
class Figures:
    """What became of the jobs."""

    refused: Counter[str] = field(default_factory=Counter)
    taken: Counter[str] = field(default_factory=Counter)


@pytest.fixture
def operator(shardwise_api: Client, tmp_path: Path) -> Iterator[Live]:
    """Run an operator for a namespace of its own, in which a ServiceAccount of the examples is."""
    with live_operator(shardwise_api, tmp_path) as live:
        shardwise_api.kubectl("create", "serviceaccount", "trainer", "--namespace", live.namespace)
        yield live


def test_every_drawn_job_is_refused_with_words_or_has_a_sensible_state(shardwise_api: Client, operator: Live) -> None:
    """Nothing that a person may apply is taken in silence, ends the operator, or makes it fail."""
    drawing, figures = Drawing(SEED), Figures()
    jobs = f"/apis/shardwise.dev/v1alpha1/namespaces/{operator.namespace}/trainingjobs"
    for begin in range(0, NUMBER, AT_ONCE):
        for number in range(begin, min(begin + AT_ONCE, NUMBER)):
            _apply(shardwise_api, jobs, drawing.job(f"job-{number}"), figures)
        taken = {each["metadata"]["name"] for each in shardwise_api.request("GET", jobs)["items"]}
        for name in sorted(taken):
            figures.taken[_state(shardwise_api, jobs, name)] += 1
        operator.check()
        shardwise_api.request("DELETE", jobs)
        wait("the end of the jobs", lambda: not shardwise_api.request("GET", jobs)["items"])
        shardwise_api.request("DELETE", f"/api/v1/namespaces/{operator.namespace}/pods", {"gracePeriodSeconds": 0})
    operator.check()
    print(f"\n{NUMBER} jobs of seed {SEED}")  # noqa: T201  the figures of a long run
    for what, counts in (("refused", figures.refused), ("taken", figures.taken)):
        print(f"{what}: {counts.total()}", *(f"  {many:5} {words}" for words, many in counts.most_common()), sep="\n")  # noqa: T201

    assert figures.refused
    assert figures.taken


def _apply(client: Client, jobs: str, job: dict[str, Any], figures: Figures) -> None:
    """Make a job as kubectl does; a refusal must say where and why."""
    try:
        client.request("POST", f"{jobs}?fieldValidation=Strict", job)
    except RefusedError as error:
        refusal = error
    else:
        return
    assert refusal.status in (400, 422), f"{refusal}\n{job}"
    assert NAMES_A_PLACE.search(str(refusal)), f"{refusal}\n{job}"
    figures.refused[_layer(str(refusal))] += 1
    if SHOW:
        print(str(refusal)[:500])  # noqa: T201


def _layer(words: str) -> str:
    if "ValidatingAdmissionPolicy" in words:
        return "policy"
    return "unknown field" if "unknown field" in words else "schema and rules"


def _settled(client: Client, jobs: str, name: str) -> bool:
    """Whether the job has all of its pods, or says why it has not; or whether it is another operator's."""
    job = client.request("GET", f"{jobs}/{name}")
    status, pods = job.get("status", {}), jobs.replace("shardwise.dev/v1alpha1", "v1").replace("trainingjobs", "pods")
    if job["spec"].get("managedBy"):
        return not status
    if status.get("observedGeneration") != job["metadata"]["generation"]:
        return False
    listed = client.request("GET", f"{pods.replace('/apis/', '/api/')}?labelSelector=shardwise.dev/job={name}")
    number, reason = len(listed["items"]), status.get("reason", "")
    if status["phase"] == Phase.SUSPENDED:
        return number == 0
    if reason == "Invalid":
        return number == 0 and "expected" in status["message"]
    if reason == "Refused":
        return bool(status["message"])
    expected: int = 1 if reason == "Planning" else status["hosts"]["of"]
    return status["phase"] in (Phase.PENDING, Phase.STARTING) and number == expected > 0


def _state(client: Client, jobs: str, name: str) -> str:
    """How a job stands once the operator has seen to it."""
    try:
        wait(f"a state of {name}", lambda: _settled(client, jobs, name), seconds=40)
    except ClusterError as error:
        raise AssertionError(json.dumps(client.request("GET", f"{jobs}/{name}"))) from error
    status = client.request("GET", f"{jobs}/{name}").get("status")
    if SHOW and status:
        print(f"{status['phase']} {status.get('reason', '')}: {status.get('message', '')[:500]}")  # noqa: T201
    return f"{status['phase']} {status.get('reason', '')}" if status else "another operator's"
