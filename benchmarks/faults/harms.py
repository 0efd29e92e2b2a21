"""What is done to a job in pods: to its processes, its pods, their nodes, and what is around.

Called by `in_cluster.py`. Each says when it is put, and returns when it is over or nothing more is to be done.
"""

import os
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.faults.pods import WITHIN_SECONDS, Hurt
from benchmarks.faults.stage import Stage
from tests.cluster import nodes, processes
from tests.cluster.commands import wait
from tests.kubernetes.release import SYSTEM

PLACE = "test.shardwise.dev/place"
"""The label of the nodes on which a kubelet takes the pods that it is to refuse elsewhere."""
_WRONG = "broken-device"
WRONG_PATH = f"/runs/{_WRONG}"
"""Where the processes of a pod find what makes its device compute wrong (`broken_device.py`)."""
_FULL_SECONDS, _OUTAGE_SECONDS = 20.0, 60.0
# Run in a pod of limited memory: many small processes, so that the kernel finds the trainer the largest.
_HOG = """
import os, time
for _ in range(40):
    if os.fork() == 0:
        kept = bytearray(os.urandom(1 << 20)) * 48
        time.sleep(60)
        os._exit(0)
time.sleep(5)
"""


# ------------------------------------------------------------------------------------------------------------ processes


def trainer(hurt: Hurt) -> None:
    """Kill the trainer of host 1."""
    hurt.kill_trainer(1)


def container(host: int) -> Callable[[Hurt], None]:
    """Kill the first process of a host's container."""
    return lambda hurt: hurt.kill_container(host)


def out_of_memory(hurt: Hurt) -> None:
    """Take the memory of host 1's container."""
    hurt.now()
    hurt.job.inside(hurt.pod(1), _HOG)


def may_compute_wrong(made: Stage) -> None:
    """Put what a device computes wrong by where pods with `WRONG_PATH` have it."""
    folder = made.volume / _WRONG
    folder.mkdir()
    folder.chmod(0o755)
    shutil.copyfile(Path(__file__).with_name("broken_device.py"), folder / "sitecustomize.py")


def computes_wrong(hurt: Hurt) -> None:
    """The device of host 1's pod computes wrong, in every trainer that the pod starts, until it is elsewhere."""
    node, broken = hurt.node(1), hurt.stage.volume / _WRONG / "broken"
    try:
        hurt.now()
        broken.write_text(hurt.address(1), encoding="utf-8")
        hurt.job.until("another node", lambda: hurt.look() and hurt.runs_elsewhere(1, node), WITHIN_SECONDS)
    finally:
        broken.unlink()


# ----------------------------------------------------------------------------------------------------------------- pods


def deleted(host: int) -> Callable[[Hurt], None]:
    """Delete a host's pod."""

    def put(hurt: Hurt) -> None:
        hurt.now()
        hurt.job.kubectl("delete", "pod", hurt.pod(host), "--wait=false")

    return put


def evicted(hurt: Hurt) -> None:
    """Put host 1's pod out through the eviction API."""
    name = hurt.pod(1)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": hurt.namespace}}
    hurt.now()
    hurt.client.request("POST", f"/api/v1/namespaces/{hurt.namespace}/pods/{name}/eviction", eviction)


def old_pod_runs_on(hurt: Hurt) -> None:
    """The node's kubelet stands still while the pod's object is removed by force: its container trains on."""
    node, name = hurt.node(1), hurt.pod(1)
    kubelet = _kubelet(node)
    os.kill(kubelet, signal.SIGSTOP)
    try:
        hurt.client.kubectl("cordon", node)
        hurt.now()
        hurt.job.kubectl("delete", "pod", name, "--grace-period=0", "--force")
        hurt.until_next_step()
    finally:
        os.kill(kubelet, signal.SIGCONT)
        hurt.client.kubectl("uncordon", node)


def image_missing(hurt: Hurt) -> None:
    """No container starts; the person sees why, suspends, gives the right image, and resumes."""
    hurt.now()
    hurt.job.until("the reason", lambda: hurt.job.status.get("reason") == "ImagePull", WITHIN_SECONDS)
    hurt.noticed()
    hurt.job.patch(suspend=True)
    hurt.job.until_phase("Suspended")
    hurt.job.patch(suspend=False, pod={"image": hurt.image})


def refused(hurt: Hurt) -> None:
    """A node loses the label that the pods select while its kubelet is away, which then admits none of them."""
    first, *others = hurt.stage.cluster.nodes
    try:
        nodes.end_kubelet(first)
        try:
            hurt.client.kubectl("label", "node", first, f"{PLACE}=here")
            hurt.job.until("a pod to be bound", lambda: _bound(hurt, first), WITHIN_SECONDS)
            hurt.client.kubectl("label", "node", first, f"{PLACE}-")
            hurt.client.kubectl("label", "node", *others, f"{PLACE}=here")
        finally:
            hurt.now()
            nodes.start_kubelet(first)
        hurt.until_next_step()
    finally:
        hurt.client.kubectl("label", "node", first, *others, f"{PLACE}-")


def _bound(hurt: Hurt, node: str) -> bool:
    return any(pod["spec"].get("nodeName") == node for pod in hurt.job.all_pods)


# ---------------------------------------------------------------------------------------------------------------- nodes


def node_killed(hurt: Hurt) -> None:
    """It comes back when the job has moved on, and ends the pod that it had."""
    node, old = hurt.node(1), hurt.pod(1)
    os.kill(_kubelet(node), signal.SIGSTOP)  # else it may still say in its last moment that the container has ended
    hurt.now()
    hurt.stage.cluster.kill_node(node)
    try:
        hurt.until_next_step()
    finally:
        hurt.stage.cluster.start_node(node)
    hurt.job.until("the old pod's end", lambda: old not in hurt.job.pods, WITHIN_SECONDS)


def drained(hurt: Hurt) -> None:
    """Drain the node of host 1, of this job's pods; trainers that stand still go on once its pod has to end."""
    node, old = hurt.node(1), hurt.pod(1)
    selector = f"--pod-selector=shardwise.dev/job={hurt.job.name}"
    words = ("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", selector, "--timeout=120s")
    try:
        with ThreadPoolExecutor(1) as threads:
            hurt.now()
            drain = threads.submit(hurt.client.kubectl, *words)
            hurt.job.until("the eviction", lambda: old not in hurt.job.pods, WITHIN_SECONDS)
            hurt.let_go()
            drain.result()
        hurt.until_next_step()
    finally:
        hurt.client.kubectl("uncordon", node)


def tainted(hurt: Hurt) -> None:
    """Keep everybody off the node of host 1."""
    node = hurt.node(1)
    hurt.now()
    hurt.client.kubectl("taint", "node", node, "test.shardwise.dev/away=yes:NoExecute")
    try:
        hurt.until_next_step()
    finally:
        hurt.client.kubectl("taint", "node", node, "test.shardwise.dev/away-")


# ------------------------------------------------------------------------------------------------------- what is around


def full(hurt: Hurt) -> None:
    """The volume has no room left for a while, in which nothing of the run's files can say so."""
    hurt.now()
    hurt.fill_volume()
    try:
        hurt.until_seconds(_FULL_SECONDS)
    finally:
        hurt.empty_volume()


def operator_killed(hurt: Hurt) -> None:
    """Remove the operator's pods by force."""
    hurt.now()
    hurt.client.kubectl("--namespace", SYSTEM, "delete", "pods", "--all", "--grace-period=0", "--force")


def api_server_frozen(hurt: Hurt) -> None:
    """Have the API server stand still for a minute."""
    (server,) = (pid for known, pid, _ in processes.recorded() if known == "kube-apiserver")
    hurt.now()
    os.kill(server, signal.SIGSTOP)
    try:
        hurt.until_seconds(_OUTAGE_SECONDS)
    finally:
        os.kill(server, signal.SIGCONT)
    wait("the API server", lambda: hurt.client.answers("/readyz"), WITHIN_SECONDS)


def _kubelet(node: str) -> int:
    """The process of a node's kubelet."""
    (pid,) = (pid for known, pid, _ in processes.recorded() if known == f"{node}-kubelet")
    return pid
