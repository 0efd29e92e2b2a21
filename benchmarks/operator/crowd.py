"""Many jobs at once: makes them over a few connections, and watches until all run. Called by `__main__.py`."""

import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any
from urllib.parse import urlsplit

from benchmarks.operator.stage import NAMESPACE
from tests.cluster.commands import ClusterError, wait
from tests.cluster.places import API_URL, PKI

JOBS = f"/apis/shardwise.dev/v1alpha1/namespaces/{NAMESPACE}/trainingjobs"
_RUNNING_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods?fieldSelector=status.phase%3DRunning&watch=1"
_METADATA_ALONE = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_CONNECTIONS = 8
_REFUSED_SECONDS = 0.2


def job(number: int, hosts: int) -> dict[str, Any]:
    """A job of so many hosts that only KWOK's nodes take."""
    training = {
        "model": {"preset": "tiny", "seqLen": 128},
        "data": {"train": [{"name": "text", "paths": ["README.md"]}], "tokenizer": "byte"},
        "mesh": {"tensor": 2, "fsdp": True},
        "batch": {"sequences": 4 * hosts},
        "optimizer": {"name": "adamw", "learningRate": 3e-4},
        "steps": 1_000_000,
        "checkpoint": {"everySteps": 60},
    }
    agent = {
        "name": "agent",
        "resources": {"requests": {"cpu": "4", "memory": "16Gi"}},
        "volumeMounts": [{"name": "runs", "mountPath": "/runs"}],
    }
    asked = {
        "nodeSelector": {"type": "kwok"},
        "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
        "containers": [agent],
        "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}],
    }
    pod = {"directory": f"/runs/{number}", "template": {"spec": asked}}
    hardware = {"accelerator": "cpu-sim", "topology": f"{hosts}x4"}
    return {
        "apiVersion": "shardwise.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": f"job-{number:05}", "namespace": NAMESPACE},
        "spec": {"managedBy": NAMESPACE, "hardware": hardware, "training": training, "pod": pod},
    }


def make(number: int, hosts: int) -> None:
    """Make so many jobs."""
    post(JOBS, [job(one, hosts) for one in range(number)])


def post(path: str, objects: Sequence[dict[str, Any]]) -> None:
    """Make objects, ready-made bytes over a few connections; RuntimeError where one is refused."""
    bodies = iter([json.dumps(one).encode() for one in objects])
    lock = threading.Lock()

    def work() -> None:
        line = _connection()
        while True:
            with lock:
                body = next(bodies, None)
            if body is None:
                return line.close()
            line.request("POST", path, body, {"Content-Type": "application/json", "Accept": _METADATA_ALONE})
            answer = line.getresponse()
            text = answer.read()
            if answer.status != http.HTTPStatus.CREATED:
                raise RuntimeError(f"an object was refused: {answer.status} {text.decode()}")

    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        for done in [pool.submit(work) for _ in range(_CONNECTIONS)]:
            done.result()


class Arrivals:
    """When the objects of a watch first were as they should be, by name, on the monotonic clock."""

    def __init__(self, path: str, accept: str, arrived: Callable[[dict[str, Any]], bool]) -> None:
        """Watch from now on."""
        self._arrived, self._over, self.at = arrived, False, dict[str, float]()
        first = _watch(path, accept)
        self._thread = threading.Thread(
            target=self._follow, args=(first, path, accept), name=f"watch {path}", daemon=True
        )
        self._thread.start()

    @classmethod
    def of_pods(cls) -> "Arrivals":
        """The pods that are Running, by the API server's word."""
        return cls(_RUNNING_PODS, _METADATA_ALONE, lambda _: True)

    @classmethod
    def of_jobs(cls) -> "Arrivals":
        """The jobs that are Running, by their status."""
        return cls(f"{JOBS}?watch=1", "application/json", lambda job: job.get("status", {}).get("phase") == "Running")

    def wait(self, number: int, what: str, seconds: float) -> float:
        """Wait for so many, and watch no longer; when the last of them came. ClusterError where nobody counts."""
        wait(what, lambda: len(self.at) >= number or not self._thread.is_alive(), seconds)
        if len(self.at) < number:
            raise ClusterError(f"waiting for {what}: the watch has failed at {len(self.at)} of {number}")
        self._over = True
        return max(self.at.values())

    def _follow(self, events: Iterator[dict[str, Any]], path: str, accept: str) -> None:
        while not self._over:
            for event in events:
                if self._over:
                    return
                if event["type"] in ("ADDED", "MODIFIED") and self._arrived(event["object"]):
                    self.at.setdefault(event["object"]["metadata"]["name"], time.monotonic())
            # The API server ends the watches of a type that was defined a moment ago when it has taken the definition
            # in as a whole. Another watch begins with all that is there.
            if not self._over:
                events = _watch(path, accept)


def _watch(path: str, accept: str) -> Iterator[dict[str, Any]]:
    """Open a watch; its events until the API server ends it, in good order or not.

    One that is refused is asked for again: of a type that was defined a moment ago the API server says 404, and 429 as
    long as it reads what there is of it.
    """
    while True:
        line = _connection()
        line.request("GET", path, headers={"Accept": accept})
        answer = line.getresponse()  # here, so that nothing that happens after the call is missed
        if answer.status == http.HTTPStatus.OK:
            return _events(line, answer)
        line.close()
        time.sleep(_REFUSED_SECONDS)


def _events(line: http.client.HTTPConnection, answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    # One that broke off has ended too: another watch begins with all that is there.
    with closing(line), closing(answer), suppress(http.client.HTTPException, OSError):
        for event in iter(answer.readline, b""):
            yield json.loads(event)


def _connection() -> http.client.HTTPSConnection:
    trust = ssl.create_default_context(cafile=PKI / "ca.crt")
    trust.load_cert_chain(PKI / "admin.crt", PKI / "admin.key")
    server = urlsplit(API_URL)
    assert server.hostname is not None
    return http.client.HTTPSConnection(server.hostname, server.port, context=trust)
