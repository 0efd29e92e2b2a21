"""What the jobs of the benchmark stand on: the test cluster, nodes that KWOK plays, and the operator as a process.

Called by `__main__.py` and `beside.py`. The operator looks after the jobs of its own name alone, so another one may run
beside it.
"""

import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.operator.costs import METRICS_ADDRESS, metrics
from benchmarks.turns import ROOT
from tests.cluster import kwok, lifecycle, network, volume
from tests.cluster.client import Client
from tests.cluster.commands import ClusterError, run, say, wait
from tests.cluster.control_plane import client
from tests.cluster.places import CACHE, KUBECONFIG

NAMESPACE = "bench-operator"
_NODE_GRACE_SECONDS = 600
_HEALTH_ADDRESS = "127.0.0.1:18481"
_CRDS = ROOT / "charts" / "shardwise" / "crds"
_CLASSES = ROOT / "charts" / "shardwise" / "files" / "classes"
_POLICIES = ROOT / "charts" / "shardwise" / "files" / "policy"


@dataclass(frozen=True)
class Stage:
    """The cluster's administrator, the process that answers for all hosts, and a folder that goes with the stage."""

    client: Client
    hosts_pid: int
    folder: Path


@contextmanager
def stage(nodes: int) -> Iterator[Stage]:
    """Bring up what is not up, and what answers for hosts; a cluster that was up stays, with its nodes.

    What 600 nodes say of themselves every ten seconds takes a control plane as much as what is measured. So the nodes
    of a cluster of our own say it seldom, and may.
    """
    with ExitStack() as stack:
        if lifecycle.is_up():
            lease_seconds = kwok.LEASE_SECONDS
        else:
            lifecycle.up(1, _NODE_GRACE_SECONDS)
            stack.callback(lifecycle.down)
            lease_seconds = _NODE_GRACE_SECONDS // 2
        network.allow_everything()  # with a policy for each job it would take a core, and KWOK's pods have no network
        kwok.add(nodes, lease_seconds)
        stack.enter_context(_addresses())
        stack.enter_context(_namespace())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stand_in = (sys.executable, "-m", "benchmarks.operator.stand_in")
        hosts_pid = stack.enter_context(process(folder / "stand-in.log", *stand_in))
        yield Stage(client(), hosts_pid, folder)


@contextmanager
def operating(made: Stage, *, one_policy: bool = False) -> Iterator[int]:
    """Have the operator look after the stage's jobs as long as this lasts; its process.

    With `one_policy` it makes no NetworkPolicy for a job, as with `networkPolicy.jobs: false` in the chart.
    """
    log = CACHE / "bench-operator.log"
    options = ("--no-job-network-policies",) if one_policy else ()
    with process(log, *_operator(made.folder), *options) as pid:
        wait("the operator", _leads, hint=f"See {log}")
        yield pid


@contextmanager
def _addresses() -> Iterator[None]:
    """Have this machine answer for every address that KWOK gives to a pod."""
    route = ("local", kwok.POD_NETWORK, "dev", "lo")
    run("ip", "route", "replace", *route)
    try:
        yield
    finally:
        run("ip", "route", "delete", *route)


@contextmanager
def _namespace() -> Iterator[None]:
    """Make the operator's types and a namespace with a claim `runs`. They go again: a chart brings the types."""
    made = client()
    brings_types = not made.answers("/apis/shardwise.dev/v1alpha1/acceleratorclasses/cpu-sim")
    if brings_types:
        made.kubectl("apply", "--server-side", "--filename", _CRDS)
        wait("the types", partial(made.answers, "/apis/shardwise.dev/v1alpha1/acceleratorclasses"))
        made.kubectl("apply", "--server-side", "--filename", _CLASSES)
        made.kubectl("apply", "--server-side", "--filename", _POLICIES)  # a create is held against them
    made.kubectl("create", "namespace", NAMESPACE)
    folder = volume.make(NAMESPACE)
    try:
        yield
    finally:
        say("deleting the jobs")
        made.kubectl("delete", "namespace", NAMESPACE, "--timeout=300s")
        if brings_types:
            for folder_of_types in (_POLICIES, _CLASSES, _CRDS):
                made.kubectl("delete", "--ignore-not-found", "--filename", folder_of_types)
        volume.remove(NAMESPACE)
        folder.rmdir()


def _operator(folder: Path) -> tuple[str, ...]:
    key = folder / "key"
    key.write_text(secrets.token_hex(32))
    return (
        *(str(Path(sys.executable).with_name("shardwise-operator")), "run", "--trainer-image=localhost/none"),
        *(f"--key-file={key}", f"--namespace={NAMESPACE}", f"--managed-by={NAMESPACE}", f"--kubeconfig={KUBECONFIG}"),
        *(f"--lease-namespace={NAMESPACE}", f"--metrics-address={METRICS_ADDRESS}"),
        f"--health-address={_HEALTH_ADDRESS}",
    )


def _leads() -> bool:
    try:
        return "shardwise_operator_leader 1.0" in metrics()
    except OSError:  # it does not listen yet
        return False


@contextmanager
def process(log: Path, *command: str) -> Iterator[int]:
    """Run a program as long as the block; its id."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        yield process.pid
        if process.poll() is not None:
            raise ClusterError(f"{command[0]} ended with {process.returncode}. See {log}")
    finally:
        process.terminate()
        process.wait()
