"""The bare cluster as tests see it: nodes that are processes of this machine. Called by the fixtures."""

import shutil
from functools import cached_property
from pathlib import Path

from tests.cluster import control_plane, lifecycle, nodes, volume
from tests.cluster.client import Client
from tests.cluster.cluster import Cluster
from tests.cluster.places import CONTROL_PLANE, KUBECONFIG, RUN


class Bare(Cluster):
    """Nodes that need no Docker; only here can one lose its power."""

    name = "tests.cluster"
    kubeconfig = KUBECONFIG
    run_folder = RUN

    @property
    def is_up(self) -> bool:
        """Whether it is there now."""
        return lifecycle.is_up()

    @property
    def nodes(self) -> list[str]:
        """The nodes that run."""
        return nodes.running_nodes()

    @property
    def address(self) -> str:
        """The control plane's: it is this machine."""
        return CONTROL_PLANE

    @property
    def enforces_policies(self) -> bool:
        """It does: all pods meet on one bridge, where a controller filters."""
        return True

    @cached_property
    def client(self) -> Client:
        """Its administrator."""
        return control_plane.client()

    def make_volume(self, namespace: str, claim: str = volume.CLAIM) -> Path:
        """Make a claim in the namespace; the folder behind it."""
        return volume.make(namespace, claim)

    def erase(self, folder: Path) -> None:
        """Remove a folder of a volume: nodes need root, and so whoever tests them is."""
        shutil.rmtree(folder, ignore_errors=True)

    def up(self) -> None:
        """Bring it up: two nodes, since more of them only take more copies of the images."""
        self._verb("up", "--nodes=2")

    def kill_node(self, name: str) -> None:
        """Take a node's power; `start_node` before the test ends."""
        self._verb("kill-node", name.removeprefix("node"))

    def start_node(self, name: str) -> None:
        """Boot a node that was killed, and wait until it is ready."""
        self._verb("start-node", name.removeprefix("node"))
