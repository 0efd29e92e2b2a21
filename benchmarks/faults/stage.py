"""What jobs in pods stand on while faults are put to them: three nodes, the images of this tree, the chart.

Made once for all faults. Called by `pods.py` and `peers.py`.
"""

import atexit
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.cluster import lifecycle
from tests.cluster.bare import Bare
from tests.cluster.commands import say
from tests.kubernetes.jobs import Ended, train_here
from tests.kubernetes.release import Release, installed

NAMESPACE = "faults"
_NODES, _NODE_GRACE_SECONDS = 3, 50


@dataclass(frozen=True)
class Stage:
    """What the jobs stand on."""

    cluster: Bare
    volume: Path
    image: str
    here: Path


@cache
def stage() -> Stage:
    """Bring up what is not up, until this process ends; a cluster that was up before stays."""
    stack = ExitStack()
    atexit.register(stack.close)
    cluster = Bare()
    if not lifecycle.is_up():
        lifecycle.up(_NODES, _NODE_GRACE_SECONDS)
        stack.callback(lifecycle.down)
    cluster.load("operator")
    image = cluster.load("cpu")
    say("installing the chart")
    stack.enter_context(installed(Release(cluster)))
    cluster.client.kubectl("create", "namespace", NAMESPACE)
    stack.callback(cluster.remove_volumes, NAMESPACE)
    stack.callback(cluster.client.kubectl, "delete", "namespace", NAMESPACE, "--timeout=300s")
    here = Path(tempfile.mkdtemp(prefix="shardwise-faults-"))
    return Stage(cluster, cluster.make_volume(NAMESPACE), image, here)


def alone(made: Stage, job: Mapping[str, Any]) -> Ended:
    """What a job ends with on this machine; checkpoints change nothing of it."""
    training = {name: value for name, value in job["spec"]["training"].items() if name != "checkpoint"}
    spec = {"hardware": job["spec"]["hardware"], "training": training}
    return train_here({**job, "spec": spec}, made.here / str(training["steps"]))
