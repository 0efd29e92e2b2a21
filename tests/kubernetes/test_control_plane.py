"""The control plane dies under a job, and comes back. On kind alone: the bare cluster's is no node that can be lost."""

from collections.abc import Callable, Mapping
from typing import Any

from tests.cluster.commands import wait
from tests.cluster.kind.cluster import Kind
from tests.kubernetes.jobs import Job, manifest

STEPS_WITHOUT = 5  # that the job takes while no control plane is there


def test_a_job_that_loses_its_control_plane_loses_no_step(
    kind: Kind, apply_alone: Callable[[Mapping[str, Any]], Job]
) -> None:
    """While the control plane is dead the job goes on; when it is back, the same pods have taken every step once."""
    example = manifest("cpu-two-hosts")
    job = apply_alone(example)
    job.until_taken(1)
    before = job.pods
    kind.kill_control_plane()
    seen, steps = len(job.taken), example["spec"]["training"]["steps"]
    assert seen + STEPS_WITHOUT < steps, "the job was over before its control plane died"
    assert not kind.client.answers("/readyz")
    wait("steps without a control plane", lambda: len(job.taken) >= seen + STEPS_WITHOUT, 300)
    kind.start_control_plane()
    wait("the control plane", lambda: kind.client.answers("/readyz"))

    job.until_phase("Complete", 600)
    assert job.taken == list(range(1, steps + 1))
    assert job.status["progress"]["step"] == steps
    assert job.status.get("restarts", {}) == {}
    assert {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in job.all_pods} == before
