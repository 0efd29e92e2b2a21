"""The release of the chart on the test cluster, as its administrator handles it with Helm. Called by the fixtures."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.cluster import Cluster
from tests.cluster.commands import attempt, run
from tests.cluster.places import CACHE
from tests.cluster.programs import locked, nobody_else
from tests.kubernetes.jobs import ROOT

SYSTEM = "shardwise-system"
_CHART = ROOT / "charts" / "shardwise"


class Release:
    """The release `shardwise` in `shardwise-system`; each verb waits until it has taken effect."""

    def __init__(self, cluster: Cluster) -> None:
        """It need not be installed."""
        self.client = cluster.client
        self.goes_with_the_cluster = cluster.up_for_tests.exists()
        self.made_for_tests = cluster.run_folder / "chart-for-tests"  # goes with the cluster
        self._helm = cluster.programs / "helm"

    @property
    def is_there(self) -> bool:
        """Whether it is installed."""
        return attempt(*self._command("status", "shardwise"))[0] == 0

    def install(self) -> None:
        """Install it, or give it the values that the chart has by itself."""
        self._run("upgrade", "--wait", "--install", "--reset-values", "--create-namespace", "shardwise", str(_CHART))

    def upgrade(self, **values: str) -> None:
        """Change values; all others are the chart's."""
        words = (f"--set={name}={value}" for name, value in values.items())
        self._run("upgrade", "--wait", "--reset-values", *words, "shardwise", str(_CHART))

    def rollback(self) -> None:
        """Go back to the revision before."""
        self._run("rollback", "--wait", "shardwise")

    def uninstall(self) -> None:
        """Remove it, the pods of its Deployment too: a Deployment is gone before them otherwise."""
        # The newer way to wait loses sight of what is deleted like this, now and then: helm/helm#31766.
        self._run("uninstall", "--wait=legacy", "shardwise", "--cascade=foreground")

    def _run(self, *words: str) -> None:
        run(*self._command(*words, "--timeout=5m"))

    def _command(self, *words: str) -> tuple[str, ...]:
        kubeconfig = str(self.client.kubeconfig)
        return str(self._helm), *words, "--kubeconfig", kubeconfig, "--namespace", SYSTEM


@contextmanager
def installed(release: Release) -> Iterator[None]:
    """The chart, installed from this tree: several processes of pytest share it, and the last one removes it.

    One that was there before them stays, and one on a cluster that is about to end.
    """
    with (CACHE / ".chart-users.lock").open("w") as users:
        with locked("chart"):
            if not release.is_there:
                release.made_for_tests.touch()
            release.install()
            fcntl.flock(users, fcntl.LOCK_SH)
        yield
        with locked("chart"):
            fcntl.flock(users, fcntl.LOCK_UN)
            if not release.goes_with_the_cluster and release.made_for_tests.exists() and nobody_else(users.fileno()):
                release.uninstall()
                release.made_for_tests.unlink()
