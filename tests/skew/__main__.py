"""`make test-skew PREVIOUS=COMMIT`: operator and trainer of two releases, and the operator changed under a running job.

Both are processes from source, each from its own tree; the API server is real, scheduler and kubelet are stand-ins and
the trainers are fake. For each of the two as the trainer's image: the job begins under this operator, goes on under the
previous one and under this one again, and a pod is lost under each. All of that is to be one run without a fault but
those three.

With --record FOLDER it writes down what the previous release's operator and pods tell each other, and what they leave:
the documents that `tests/operator/test_previous_releases.py` has this release read.
"""

import json
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from tests.cluster.api_server import ApiServer
from tests.cluster.commands import say, wait
from tests.operator.building import manifest
from tests.operator.operating import Place
from tests.skew.kubelet import Kubelet, addresses, in_tree

from shardwise.launcher.agent.client import request
from shardwise.protocol.contract import LEADER_RECORD, LOGS
from shardwise.protocol.pods import AGENT_PORT
from shardwise_operator.render.names import config_map_name

_ROOT = Path(__file__).parents[2]
_CRDS = "charts/shardwise/crds"
_CLASSES = "trainer/shardwise/job/classes"
_SECONDS = 120.0
_STEPS = 100_000


def skew(
    tree: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, resolve_path=True, help="The previous release.")
    ],
    *,
    record: Annotated[
        Path | None, typer.Option(help="Write down what that release says into this folder, and try nothing.")
    ] = None,
) -> None:
    """Run a job under operator and trainer of two releases, each way, the operator changed under it."""
    with addresses():
        if record is None:
            both_ways(tree)
        else:
            write_down(tree, record)


def both_ways(previous: Path) -> None:
    """Run both ways; AssertionError or ClusterError where a release does not understand the other."""
    with ApiServer() as server:
        for number, image in enumerate((previous, _ROOT)):
            say(f"the trainer's image is of {image}")
            _install(server, previous)
            _install(server, _ROOT)  # an upgrade of the chart brings the newer CRDs, and a rollback leaves them
            _changes_of_the_operator(server, image, previous, f"skew-{number}")


def write_down(previous: Path, folder: Path) -> None:
    """One job of the previous release alone, and its documents."""
    with ApiServer() as server, _begun(server, previous, "record") as (place, kubelet, scratch):
        _install(server, previous)
        place.apply(manifest(recovery={"backoff": "1s", "restarts": {"unknown": 10}}))
        with _operator(server, previous, scratch, "record"):
            _goes_on(place)
            _is_made_anew(place, kubelet)
            _goes_on(place)
            pods = place.pods()
            name = max(name for name in pods if "-0-0-" in name)
            token = (scratch / name / "token_mount" / "status").read_text()
            told = request(f"{pods[name]['status']['podIP']}:{AGENT_PORT}", token, "GET", "/status")
            _write(folder, "status", told)
            _write(folder, "job", place.job())
            _write(folder, "pod", pods[name])
            _write(
                folder,
                "snapshot",
                place.client.request("GET", place.path("configmaps", config_map_name("job", 0)))["data"],
            )
            place.change("job", suspend=True)
            _until(place, "it to be Suspended", lambda status: status["phase"] == "Suspended")
        _write(folder, "termination-record", json.loads((scratch / name / "termination_log").read_text()))
        _write(folder, "leader", json.loads((kubelet.directory / LOGS / LEADER_RECORD).read_text()))


def _write(folder: Path, name: str, document: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


@contextmanager
def _begun(server: ApiServer, image: Path, namespace: str) -> Iterator[tuple[Place, Kubelet, Path]]:
    """A namespace whose pods run."""
    server.client.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    place = Place(server.client, namespace)
    with tempfile.TemporaryDirectory(prefix="sws-", dir="/tmp") as folder:
        kubelet = Kubelet(place, Path(folder), image)
        plan = {"steps": _STEPS, "saveEvery": 10, "stepSeconds": 0.05}
        (kubelet.directory / "fake.json").write_text(json.dumps(plan))
        (Path(folder) / "key").write_text(secrets.token_hex(32))
        with kubelet.running():
            yield place, kubelet, Path(folder)


def _install(server: ApiServer, tree: Path) -> None:
    server.client.kubectl("apply", "--server-side", "--force-conflicts", "--filename", tree / _CRDS)
    wait("the types", partial(server.client.answers, "/apis/shardwise.dev/v1alpha1/trainingjobs"))
    server.client.kubectl("apply", "--server-side", "--force-conflicts", "--filename", tree / _CLASSES)


def _changes_of_the_operator(server: ApiServer, image: Path, previous: Path, namespace: str) -> None:
    with _begun(server, image, namespace) as (place, kubelet, folder):
        place.apply(manifest(recovery={"backoff": "1s", "restarts": {"unknown": 10}}))
        for lost, tree in enumerate((_ROOT, previous, _ROOT)):
            with _operator(server, tree, folder, namespace):
                say(f"the operator is of {tree}")
                _goes_on(place)
                _is_made_anew(place, kubelet)
                _goes_on(place)
                assert place.status()["losses"] == {"unknown": lost + 1}
        with _operator(server, _ROOT, folder, namespace):
            place.change("job", suspend=True)
            _until(place, "it to be Suspended", lambda status: status["phase"] == "Suspended")
        say(f"{place.status()['progress']['step']} steps, lost pods {place.status()['losses']}, then suspended")


def _goes_on(place: Place) -> None:
    """Wait for steps that are told, of a job in which nothing is wrong."""
    _until(place, "it to run", lambda status: status.get("reason") == "Running" and "step" in status["progress"])
    before = place.status()["progress"]["step"]
    _until(place, "steps", lambda status: status["reason"] == "Running" and status["progress"]["step"] > before)


def _is_made_anew(place: Place, kubelet: Kubelet) -> None:
    """A pod is killed, which is one loss, and its host gets another."""
    known, before = set(kubelet.processes), sum(place.status().get("losses", {}).values())
    victim = max((name for name in place.pods() if "-0-1-" in name), key=lambda name: int(name.rsplit("-", 1)[1]))
    kubelet.kill(victim)
    _until(place, "the loss", lambda status: sum(status.get("losses", {}).values()) == before + 1)
    wait("the next pod of its host", lambda: set(kubelet.processes) > known, _SECONDS)


def _until(place: Place, what: str, holds: Callable[[dict[str, Any]], bool]) -> None:
    wait(what, lambda: holds(place.status()), _SECONDS)


@contextmanager
def _operator(server: ApiServer, tree: Path, folder: Path, namespace: str) -> Iterator[None]:
    """An operator of a tree, which has the lease of the one before it to itself."""
    lease = f"operator-{time.monotonic_ns()}"
    words = (
        *("run", "--trainer-image=localhost/none", f"--key-file={folder / 'key'}", f"--namespace={namespace}"),
        *("--poll-seconds=0.5", "--metrics-address=127.0.0.1:0", "--health-address=127.0.0.1:0"),
        *(f"--lease-namespace={namespace}", f"--lease-name={lease}", f"--kubeconfig={server.kubeconfig}"),
    )
    with (folder / "operator.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "shardwise_operator", *words],
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": in_tree(tree)},
            stdout=log,
            stderr=log,
        )
    try:
        yield
    except Exception:
        sys.stderr.write((folder / "operator.log").read_text()[-4000:])
        raise
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog="Example: make test-skew PREVIOUS=v0.1.0")(skew)
    app()
