"""The kind cluster as a whole: up, down, images into it, what it is now. Called by the verbs, and so by the tests.

Where the user's Docker answers, the nodes are kind's published image; in a Docker of our own, one made here.
"""

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster.commands import ClusterError, attempt, run, say, wait
from tests.cluster.kind import engine, node_image
from tests.cluster.kind.places import (
    CLUSTER,
    CONTROL_PLANE,
    KUBECONFIG,
    NODE_VOLUME,
    NODES,
    POD_NETWORK,
    RUN,
    SERVICE_NETWORK,
    VOLUME,
    WORKERS,
)
from tests.cluster.kind.programs import kind
from tests.cluster.loading import is_listed
from tests.cluster.places import BUILDAH_ENVIRONMENT
from tests.cluster.volume import CLAIM, folder_name, objects

# How an image is written as an archive that every containerd imports.
_SAVES: dict[str, Callable[[str, Path], tuple[str | Path, ...]]] = {
    "podman": lambda image, archive: ("save", "--format", "docker-archive", "--output", archive, image),
    "buildah": lambda image, archive: ("push", "--quiet", image, f"docker-archive:{archive}:{image}"),
}


def is_up() -> bool:
    """Whether the cluster exists, with whatever nodes that run."""
    return KUBECONFIG.exists() and engine.answers() and CLUSTER in _kind("get", "clusters").split()


def prepare() -> None:
    """Start Docker and make what is not made yet: the program kind and, in a Docker of our own, the node image."""
    engine.ensure()
    kind()
    if engine.is_ours():
        node_image.ensure()


def up() -> None:
    """Create the cluster, one control plane and two workers, and wait until all is ready.

    Raises:
        ClusterError: a cluster is up, no Docker can be had, or something did not start.
    """
    if is_up():
        raise ClusterError("a kind cluster is up; `down` ends it")
    prepare()
    RUN.mkdir(parents=True, exist_ok=True)
    VOLUME.mkdir(exist_ok=True)
    image = ("--image", node_image.ensure()) if engine.is_ours() else ()
    say("creating the cluster")
    words = ("--name", CLUSTER, "--kubeconfig", KUBECONFIG, "--config", "-", "--wait", "180s", *image)
    _kind("create", "cluster", *words, stdin=json.dumps(_config()))
    wait("all nodes to be ready", lambda: set(NODES) <= ready_nodes())
    account = ("get", "serviceaccount", "default")
    wait(
        "the default service account",
        lambda: attempt(*_kubectl_command(), *account, environment=_environment())[0] == 0,
    )
    make_volume("default")


def down() -> None:
    """Delete the cluster, end a Docker of our own, and remove all that they have made but the cached images."""
    if is_up():
        for folder in VOLUME.iterdir():
            erase(folder)
    if engine.answers():
        _kind("delete", "cluster", "--name", CLUSTER, "--kubeconfig", KUBECONFIG)
    engine.remove()


def make_volume(namespace: str, claim: str = CLAIM) -> Path:
    """Make a claim and its volume in the namespace; the folder of this machine that stands behind it."""
    name = folder_name(namespace, claim)
    folder = VOLUME / name
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)  # the pods of a job run as a user that owns nothing here
    manifest = json.dumps(objects(namespace, claim, Path(NODE_VOLUME) / name))
    run(*_kubectl_command("-i"), "apply", "--server-side", "-f", "-", environment=_environment(), stdin=manifest)
    return folder


def erase(folder: Path) -> None:
    """Remove a folder of a volume, as a worker's root: pods have written there as a user of their own."""
    engine.docker("exec", WORKERS[0], "rm", "-rf", Path(NODE_VOLUME) / folder.relative_to(VOLUME))


def gateway() -> str:
    """This machine's address in the network of the nodes."""
    return engine.docker("inspect", "--format", "{{.NetworkSettings.Networks.kind.Gateway}}", WORKERS[0]).strip()


def load(image: str) -> None:
    """Give an image to the workers, which run all pods of jobs: Docker's where it has it, else podman's or buildah's.

    Raises:
        ClusterError: nobody has such an image, or no cluster is up.
    """
    if not is_up():
        raise ClusterError("no kind cluster is up; `up` creates one")
    engine_holds, identity = _find(image)
    listing = ("exec", WORKERS[-1], "ctr", "--namespace", "k8s.io", "images", "ls")
    if is_listed(engine.docker(*listing), image, identity):
        return
    where = ("--name", CLUSTER, "--nodes", ",".join(WORKERS))
    if engine_holds == "docker":
        _kind("load", "docker-image", image, *where)
    else:
        with tempfile.TemporaryDirectory(dir=RUN, prefix="image-") as folder:
            archive = Path(folder) / "image.tar"
            run(engine_holds, *_SAVES[engine_holds](image, archive), environment=BUILDAH_ENVIRONMENT)
            _kind("load", "image-archive", archive, *where)
    say(f"loaded {image} into {', '.join(WORKERS)}")


def kill_node(name: str = CONTROL_PLANE) -> None:
    """End a node's container at once, with all that runs in it."""
    engine.docker("kill", name)


def start_node(name: str = CONTROL_PLANE) -> None:
    """Boot a node that was killed; what was on its disk is there."""
    engine.docker("start", name)


def ready_nodes() -> set[str]:
    """The nodes that the API server calls ready; none while it does not answer."""
    code, printed = attempt(*_kubectl_command(), "get", "nodes", "--output=json", environment=_environment())
    if code:
        return set()
    items: list[dict[str, Any]] = json.loads(printed)["items"]
    return {
        node["metadata"]["name"]
        for node in items
        if any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"]["conditions"])
    }


def describe() -> str:
    """The nodes as the API server sees them, and the memory of their containers."""
    if not is_up():
        return "down"
    nodes = run(*_kubectl_command(), "get", "nodes", "--output=wide", environment=_environment())
    used = engine.docker("stats", "--no-stream", "--format", "table {{.Name}}\t{{.MemUsage}}\t{{.CPUPerc}}", *NODES)
    return f"{nodes}\n{used}"


def _environment() -> dict[str, str]:
    return dict(engine.environment())


def _kind(*words: str | Path, stdin: str | None = None) -> str:
    return run(kind(), *words, environment=_environment(), stdin=stdin)


def _kubectl_command(*options: str) -> tuple[str, ...]:
    """The node's own kubectl, so that none need be on this machine."""
    return ("docker", "exec", *options, CONTROL_PLANE, "kubectl", "--kubeconfig=/etc/kubernetes/admin.conf")


def _config() -> dict[str, object]:
    mounts = [{"hostPath": str(VOLUME), "containerPath": NODE_VOLUME}]
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "networking": {"podSubnet": POD_NETWORK, "serviceSubnet": SERVICE_NETWORK},
        "nodes": [{"role": role, "extraMounts": mounts} for role in ("control-plane", "worker", "worker")],
    }


def _find(image: str) -> tuple[str, str]:
    """The first program that has the image, and the image's identity."""
    asked = {
        "docker": ("image", "inspect", "--format", "{{.Id}}"),
        "podman": ("image", "inspect", "--format", "{{.Id}}"),
        "buildah": ("inspect", "--type", "image", "--format", "{{.FromImageID}}"),
    }
    held = [name for name in asked if shutil.which(name)]
    for name in held:
        code, printed = attempt(name, *asked[name], image, environment={**_environment(), **BUILDAH_ENVIRONMENT})
        if code == 0:
            return name, printed.strip().removeprefix("sha256:")
    raise ClusterError(f"no image {image} in {', '.join(held)}; `make images` builds the project's own")
