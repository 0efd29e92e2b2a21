"""What tests ask of a cluster, whichever it is: the bare one (`bare.py`) or kind (`tests/cluster/kind/cluster.py`)."""

import sys
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from tests.cluster.client import Client
from tests.cluster.commands import run
from tests.cluster.programs import locked, programs
from tests.cluster.volume import CLAIM, removal

_ROOT = Path(__file__).parents[2]


class Cluster(ABC):
    """The cluster of this machine: real nodes, shared by all tests of the run."""

    name: ClassVar[str]
    """Of the package whose command line brings it up and down."""
    kubeconfig: ClassVar[Path]
    """Of its administrator."""
    run_folder: ClassVar[Path]
    """Goes with the cluster."""

    @property
    def up_for_tests(self) -> Path:
        """There while it is up for the tests alone, and goes when the last of them is done."""
        return self.run_folder / "up-for-tests"

    @property
    @abstractmethod
    def is_up(self) -> bool:
        """Whether it is there now."""

    @property
    @abstractmethod
    def nodes(self) -> list[str]:
        """The nodes that run and take pods."""

    @property
    @abstractmethod
    def address(self) -> str:
        """An address of this machine that pods reach."""

    @property
    @abstractmethod
    def enforces_policies(self) -> bool:
        """Whether its network keeps out whom a NetworkPolicy does not let in."""

    @cached_property
    @abstractmethod
    def client(self) -> Client:
        """Its administrator."""

    @abstractmethod
    def make_volume(self, namespace: str, claim: str = CLAIM) -> Path:
        """Make a claim in the namespace that pods of every node write to; the folder of this machine behind it.

        Claims of other names than `runs` are one folder in all namespaces, and so in all tests.
        """

    @abstractmethod
    def erase(self, folder: Path) -> None:
        """Remove a folder of a volume, whoever owns what pods have written there; nothing where there is none."""

    def remove_volumes(self, namespace: str) -> None:
        """Remove what stands behind the namespace's claims; these go with it, and the folders with the cluster."""
        self.client.kubectl(*removal(namespace))

    @cached_property
    def programs(self) -> Path:
        """The folder of kubectl and Helm."""
        return programs()

    def up(self) -> None:
        """Bring it up, with two nodes that take pods."""
        self._verb("up")

    def down(self) -> None:
        """Take it down."""
        self._verb("down")

    def load(self, target: str) -> str:
        """Give the image of a target of `images.build` to every node, built first where it is not; its name."""
        with locked("image-builds"):
            image = run(sys.executable, "-m", "images.build", target, folder=_ROOT).splitlines()[-1]
            self.load_image(image)
        return image

    def load_image(self, image: str) -> None:
        """Give an image of this machine's store to every node."""
        self._verb("load", image)

    def _verb(self, *words: str) -> None:
        """Run the command line: what it starts outlives this process, and its progress does not mix with pytest's."""
        run(sys.executable, "-m", self.name, *words, folder=_ROOT)
