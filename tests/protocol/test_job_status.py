"""shardwise.protocol.job_status: a status has room for the largest job."""

import pytest

from shardwise.protocol.job_status import MAX_HOSTS, MAX_SLICES, JobStatus


@pytest.mark.parametrize("field", ["lostAt", "avoid"])
def test_every_host_and_every_slice_has_a_place(field: str) -> None:
    """A slice may have lost pods in its place, and its hosts, before anybody knew that place, on their nodes."""
    hosts = {f"{number % MAX_SLICES}-{number // MAX_SLICES}": "node" for number in range(MAX_HOSTS)}
    slices = {str(number): "pool" for number in range(MAX_SLICES)}

    status = JobStatus.model_validate({field: hosts | slices})

    assert len(status.lost_at | status.avoid) == MAX_HOSTS + MAX_SLICES
