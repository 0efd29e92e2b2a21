"""The nodes: each is one containerd and one kubelet with folders, a cgroup and an address. Called by the verbs."""

import json
import shutil
from pathlib import Path

from tests.cluster import cgroups, network, processes
from tests.cluster.commands import ClusterError, attempt, say, wait
from tests.cluster.control_plane import client
from tests.cluster.loading import containerd_socket, held_blobs, load_into
from tests.cluster.places import (
    BRIDGE,
    CONTROL_PLANE,
    PAUSE_IMAGE,
    PKI,
    RUN,
    node_address,
    node_names,
    node_subnet,
)
from tests.cluster.programs import programs


def named(number: int) -> str:
    """The name of a node by its number.

    Raises:
        ClusterError: there is none; the text has those that there are.
    """
    name = f"node{number}"
    if name not in node_names():
        raise ClusterError(f"no {name}; there are: {', '.join(node_names()) or 'none, the cluster is down'}")
    return name


def running_nodes() -> list[str]:
    """The nodes that have not been killed."""
    alive = processes.running()
    return [name for name in node_names() if f"{name}-containerd" in alive]


def boot(name: str) -> None:
    """Start containerd, then, since a kubelet without its runtime ends, the kubelet."""
    home = RUN / "nodes" / name
    group = f"{cgroups.ROOT}/{name}/system"
    cgroups.make(group)
    processes.start(f"{name}-containerd", "containerd", "--config", home / "containerd.toml", cgroup=group)
    asked = ("ctr", "--address", containerd_socket(name), "version")
    wait(f"containerd of {name}", lambda: attempt(*asked)[0] == 0, hint=f"See {processes.LOGS}")
    if not held_blobs(name):
        load_into(name, PAUSE_IMAGE)
    start_kubelet(name)


def start_kubelet(name: str) -> None:
    """Start a node's kubelet; the pods that it finds go on."""
    home = RUN / "nodes" / name
    processes.start(
        f"{name}-kubelet",
        programs() / "kubelet",
        *(f"--config={home / 'kubelet.yaml'}", f"--kubeconfig={RUN / name}.kubeconfig"),
        *(f"--root-dir={home / 'kubelet'}", f"--hostname-override={name}", f"--node-ip={node_address(name)}"),
        cgroup=f"{cgroups.ROOT}/{name}/system",
    )


def end_kubelet(name: str) -> None:
    """Kill a node's kubelet; its containers run on."""
    processes.end(f"{name}-kubelet")


def kill(name: str) -> None:
    """Take its power. First silence, then the end: no connection is reset, as at a real host that dies."""
    network.silence(name)
    cgroups.kill(f"{cgroups.ROOT}/{name}")
    processes.end(f"{name}-kubelet", f"{name}-containerd")
    say(f"{name} is dead")


def boot_again(name: str) -> None:
    """Boot a node that was killed, and wait until it is ready.

    Raises:
        ClusterError: it runs.
    """
    if name in running_nodes():
        raise ClusterError(f"{name} is running; kill-node ends it")
    home = RUN / "nodes" / name
    # What a power cut takes from a host: mounts, network namespaces, /run.
    unmount_below(home)
    shutil.rmtree(home / "containerd" / "state", ignore_errors=True)
    cgroups.remove(f"{cgroups.ROOT}/{name}")
    network.connect(name)
    boot(name)
    wait(f"{name} to be ready", lambda: name in client().ready_nodes, hint=f"See {processes.LOGS}")
    say(f"{name} is ready")


def unmount_below(folder: Path) -> None:
    """Unmount everything in the folder; one point may carry several mounts."""
    while points := _mounts_below(folder):
        for point in points:
            attempt("umount", "--lazy", point)


def _mounts_below(folder: Path) -> list[str]:
    """Mount points in the folder, innermost first."""
    points = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return sorted((point for point in points if point.startswith(f"{folder}/")), reverse=True)


# --------------------------------------------------------------------------------------------------- the configuration


def configure(name: str) -> None:
    """Write what containerd, the bridge plugin and the kubelet of a new node read."""
    home = RUN / "nodes" / name
    (home / "cni").mkdir(parents=True)
    (home / "containerd.toml").write_text(_containerd(home))
    (home / "cni" / "10-bridge.conflist").write_text(json.dumps(_pod_network(name, home), indent=2))
    (home / "kubelet.yaml").write_text(_kubelet(name, home))


def _containerd(home: Path) -> str:
    return f"""\
version = 2
root = "{home}/containerd/root"
state = "{home}/containerd/state"
disabled_plugins = ["io.containerd.internal.v1.tracing"]

[grpc]
  address = "{home}/containerd.sock"

[plugins."io.containerd.internal.v1.opt"]
  path = "{home}/containerd/opt"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true  # else runc fails where root has no CAP_SYS_RESOURCE
  netns_mounts_under_state_dir = true

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{home}/cni"

  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""


def _pod_network(name: str, home: Path) -> dict[str, object]:
    addresses = {
        "type": "host-local",
        "dataDir": f"{home}/cni/addresses",
        "ranges": [[{"subnet": node_subnet(name), "gateway": node_address(name)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    # Not isGateway: the plugin would want the bridge's only address, and the bridge has one per node.
    bridge = {"type": "bridge", "bridge": BRIDGE, "hairpinMode": True, "ipam": addresses}
    return {"cniVersion": "1.0.0", "name": f"shardwise-{name}", "plugins": [bridge]}


def _kubelet(name: str, home: Path) -> str:
    return f"""\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: {node_address(name)}
healthzBindAddress: {node_address(name)}
authentication:
  anonymous: {{enabled: false}}
  webhook: {{enabled: true}}
  x509: {{clientCAFile: {PKI}/ca.crt}}
authorization: {{mode: Webhook}}
tlsCertFile: {PKI}/{name}.crt
tlsPrivateKeyFile: {PKI}/{name}.key
containerRuntimeEndpoint: unix://{containerd_socket(name)}
cgroupDriver: cgroupfs
cgroupRoot: /{cgroups.ROOT}/{name}
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
clusterDNS: [{CONTROL_PLANE}]
clusterDomain: cluster.local
resolvConf: ""
podLogsDir: {home}/logs
volumePluginDir: {home}/volume-plugins
evictionHard: {{memory.available: 100Mi, nodefs.available: 1%}}
imageGCHighThresholdPercent: 100
nodeStatusUpdateFrequency: 4s
nodeLeaseDurationSeconds: 10
serializeImagePulls: false
"""
