"""Runs the pods of a namespace as processes of this machine, of the tree that is their image. For `tests.skew`.

A stand-in for scheduler, kubelet and images, on a real API server. A pod's process is the real agent with a fake
trainer; its variables, its job, its class and its tokens are those that the operator gave the pod.
"""

import base64
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.charts.stand_in_kubelet import Pod
from tests.cluster.commands import run
from tests.operator.operating import Place

from shardwise.protocol import pods

_LOOK_SECONDS = 0.2
_NETWORK = "203.0.113"  # for documentation, so nobody's; an address of a pod may not be a loopback one
_addresses = itertools.count(1)
_MOUNTS = {"shardwise-job": "job_mount", "shardwise-tokens": "token_mount", "shardwise-scratch": "scratch_mount"}


class Kubelet:
    """What runs, by the name of its pod."""

    def __init__(self, place: Place, folder: Path, tree: Path) -> None:
        """Images are all of `tree`; `folder`/run is the volume of the only job."""
        self._place, self._folder, self._tree = place, folder, tree
        self.directory = folder / "run"
        self.directory.mkdir()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._told: set[str] = set()
        self._reported: set[str] = set()

    @contextmanager
    def running(self) -> Iterator["Kubelet"]:
        """Look after pods meanwhile; what runs at the end is killed."""
        stop = threading.Event()
        thread = threading.Thread(target=self._look_after, args=(stop,))
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join()
            for process in self.processes.values():
                process.kill()
                process.wait()

    def kill(self, pod: str) -> None:
        """As a node that loses its power does."""
        self.processes[pod].kill()

    def _look_after(self, stop: threading.Event) -> None:
        while not stop.wait(_LOOK_SECONDS):
            for name, pod in self._place.pods().items():
                process = self.processes.get(name)
                if process is None:
                    self._start(name, pod)
                elif (code := process.poll()) is not None:
                    self._report(name, pod, code)
                elif "deletionTimestamp" in pod["metadata"] and name not in self._told:
                    self._told.add(name)
                    process.terminate()

    def _start(self, name: str, pod: Pod) -> None:
        (container,) = pod["spec"]["containers"]
        root = self._folder / name
        for volume in pod["spec"]["volumes"]:
            if volume["name"] in _MOUNTS:
                self._mount(root / _MOUNTS[volume["name"]], volume)
        host = name.rsplit("-", 1)[0].rsplit("-", 1)[1]
        link, address = self._folder / host, f"{_NETWORK}.{next(_addresses)}"
        link.unlink(missing_ok=True)
        link.symlink_to(root)  # where the stand-in for Ray finds the socket of a host
        variables = {each["name"]: each.get("value", address) for each in container["env"]}
        variables |= {pods.DIRECTORY_VARIABLE: str(self.directory), "PYTHONPATH": in_tree(self._tree)}
        script = self._tree / "tests" / "launcher" / "pod_process.py"
        with (self._folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, str(script), str(root), "{}"],
                env=os.environ | variables,
                stdout=log,
                stderr=log,
            )
        self._place.bind(name)
        conditions = [{"type": "Ready", "status": "True"}]
        state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        self._place.report(
            name, phase="Running", podIP=address, conditions=conditions, containerStatuses=[_container(state)]
        )

    def _mount(self, folder: Path, volume: dict[str, Any]) -> None:
        folder.mkdir(parents=True)
        if source := volume.get("configMap"):
            found = self._place.client.request("GET", self._place.path("configmaps", source["name"]))
            for key, text in found["data"].items():
                (folder / key).write_text(text)
        elif source := volume.get("secret"):
            found = self._place.client.request("GET", self._place.path("secrets", source["secretName"]))
            for key, text in found["data"].items():
                (folder / key).write_bytes(base64.b64decode(text))

    def _report(self, name: str, pod: Pod, code: int) -> None:
        if name not in self._reported:
            left = self._folder / name / "termination_log"
            state = {
                "terminated": {
                    "exitCode": code % 256 if code >= 0 else 128 - code,
                    "reason": "Error" if code else "Completed",
                    "message": left.read_text() if left.exists() else "",
                }
            }
            self._place.report(name, phase="Failed" if code else "Succeeded", containerStatuses=[_container(state)])
            self._reported.add(name)
        if "deletionTimestamp" in pod["metadata"]:
            self._place.remove(name)


@contextmanager
def addresses() -> Iterator[None]:
    """Have this machine answer for the addresses of all pods."""
    route = ("local", f"{_NETWORK}.0/24", "dev", "lo")
    run("ip", "route", "replace", *route)
    try:
        yield
    finally:
        run("ip", "route", "delete", *route)


def in_tree(tree: Path) -> str:
    """The path of Python on which a tree's own packages come before the installed ones."""
    return os.pathsep.join(map(str, (tree / "trainer", tree / "operator", tree)))


def _container(state: dict[str, Any]) -> dict[str, Any]:
    status = {"name": "agent", "state": state, "image": "", "imageID": "", "ready": "running" in state}
    return {**status, "restartCount": 0}
