"""The cluster as a whole: up, down, and what it is now. Called by the verbs, and so by the fixtures."""

import os
from concurrent.futures import ThreadPoolExecutor

from tests.cluster import cgroups, control_plane, network, nodes, processes, volume
from tests.cluster.base_images import ensure_pause
from tests.cluster.commands import ClusterError, run, say, wait
from tests.cluster.control_plane import client
from tests.cluster.loading import export
from tests.cluster.packages import API_SERVER, IMAGES, NODES, require
from tests.cluster.places import MAX_NODES, PAUSE_IMAGE, RUN, RUN_BYTES, VOLUME, node_names
from tests.cluster.programs import programs


def impossible() -> str | None:
    """Why this machine cannot run nodes; None where it can."""
    if os.geteuid():
        return "nodes need root: they make namespaces, cgroups and mounts"
    if not cgroups.controllers():
        return "nodes need cgroup version 1; this machine has version 2"
    if not cgroups.writable():
        return "nodes need cgroups that can be written; this machine's are read-only"
    return None


def require_all() -> None:
    """Make sure that the system packages of all the cluster are there."""
    require(*API_SERVER, *IMAGES, *NODES)


def is_up() -> bool:
    """Whether a cluster is up; what a crash or a reboot has left of one is not."""
    return "kube-apiserver" in processes.running()


def up(number: int, grace_seconds: int) -> None:
    """Start the control plane and so many nodes, and wait until all is ready.

    Args:
        number: of nodes, 1 to 9.
        grace_seconds: silence after which a node counts as dead; Kubernetes's own is 50.

    Raises:
        ClusterError: a cluster is up, this machine cannot run one, or something did not start.
    """
    if not 1 <= number <= MAX_NODES:
        raise ClusterError(f"{number} nodes: expected 1 to {MAX_NODES}")
    if reason := impossible():
        raise ClusterError(reason)
    if is_up():
        raise ClusterError(
            "a cluster is up already: `.venv/bin/python -m tests.cluster env` prints the lines that point kubectl and "
            "helm at it, `make cluster-down KIND=0` ends it"
        )
    require_all()
    programs()
    ensure_pause()
    down()  # what a crash may have left
    names = [f"node{one}" for one in range(1, number + 1)]
    _make_run_directory()
    control_plane.make_certificates(names)
    network.make(names)
    say("starting the control plane")
    control_plane.start(grace_seconds)
    say(f"starting {number} nodes")
    export(PAUSE_IMAGE)
    for name in names:
        nodes.configure(name)
    with ThreadPoolExecutor() as pool:
        list(pool.map(nodes.boot, names))
    wait("all nodes to be ready", lambda: set(names) <= client().ready_nodes, hint=f"See {processes.LOGS}")
    network.enforce_policies(names[0])
    account = "/api/v1/namespaces/default/serviceaccounts/default"
    wait("the default service account", lambda: client().answers(account), hint=f"See {processes.LOGS}")
    volume.make("default")


def down() -> None:
    """End everything and remove all that `up` has made; what is not there is no failure."""
    for name in node_names():
        cgroups.kill(f"{cgroups.ROOT}/{name}")
    network.allow_everything()
    processes.end(*(name for name, _, _ in processes.recorded()))
    cgroups.remove(cgroups.ROOT)
    network.remove()
    nodes.unmount_below(RUN)
    if RUN.is_mount():
        run("umount", RUN)  # a shell whose folder it is keeps it busy
    if RUN.exists():
        RUN.rmdir()


def describe() -> str:
    """What runs, how much memory it takes, and the nodes as the API server sees them."""
    if not is_up():
        return "down"
    rows = [(name, str(pid) if alive else "gone", pid) for name, pid, alive in processes.recorded()]
    known = {pid for _, _, pid in rows}
    others = {pid for node in node_names() for pid in cgroups.members(f"{cgroups.ROOT}/{node}")} - known
    sizes = [(name, shown, processes.resident_bytes(pid)) for name, shown, pid in rows]
    sizes.append(("shims and pods", str(len(others)), sum(map(processes.resident_bytes, others))))
    sizes.append(("together", "", sum(size for _, _, size in sizes)))
    table = "\n".join(f"{name:<26} {shown:>8} {size / 2**20:7.0f} MiB" for name, shown, size in sizes)
    return f"{table}\n\n{client().kubectl('get', 'nodes', '--output=wide', '--selector=type!=kwok')}"


def _make_run_directory() -> None:
    RUN.mkdir()
    # In memory: on a disk, deleting the unpacked images alone can take a minute.
    run("mount", "-t", "tmpfs", "-o", f"mode=0755,size={RUN_BYTES}", "shardwise", RUN)
    for name in ("log", "pids", "nodes"):
        (RUN / name).mkdir()
    VOLUME.mkdir()
    VOLUME.chmod(0o777)  # the pods of a job run as a user that owns nothing here
