"""A job of real pods in a queue of a real Kueue: preempted and admitted again, it trains as if nothing had happened."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import kueue
from tests.cluster.bare import Bare
from tests.kubernetes.jobs import STEPS, Ended, Job, small
from tests.kubernetes.release import Release
from tests.operator.operating import Place
from tests.operator.queues import QUEUE, Queues

Here = Callable[[Mapping[str, Any]], Ended]
_BEFORE = 20
_CPUS = 2


@pytest.fixture
def queues(bare: Bare, release: Release, cluster_namespace: str, tmp_path: Path) -> Iterator[Queues]:
    """Return a queue with room for one job of the namespace; operator and Kueue know of each other."""
    with kueue.operating(bare.client, tmp_path):
        release.upgrade(**{"kueue.enabled": "true"})
        made = Queues(Place(bare.client, cluster_namespace), _CPUS, nodeLabels={}, tolerations=[])
        yield made
        made.remove()


def _queued(name: str, priority: str, **training: Any) -> dict[str, Any]:
    """A job of two hosts that takes all of the queue."""
    job = small(**training)
    labels = {"kueue.x-k8s.io/queue-name": QUEUE, "kueue.x-k8s.io/priority-class": priority}
    job["metadata"] = {"name": name, "labels": labels}
    job["spec"]["pod"]["directory"] = f"/runs/{name}"
    job["spec"]["pod"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = f"{_CPUS * 500}m"
    return job


def test_a_preempted_job_takes_every_step_once(
    queues: Queues, bare: Bare, cluster_namespace: str, runs_volume: Path, here: Here
) -> None:
    """It saves before its pods go, waits for the other one's end, and comes to the bits of a run that went through."""
    longer = _queued("longer", queues.priority("low"), steps=STEPS)
    job = Job(bare.client, cluster_namespace, runs_volume, longer)
    job.until_taken(_BEFORE)
    urgent = Job(bare.client, cluster_namespace, runs_volume, _queued("urgent", queues.priority("high"), steps=5))
    job.until("it to wait", lambda: (job.phase, job.status.get("reason")) == ("Pending", "Evicted"))
    job.until("the pods of the urgent one", lambda: urgent.pods)
    assert job.pods == {}
    print(job.kubectl("get", "tj", "--output=wide"))  # noqa: T201  docs/queues.md shows it
    print(job.kubectl("get", "workloads"))  # noqa: T201  docs/queues.md shows it
    urgent.until_phase("Complete")
    job.until_phase("Complete")

    assert job.taken == list(range(1, STEPS + 1))
    assert Ended(job.status["digest"], job.losses) == here(longer)
    assert job.status["restartCount"] == 0
    for each in (job, urgent):
        each.delete()
