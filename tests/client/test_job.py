"""shardwise.client.job: when a job rests. What asks the API server is in test_cluster."""

import pytest

from shardwise.client.job import Job
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
