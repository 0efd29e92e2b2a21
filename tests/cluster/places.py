"""Where the test cluster keeps things, its addresses and its names. Every other module here reads them.

The cache outlives the cluster: `<cache>/<fingerprint>` holds the programs compiled from exactly these sources. `run` is
the cluster of this machine while it is up; there is one at a time, since its addresses are fixed.
"""

import os
from pathlib import Path

SOURCE = Path(__file__).resolve().parent
_HOME_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
CACHE = Path(os.environ.get("SHARDWISE_CLUSTER_CACHE") or _HOME_CACHE / "shardwise" / "cluster")

RUN = CACHE / "run"
PKI = RUN / "pki"
LAYOUT = RUN / "images"  # an OCI image layout: all loaded images together
VOLUME = RUN / "volume"  # what every node sees under the same path: the directory of runs
KUBECONFIG = RUN / "admin.kubeconfig"
RUN_BYTES = "12g"  # the most that the cluster's tmpfs may take; it takes what is in it

# Addresses: 10.244.0.1 is the control plane, 10.244.N.1 is node N and the gateway of its pods, 10.244.N.0/24.
BRIDGE = "shardwise0"
POD_NETWORK = "10.244.0.0/16"
CONTROL_PLANE = "10.244.0.1"
SERVICE_NETWORK = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
API_URL = f"https://{CONTROL_PLANE}:6443"
MAX_NODES = 9

PAUSE_IMAGE = "localhost/pause:1"
BASE_IMAGE = "localhost/python:3.11-slim-bookworm"
# No daemon and no user namespaces of its own; layers kept, or every build would install everything again.
BUILDAH_ENVIRONMENT = {"STORAGE_DRIVER": "overlay", "BUILDAH_ISOLATION": "chroot", "BUILDAH_LAYERS": "true"}


def node_address(name: str) -> str:
    """The address of node `nodeN`, and the gateway of its pods."""
    return f"10.244.{name.removeprefix('node')}.1"


def node_subnet(name: str) -> str:
    """The addresses of the pods of node `nodeN`."""
    return f"10.244.{name.removeprefix('node')}.0/24"


def node_names() -> list[str]:
    """The nodes of the cluster that is up, dead ones too; none where it is down."""
    return sorted(path.name for path in (RUN / "nodes").glob("node*"))
