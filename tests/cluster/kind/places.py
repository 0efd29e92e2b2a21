"""Where the kind cluster keeps things, its addresses and its names. Every other module here reads them.

The cache outlives the cluster: `<cache>/<fingerprint>` holds the programs compiled from exactly these sources, `docker`
the images of a Docker of our own. `run` is the cluster while it is up; there is one at a time.
"""

import os
from pathlib import Path

SOURCE = Path(__file__).resolve().parent
_HOME_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
CACHE = Path(os.environ.get("SHARDWISE_KIND_CACHE") or _HOME_CACHE / "shardwise" / "kind")
DOCKER_DATA = CACHE / "docker"

RUN = CACHE / "run"
KUBECONFIG = RUN / "kubeconfig"
VOLUME = RUN / "volume"  # a folder of this machine that every node sees: the directory of runs
DOCKER_SOCKET = RUN / "docker.sock"

CLUSTER = "shardwise"
CONTROL_PLANE = f"{CLUSTER}-control-plane"  # the names that kind gives to the nodes' containers
WORKERS = (f"{CLUSTER}-worker", f"{CLUSTER}-worker2")
NODES = (CONTROL_PLANE, *WORKERS)
NODE_VOLUME = "/runs"  # where a node sees VOLUME

# Other ranges than the bare cluster's (tests/cluster), so that both may be up on one machine.
POD_NETWORK = "10.248.0.0/16"
SERVICE_NETWORK = "10.98.0.0/16"
# Of a Docker of our own; a user's keeps its own.
NODE_NETWORK = "10.97.0.0/24"
BRIDGE = "shardwise-kind"
CGROUP = "shardwise-kind"

BASE_IMAGE = "localhost/shardwise-kind-base:bookworm"
NODE_IMAGE = "localhost/shardwise-kind-node"
