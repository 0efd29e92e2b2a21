"""The kind cluster as a whole: up, down, images into it, what it is now. Called by the verbs, and so by the tests.

Where the user's Docker answers, the nodes are kind's published image; in a Docker of our own, one made here.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests.cluster.commands import ClusterError, attempt, run, say, wait
from tests.cluster.places import BUILDAH_ENVIRONMENT
from tests.cluster.volume import objects
from tests.kind import engine, node_image
from tests.kind.places import (
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
from tests.kind.programs import kind


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
    if engine.answers():
        _kind("delete", "cluster", "--name", CLUSTER, "--kubeconfig", KUBECONFIG)
    engine.remove()


def make_volume(namespace: str) -> Path:
    """Make the volume and the claim `runs` in the namespace; the folder of this machine that stands behind it."""
    folder = VOLUME / namespace
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)  # the pods of a job run as a user that owns nothing here
    manifest = json.dumps(objects(namespace, Path(NODE_VOLUME) / namespace))
    run(*_kubectl_command("-i"), "apply", "--server-side", "-f", "-", environment=_environment(), stdin=manifest)
    return folder


def load(image: str) -> None:
    """Give an image to the workers, which run all pods of jobs: Docker's where it has it, else podman's or buildah's.

    Raises:
        ClusterError: nobody has such an image, or no cluster is up.
    """
    if not is_up():
        raise ClusterError("no kind cluster is up; `up` creates one")
    where = ("--name", CLUSTER, "--nodes", ",".join(WORKERS))
    if attempt("docker", "image", "inspect", image, environment=_environment())[0] == 0:
        _kind("load", "docker-image", image, *where)
    else:
        with tempfile.TemporaryDirectory(dir=RUN, prefix="image-") as folder:
            archive = Path(folder) / "image.tar"
            _save(image, archive)
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


def _save(image: str, archive: Path) -> None:
    """Write the image as an archive that every containerd imports."""
    stores = {
        "podman": ("save", "--format", "docker-archive", "--output", archive, image),
        "buildah": ("push", "--quiet", image, f"docker-archive:{archive}:{image}"),
    }
    held = [name for name in stores if shutil.which(name)]
    for name in held:
        if attempt(name, *stores[name], environment=BUILDAH_ENVIRONMENT)[0] == 0:
            return
        archive.unlink(missing_ok=True)
    raise ClusterError(f"no image {image} in {', '.join(('docker', *held))}; `make images` builds the project's own")
