"""shardwise.client.job: when a job rests, and what a newer operator says. What a real one says is in test_cluster."""

from pathlib import Path
from typing import Any

import pytest
from tests.client.answering import StandInServer, job, kubeconfig

from shardwise.client import Cluster
from shardwise.client.job import Job
from shardwise.protocol.errors import ClusterError, UsageError
from shardwise.protocol.job_status import JobStatus


@pytest.mark.parametrize(
    ("phase", "observed", "rests"),
    [
        ("Suspended", 2, True),
        ("Complete", 2, True),
        ("Running", 2, False),
        ("Suspended", 1, False),
        (None, None, False),
    ],
)
def test_a_change_that_was_not_looked_at_may_still_begin(
    phase: str | None, observed: int | None, *, rests: bool
) -> None:
    """A job that was submitted again is not at rest because its old status says so."""
    status = JobStatus.model_validate({"phase": phase, "observedGeneration": observed})
    assert Job(2, status).is_resting is rests


def read(path: Path, phase: str, status: dict[str, Any]) -> JobStatus:
    """Return what is read of a job with this status."""
    with StandInServer(lambda _: job(phase, **status)) as server:
        return Cluster(kubeconfig=kubeconfig(path, server.url)).job("job").status


@pytest.mark.parametrize("name", ["", "..", "a/b", "job?watch=true", "Job", "job\n"])
def test_what_is_no_name(name: str, tmp_path: Path) -> None:
    """It is refused before anything is asked: to delete a job without a name would be to delete all of them."""
    cluster = Cluster(kubeconfig=kubeconfig(tmp_path / "config", "http://127.0.0.1:1"))
    with pytest.raises(UsageError, match=r"expected the name of a job"):
        cluster.job(name)


@pytest.mark.parametrize(
    "newer",
    [
        {"reason": "x" * 64},
        {"phases": [{"name": "Paused", "number": 0, "start": "2026-01-01T00:00:00Z"}]},
        {"hosts": {"ready": 1, "of": 2**40}},
        {"conditions": [{"type": "Ready", "status": "Perhaps", "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        {"goodput": 0.5, "digest": 7},
    ],
    ids=["a longer reason", "another phase of the past", "a larger number", "another word", "numbers"],
)
def test_what_does_not_fit_is_left_out(newer: dict[str, Any], tmp_path: Path) -> None:
    """Of a newer operator's status each field that has another form here is left out, and all others are read."""
    known = {"message": "said", "restarts": {"hang": 1}}
    read_here = read(tmp_path / "config", "Running", known | newer)
    assert read_here == read(tmp_path / "config", "Running", known)
    assert (read_here.phase, read_here.message, read_here.restarts) == ("Running", "said", {"hang": 1})


def test_a_phase_that_is_not_known(tmp_path: Path) -> None:
    """It is an error in words: without it, nobody could say how the job stands, or wait for its end."""
    with pytest.raises(ClusterError, match=r"tj/job.*Paused.*newer operator; update shardwise"):
        read(tmp_path / "config", "Paused", {"reason": "y" * 64})
