"""What the job stands on: the test cluster with the chart, a namespace, and its claim. Called by `__main__.py`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import lifecycle, volume
from tests.cluster.bare import Bare
from tests.cluster.client import Client
from tests.cluster.commands import say
from tests.kubernetes.jobs import Job, manifest
from tests.kubernetes.release import Release, installed

NAMESPACE = "bench-apply"
EXAMPLE = "cpu-two-hosts"
_NODES = 3
_NODE_GRACE_SECONDS = 50


@dataclass(frozen=True)
class Stage:
    """The cluster's administrator, and the folder behind the claim `runs` of the namespace."""

    client: Client
    volume: Path


@contextmanager
def stage() -> Iterator[Stage]:
    """Bring up what is not up, with the images of this tree on every node; the cluster and its images stay."""
    if not lifecycle.is_up():
        lifecycle.up(_NODES, _NODE_GRACE_SECONDS)
    cluster = Bare()
    for target in ("operator", "cpu"):
        say(f"the image of {target} on every node")
        cluster.load(target)
    say("installing the chart")
    with installed(Release(cluster)):
        cluster.client.kubectl("create", "namespace", NAMESPACE)
        try:
            made = Stage(cluster.client, volume.make(NAMESPACE))
            _be_seen(made)
            yield made
        finally:
            cluster.client.kubectl("delete", "namespace", NAMESPACE, "--timeout=300s")
            volume.remove(NAMESPACE)


def _be_seen(made: Stage) -> None:
    """Wait until an operator leads, by its word on a job that runs nothing: else the first job would wait for it."""
    job = manifest(EXAMPLE)
    job["spec"]["suspend"] = True
    waiting = Job(made.client, NAMESPACE, made.volume, job)
    waiting.until_phase("Suspended")
    waiting.delete()
