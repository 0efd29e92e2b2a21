"""The Docker that the cluster runs in: the user's where one answers, else one of our own. Called by the verbs.

One of our own shares nothing with a user's: data, socket, containerd, cgroup and network are its own, and it changes
neither the machine's packet filter nor its forwarding. All of its processes are in one cgroup, so none is left over.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.cluster import cgroups
from tests.cluster.commands import ClusterError, attempt, run, say, wait
from tests.cluster.kind import network
from tests.cluster.kind.places import BRIDGE, CGROUP, DOCKER_DATA, DOCKER_SOCKET, NODE_NETWORK, RUN, SOURCE
from tests.cluster.lifecycle import impossible
from tests.cluster.nodes import unmount_below
from tests.cluster.packages import Package, require
from tests.cluster.processes import birth

PACKAGES = (
    Package("docker.io", "dockerd"),
    Package("containerd", "containerd"),
    Package("runc", "runc"),
    Package("debootstrap", "debootstrap"),
    Package("nftables", "nft"),
    Package("iptables", "iptables"),
    Package("iproute2", "ip"),
)
_ENGINE = f"{CGROUP}/engine"
_CONTAINERD = RUN / "containerd"
_PID = RUN / "docker.pid"
# The shell enters the cgroup before it becomes the program, so that no process of it is ever outside.
_ENTER = 'for file in $1; do echo $$ > "$file"; done; shift; exec "$@"'


def is_ours() -> bool:
    """Whether a Docker of our own is up."""
    return DOCKER_SOCKET.exists() and bool(cgroups.members(_ENGINE))


def environment() -> Mapping[str, str]:
    """The variables by which docker and kind find the engine; none for the user's."""
    return {"DOCKER_HOST": f"unix://{DOCKER_SOCKET}"} if is_ours() else {}


def docker(*words: str | Path, stdin: str | None = None) -> str:
    """Run the docker command and return what it printed.

    Raises:
        ClusterError: it failed; the text has what it printed.
    """
    return run("docker", *words, environment=environment(), stdin=stdin)


def answers() -> bool:
    """Whether the engine answers: ours where it is up, else the user's."""
    try:
        return attempt("docker", "info", environment=environment())[0] == 0
    except FileNotFoundError:  # no docker command either
        return False


def ensure() -> None:
    """Make sure that a Docker answers; start one of our own where none does.

    Raises:
        ClusterError: none answers, and this machine cannot run one of our own.
    """
    if answers():
        return
    if reason := impossible():
        raise ClusterError(f"no Docker answers (`docker info`), and one of our own cannot run here: {reason}")
    require(*PACKAGES)
    remove()  # what a crash may have left
    say("no Docker answers: starting one of our own")
    with ExitStack() as undo:
        undo.callback(remove)
        RUN.mkdir(parents=True)
        cgroups.make(_ENGINE)
        network.keep_inside()
        _start_containerd()
        _start_dockerd()
        _make_network()
        undo.pop_all()


def remove() -> None:
    """End a Docker of our own and remove all that it has made but its images; nothing where none is up."""
    if _PID.exists() and (pid := int(_PID.read_text())) in cgroups.members(_ENGINE):
        os.kill(pid, signal.SIGTERM)  # it ends its containers first
        wait("the end of Docker", partial(_gone, pid), 60, hint=f"See {RUN}/dockerd.log")
    cgroups.kill(CGROUP)
    cgroups.remove(CGROUP)
    network.remove()
    unmount_below(RUN)
    unmount_below(DOCKER_DATA)
    for folder in (Path("/run/docker/plugins"), Path("/run/docker")):  # it makes them wherever it runs
        if folder.exists() and not any(folder.iterdir()):
            folder.rmdir()
    if RUN.exists():
        shutil.rmtree(RUN)


def _gone(pid: int) -> bool:
    return birth(pid) is None


def _start_containerd() -> None:
    _CONTAINERD.mkdir()
    config = _CONTAINERD / "config.toml"
    config.write_text(
        f"""version = 2
root = "{DOCKER_DATA}/containerd"
state = "{_CONTAINERD}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "{_CONTAINERD}/socket"
[plugins."io.containerd.internal.v1.opt"]
  path = "{_CONTAINERD}/opt"
"""
    )
    _start("containerd", "--config", config)
    wait("containerd", lambda: attempt("ctr", "--address", _CONTAINERD / "socket", "version")[0] == 0, hint=_see())


def _start_dockerd() -> None:
    _start(
        "dockerd",
        *("--data-root", DOCKER_DATA),
        *("--exec-root", RUN / "exec"),
        *("--pidfile", _PID),
        *("--host", f"unix://{DOCKER_SOCKET}"),
        *("--containerd", _CONTAINERD / "socket"),
        *("--config-file", RUN / "daemon.json"),  # else it would read the one of the machine
        *("--add-runtime", f"bounded={SOURCE / 'oci_runtime.py'}", "--default-runtime", "bounded"),
        *("--cgroup-parent", f"/{CGROUP}/containers"),
        *("--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false"),
    )
    wait("Docker", answers, hint=_see())


def _make_network() -> None:
    """Make the network that kind puts its nodes into. Nodes of a crash, and a network of other ranges, go first."""
    if stale := docker("ps", "--all", "--quiet").split():
        docker("rm", "--force", "--volumes", *stale)
    attempt("docker", "network", "rm", "kind", environment=environment())
    docker("network", "create", "--subnet", NODE_NETWORK, "--opt", f"com.docker.network.bridge.name={BRIDGE}", "kind")


def _start(program: str, *arguments: str | Path) -> None:
    """Start a program in the background, in the engine's cgroup, that outlives this process."""
    files = " ".join(map(str, cgroups.procs_files(_ENGINE)))
    (RUN / "daemon.json").write_text("{}")
    with (RUN / f"{program}.log").open("ab") as log:
        subprocess.run(
            ["setsid", "--fork", "/bin/sh", "-c", _ENTER, "sh", files, program, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=True,
        )


def _see() -> str:
    return f"See the logs in {RUN}."
