"""What the test cluster needs of the system: installed as root on Debian, named elsewhere. Called by the verbs."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.commands import ClusterError, retry, say

_SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Package:
    """A Debian package, and a file of it or a program on the path that shows that it is there."""

    name: str
    shown_by: str

    @property
    def present(self) -> bool:
        """Whether it is on this machine, from whatever source."""
        if self.shown_by.startswith("/"):
            return Path(self.shown_by).exists()
        return shutil.which(self.shown_by, path=f"{os.environ.get('PATH', '')}:{_SEARCH}") is not None


PROMTOOL = Package("prometheus", "promtool")  # the tests of metrics, alerts and the Grafana board need this one program
CHROMIUM = Package("chromium-headless-shell", "chromium-headless-shell")  # Chromium without what draws on a screen
LUA = Package("lua5.1", "lua5.1")  # the version that Argo CD's own interpreter speaks
API_SERVER = (Package("openssl", "openssl"), Package("util-linux", "setpriv"))
IMAGES = (
    Package("buildah", "buildah"),
    Package("debootstrap", "debootstrap"),
    Package("ca-certificates", "/etc/ssl/certs/ca-certificates.crt"),
)
NODES = (
    Package("containerd", "containerd"),
    Package("runc", "runc"),
    Package("containernetworking-plugins", "/usr/lib/cni/bridge"),
    Package("iproute2", "ip"),
    Package("iptables", "iptables"),  # the bridge plugin asks for it
    Package("nftables", "nft"),
    Package("ipset", "ipset"),
    Package("mount", "mount"),
)


def require(*packages: Package) -> None:
    """Make sure that the packages are there.

    Raises:
        ClusterError: some are missing, and this is not root on Debian, or apt-get failed.
    """
    missing = [package for package in packages if not package.present]
    if not missing:
        return
    names = " ".join(package.name for package in missing)
    if os.geteuid() or not shutil.which("apt-get"):
        programs = ", ".join(package.shown_by for package in missing)
        raise ClusterError(
            f"not on this machine: {programs}. On Debian: apt-get install {names}. As root there it is done for you."
        )
    say(f"installing the system packages {names}")
    quiet = ("-o", "Dpkg::Use-Pty=0", "--quiet", "--yes", "--no-install-recommends")
    retry("apt-get", "update", "--quiet")
    retry("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", *quiet, *names.split())
