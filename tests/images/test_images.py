"""The images as a node runs them: restricted, with a file system that cannot be written, and nothing that installs."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.cluster import Cluster
from tests.cluster.commands import wait

from shardwise.job.document import read_document, write_document

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from images.build import ARCHITECTURES, TARGETS, fingerprint  # noqa: E402  the folder is a script's, found by path

# Prints what it found as JSON; a failure to run a command or to import is the pod's failure.
LOOK = """
import compileall, importlib, importlib.util, json, os, pathlib, subprocess, sys
commands, modules, absent = map(json.loads, sys.argv[1:])
packages = pathlib.Path(sys.prefix, "lib/python3.11/site-packages")
sources = [path for path in packages.rglob("*.py") if "/templates/" not in str(path)]
print(json.dumps({
    "user": os.getuid(),
    "installers": [name for name in ("pip", "uv", "setuptools", "hatchling") if importlib.util.find_spec(name)],
    "writable": [str(path) for path in (packages, packages.parent, pathlib.Path.cwd()) if os.access(path, os.W_OK)],
    "uncompiled": sum(not pathlib.Path(importlib.util.cache_from_source(str(path))).exists() for path in sources),
    "stale": subprocess.run([sys.executable, "-v", "-c", "import asyncio, json, ssl"], check=True, capture_output=True,
                            text=True).stderr.count("bytecode is stale"),
    "here": sorted(path.name for path in pathlib.Path.cwd().iterdir() if path.is_file()),
    "needless": [name for name in absent if importlib.util.find_spec(name)],
    "printed": [subprocess.run(command, check=True, capture_output=True, text=True).stdout for command in commands],
    "imported": [importlib.import_module(name).__name__ for name in modules],
}))
"""


ANY_USER = 1000680000


def pod(image: str, command: list[str]) -> dict[str, Any]:
    """A pod at the restricted level that runs one command in the image."""
    return {
        "metadata": {"name": "look"},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "look",
                    "image": image,
                    "imagePullPolicy": "Never",
                    "command": command,
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        },
    }


def look(
    cluster: Cluster,
    namespace: str,
    image: str,
    *,
    commands: Sequence[Sequence[str]] = (),
    modules: Sequence[str] = (),
    absent: Sequence[str] = (),
) -> dict[str, Any]:
    """What a pod of the image finds in it, where it runs these commands and imports these modules."""
    words = [json.dumps(asked) for asked in (commands, modules, absent)]
    text = ended(cluster, namespace, pod(image, ["python", "-c", LOOK, *words]))
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found


def ended(cluster: Cluster, namespace: str, made: dict[str, Any]) -> str:
    """The log of a pod that is made and ends well."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    cluster.client.request("POST", pods, made)

    def over() -> bool:
        return cluster.client.request("GET", f"{pods}/look")["status"]["phase"] in {"Succeeded", "Failed"}

    wait("the end of the pod", over, 300)
    text = cluster.client.kubectl("logs", "--namespace", namespace, "look")
    assert cluster.client.request("GET", f"{pods}/look")["status"]["phase"] == "Succeeded", text
    return text


@pytest.fixture
def restricted(cluster: Cluster, cluster_namespace: str) -> str:
    """Return a namespace that admits pods of the restricted level alone."""
    level = "pod-security.kubernetes.io/enforce=restricted"
    cluster.client.kubectl("label", "namespace", cluster_namespace, level)
    return cluster_namespace


BARE = {"user": 10001, "installers": [], "writable": [], "uncompiled": 0, "stale": 0, "needless": []}


def test_the_operator_starts_and_holds_no_more_than_it_needs(cluster: Cluster, restricted: str) -> None:
    """The command that the chart runs answers; nothing there installs, is written to, or trains."""
    image = cluster.load("operator")

    started = ("shardwise-operator", "run", "--help")
    imports = "from shardwise.page.render import composed; from shardwise_operator.page.serve import *"
    commands = [started, ("python", "-c", f"{imports}; print(composed(PACKAGE, TEMPLATE)[0])")]
    modules, absent = ("shardwise_operator.runtime.otlp",), ("jax", "ray", "kubernetes.aio")
    found = look(cluster, restricted, image, commands=commands, modules=modules, absent=absent)

    assert "--trainer-image" in found["printed"][0]
    assert found["printed"][1].startswith("<!doctype html>")
    assert found == found | BARE


def test_the_trainer_imports_without_writing(cluster: Cluster, restricted: str) -> None:
    """All that a run imports is there, compiled, and asks for no file to be written; the text of the examples too."""
    image = cluster.load("cpu")

    modules = ("shardwise.launcher.pod", "shardwise.train.main", "shardwise.cli.app", "ray", "gcsfs", "s3fs")
    found = look(cluster, restricted, image, modules=(*modules, "tensorstore"))

    assert found == found | BARE | {"here": ["LICENSE", "README.md"]}


def test_any_user_trains(cluster: Cluster, restricted: str) -> None:
    """A user that the image does not know, as OpenShift gives each namespace its own, trains on two hosts with Ray."""
    job = read_document(ROOT / "examples" / "two-hosts.yaml").data
    job["spec"]["hardware"] = {"accelerator": "cpu-sim", "topology": "2x1", "slices": 1}
    model = {"preset": "tiny", "layers": 2, "embed": 64, "seqLen": 32}
    job["spec"]["training"] |= {"model": model, "mesh": {"fsdp": True}, "batch": {"sequences": 8}, "steps": 4}
    train = 'printf %s "$JOB" > $HOME/job.yaml && exec shardwise run $HOME/job.yaml --dir $HOME/run'
    made = pod(cluster.load("cpu"), ["sh", "-c", train])
    made["spec"]["securityContext"] |= {"runAsUser": ANY_USER, "runAsGroup": 0, "fsGroup": ANY_USER}
    made["spec"]["volumes"] = [{"name": "own", "emptyDir": {}}]
    (container,) = made["spec"]["containers"]
    variables = {"JOB": write_document(job), "HOME": "/own", "TMPDIR": "/own"}
    container["env"] = [{"name": name, "value": value} for name, value in variables.items()]
    container["volumeMounts"] = [{"name": "own", "mountPath": "/own"}]

    assert "complete: step 4, state digest" in ended(cluster, restricted, made)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_an_image_follows_its_inputs(name: str) -> None:
    """Another base or architecture is another image; caches are no input; the lock, the code and the recipe are."""
    target = TARGETS[name]
    inputs = {str(path.relative_to(ROOT)) for path in target.inputs()}

    made = {fingerprint(target, base, architecture) for base in ("one", "other") for architecture in ARCHITECTURES}
    assert len(made) == 4
    assert {f"requirements/{target.lock}.txt", f"images/{target.containerfile}", "trainer/pyproject.toml"} <= inputs
    assert "trainer/shardwise/protocol/contract.py" in inputs
    assert not [path for path in inputs if "__pycache__" in path]
