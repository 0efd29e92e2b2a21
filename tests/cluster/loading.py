"""Images on their way from buildah's store to the nodes, without a registry. Called by the verb `load` and by `nodes`.

All images lie together in one OCI layout. A node is sent only the layers that it lacks, and afterwards its copy of each
is a hard link to the layout's: blobs are named by their content, so all nodes together hold each one once.
"""

import io
import json
import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.cluster.commands import ClusterError, run, say
from tests.cluster.places import BUILDAH_ENVIRONMENT, LAYOUT, RUN

_NAME = "org.opencontainers.image.ref.name"


def load(image: str, nodes: list[str]) -> None:
    """Give an image of buildah's store to the nodes.

    Raises:
        ClusterError: no node runs, there is no such image, or a node refused it.
    """
    if not nodes:
        raise ClusterError("no node runs; `up` starts the cluster")
    words = ("buildah", "inspect", "--type", "image", "--format", "{{.FromImageID}}", image)
    identity = run(*words, environment=BUILDAH_ENVIRONMENT).strip()
    lacking = [name for name in nodes if not _holds(name, image, identity)]
    if not lacking:
        return
    export(image)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: load_into(name, image), lacking))
    say(f"loaded {image} into {', '.join(lacking)}")


def export(image: str) -> None:
    """Copy the image into the layout. Nodes unpack zstd in two thirds of gzip's time."""
    options = ("--quiet", "--compression-format", "zstd")
    run("buildah", "push", *options, image, f"oci:{LAYOUT}:{image}", environment=BUILDAH_ENVIRONMENT)


def load_into(node: str, image: str) -> None:
    """Import an image of the layout into the node's containerd."""
    index = json.loads((LAYOUT / "index.json").read_text())
    manifest = next(one for one in index["manifests"] if one.get("annotations", {}).get(_NAME) == image)
    manifest["annotations"]["io.containerd.image.name"] = image
    index["manifests"] = [manifest]
    content = json.loads(_blob(LAYOUT, manifest["digest"]).read_text())
    held = held_blobs(node)
    sent = [manifest, content["config"], *(layer for layer in content["layers"] if layer["digest"] not in held)]
    _import(node, image, index, {item["digest"] for item in sent})
    _share(node, [item["digest"] for item in sent])


def held_blobs(node: str) -> set[str]:
    """The digests of all that the node's containerd holds."""
    words = ("--address", containerd_socket(node), "--namespace", "k8s.io", "content", "ls", "--quiet")
    return set(run("ctr", *words).split())


def containerd_socket(node: str) -> Path:
    """Where the node's containerd listens."""
    return RUN / "nodes" / node / "containerd.sock"


def _holds(node: str, image: str, identity: str) -> bool:
    """Whether the node has the image by this name; it names each image by its identity too."""
    words = ("--address", containerd_socket(node), "--namespace", "k8s.io", "images", "ls")
    return is_listed(run("ctr", *words), image, identity)


def is_listed(listing: str, image: str, identity: str) -> bool:
    """Whether `ctr images ls` of a node shows the image, by its name and by its identity, 64 hexadecimal digits."""
    rows = (line.split() for line in listing.splitlines()[1:])
    digests = {row[0]: row[2] for row in rows}
    return image in digests and digests.get(f"sha256:{identity}") == digests[image]


def _import(node: str, image: str, index: dict[str, Any], digests: set[str]) -> None:
    words = ("--address", str(containerd_socket(node)), "--namespace", "k8s.io", "images", "import", "-")
    with subprocess.Popen(
        ["ctr", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as importing:
        with tarfile.open(fileobj=importing.stdin, mode="w|") as archive:
            archive.add(LAYOUT / "oci-layout", "oci-layout")
            for digest in digests:
                path = _blob(LAYOUT, digest)
                archive.add(path, str(path.relative_to(LAYOUT)))
            text = json.dumps(index).encode()
            entry = tarfile.TarInfo("index.json")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
        printed, _ = importing.communicate()
    if importing.returncode:
        raise ClusterError(f"loading {image} into {node}:\n{printed.decode(errors='replace')}")


def _share(node: str, digests: list[str]) -> None:
    store = RUN / "nodes" / node / "containerd/root/io.containerd.content.v1.content"
    for digest in digests:
        path = _blob(store, digest)
        link = path.with_suffix(".link")
        link.unlink(missing_ok=True)
        link.hardlink_to(_blob(LAYOUT, digest))
        link.replace(path)


def _blob(store: Path, digest: str) -> Path:
    return store / "blobs" / digest.replace(":", "/")
