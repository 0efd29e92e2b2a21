"""The kind cluster as tests see it. Called by the fixtures (`tests/cluster/fixtures.py`), where KIND=1."""

import base64
from functools import cached_property
from pathlib import Path

import yaml
from tests.cluster.client import Client
from tests.cluster.cluster import Cluster
from tests.cluster.kind import engine, lifecycle
from tests.cluster.kind.places import KUBECONFIG, RUN, WORKERS
from tests.cluster.volume import CLAIM


class Kind(Cluster):
    """One control plane and two workers, each a container."""

    name = "tests.cluster.kind"
    kubeconfig = KUBECONFIG
    run_folder = RUN

    @property
    def is_up(self) -> bool:
        """Whether it is there now."""
        return lifecycle.is_up()

    @property
    def nodes(self) -> list[str]:
        """The workers: nothing of a test runs on the control plane."""
        return [name for name in WORKERS if name in lifecycle.ready_nodes()]

    @property
    def address(self) -> str:
        """The machine's in the network of the nodes."""
        return lifecycle.gateway()

    @property
    def enforces_policies(self) -> bool:
        """Whether the nodes are kind's published image: its network does, that of the image made here does not."""
        return not engine.is_ours()

    @cached_property
    def client(self) -> Client:
        """Its administrator, as kind's kubeconfig says."""
        config = yaml.safe_load(self.kubeconfig.read_text(encoding="utf-8"))
        server, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        folder = self.run_folder / "pki"
        folder.mkdir(mode=0o700, exist_ok=True)
        found = {
            "ca.crt": server["certificate-authority-data"],
            "admin.crt": user["client-certificate-data"],
            "admin.key": user["client-key-data"],
        }
        for name, content in found.items():
            (folder / name).write_bytes(base64.b64decode(content))
        return Client(server["server"], folder, self.kubeconfig, self.programs)

    def make_volume(self, namespace: str, claim: str = CLAIM) -> Path:
        """Make a claim in the namespace; the folder behind it."""
        return lifecycle.make_volume(namespace, claim)

    def erase(self, folder: Path) -> None:
        """Remove a folder of a volume by way of a node: the user of Docker need not be root."""
        lifecycle.erase(folder)

    def kill_control_plane(self) -> None:
        """End it at once; `start_control_plane` before the test ends."""
        lifecycle.kill_node()

    def start_control_plane(self) -> None:
        """Boot it again."""
        lifecycle.start_node()
