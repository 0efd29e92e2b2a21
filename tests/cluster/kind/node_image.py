"""A node image for kind from Debian packages and Go modules alone, where no registry is in reach. Called by the verbs.

It holds what kind asks of one: systemd on the console, containerd, kubeadm and kubelet, the images of the control
plane, and kind's two manifests. It is made once for each content of these sources, and kept by the Docker of our own.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.commands import retry, run, say
from tests.cluster.kind.engine import docker, environment
from tests.cluster.kind.places import BASE_IMAGE, CACHE, NODE_IMAGE, SOURCE
from tests.cluster.kind.programs import fingerprint, kubernetes_version, node_programs

_PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "containerd", "runc", "containernetworking-plugins", "iproute2", "nftables"),
    *("iptables", "kmod", "util-linux", "mount", "procps", "ca-certificates", "ethtool", "conntrack", "iputils-ping"),
)
_TRIMMED = ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale")
# What the pods of the control plane are called by, all in the program `kube`.
_COMPONENTS = (
    *("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy"),
    "node-network",
)
_NETWORK_IMAGE = "localhost/node-network:1"


def ensure() -> str:
    """The name of the node image; makes it first where it is missing, which takes a minute and the compiler's minutes.

    Raises:
        ClusterError: no Go, no Debian mirror, or a step of the build failed.
    """
    tag = fingerprint(*(SOURCE / folder for folder in ("programs", "images", "node")))
    image = f"{NODE_IMAGE}:{tag}"
    if docker("images", "--quiet", image).strip():
        return image
    programs = node_programs()
    if not docker("images", "--quiet", BASE_IMAGE).strip():
        _make_base()
    with _folder() as context:
        say("making the images of the control plane")
        pause = _make_component_images(context / "images", programs, context / "images.tar")
        say(f"making {image}")
        _make_node(context / "node", programs, context / "images.tar", pause, image)
    for line in docker("images", "--format", "{{.Repository}}:{{.Tag}}", NODE_IMAGE).splitlines():
        if line != image:  # of earlier sources
            docker("rmi", line)
    return image


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder beside the programs, so that they can be linked into it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="build-") as folder:
        yield Path(folder)


def _make_base() -> None:
    say(f"making {BASE_IMAGE}: about a minute")
    with _folder() as folder:
        root = folder / "root"
        retry("debootstrap", "--variant=minbase", f"--include={','.join(_PACKAGES)}", "bookworm", root)
        for path in _TRIMMED:
            shutil.rmtree(root / path)
        run("tar", "--directory", root, "--create", "--file", folder / "root.tar", ".")
        docker("import", folder / "root.tar", BASE_IMAGE)


def _make_component_images(context: Path, programs: Path, archive: Path) -> str:
    """Save the pods' images, under the names that this kubeadm will ask for, into one archive; pause's name."""
    (context / "links").mkdir(parents=True)
    shutil.copy(SOURCE / "images" / "Dockerfile", context)
    for name in ("kube", "coredns", "pause"):
        os.link(programs / name, context / name)
    for name in _COMPONENTS:
        (context / "links" / name).symlink_to("kube")
    _build(context, "localhost/shardwise-kind-pause:build", "pause")
    _build(context, "localhost/shardwise-kind-coredns:build", "dns")
    _build(context, "localhost/shardwise-kind-kube:build", "kube")
    listed = run(programs / "kube", "kubeadm", "config", "images", "list", "--kubernetes-version", kubernetes_version())
    names = [_NETWORK_IMAGE, *(line for line in listed.splitlines() if ":" in line and " " not in line)]
    for name in names:
        part = name.rpartition("/")[2].partition(":")[0]
        docker("tag", f"localhost/shardwise-kind-{part if part in {'coredns', 'pause'} else 'kube'}:build", name)
    docker("save", "--output", archive, *names)
    docker("rmi", "--no-prune", *names)
    return next(name for name in names if "/pause:" in name)


def _make_node(context: Path, programs: Path, archive: Path, pause: str, image: str) -> None:
    shutil.copytree(SOURCE / "node", context)
    (context / "programs").mkdir()
    for name in ("kube", "coredns"):
        os.link(programs / name, context / "programs" / name)
    os.link(archive, context / "images.tar")
    (context / "version").write_text(kubernetes_version())
    config = context / "files" / "containerd.toml"
    config.write_text(config.read_text().replace("PAUSE_IMAGE", pause))
    _build(context, image)


def _build(context: Path, image: str, target: str = "") -> None:
    """Build with the builder that every Docker has; nothing in these files asks the network for anything."""
    options = ("--quiet", "--network", "none", "--build-arg", f"BASE={BASE_IMAGE}", "--tag", image)
    words = ("build", *options, *(("--target", target) if target else ()), context)
    run("docker", *words, environment={**environment(), "DOCKER_BUILDKIT": "0"})
