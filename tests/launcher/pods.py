"""The pods of a job as processes of this machine: each with its own address, root and mounts, and one shared volume.

What the operator and the kubelet do in a cluster, the tests do here: make a pod, take one away, make another in its
place, look at its last record.
"""

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
from tests.cli.conftest import QUICK, outside
from tests.launcher.conftest import JOB, LIMIT_SECONDS

from shardwise.job import accelerators
from shardwise.job.load import dump, loads
from shardwise.launcher.agent.client import NoLeaderError, request
from shardwise.launcher.system import processes
from shardwise.protocol import pods
from shardwise.protocol.contract import LOGS, SUMMARY
from shardwise.protocol.pods import TerminationRecord

ROOT = Path(__file__).parents[2]
UID = "0f1e2d3c-aaaa"
GANG, STATUS = "gang-secret", "status-secret"
_networks = itertools.count()


class Pods:
    """A job's pods."""

    def __init__(self, folder: Path) -> None:
        self.directory = folder / "volume" / "run"
        self.directory.mkdir(parents=True)
        # The path of unix sockets is bounded, and pytest's folders are deep.
        self.roots = Path(tempfile.mkdtemp(prefix="swp-", dir="/tmp"))
        self._output = folder / "output.txt"
        self._network = f"127.{1 + os.getpid() % 250}.{next(_networks) % 250}"
        self._attempts = itertools.count()
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._all: list[subprocess.Popen[bytes]] = []
        self.addresses: dict[int, str] = {}
        self.options: dict[str, Any] = {}
        self.variables: dict[str, str] = {}
        self.run, self.job, self.contract = f"{UID}-0", "", pods.CONTRACT

    def start(self, *, hosts: int = 2, recovery: str = "", **plan: Any) -> None:
        """Make the pods of a job whose trainers follow the plan."""
        text = JOB.read_text().replace("1x8", f"{hosts}x2").replace("fsdp: true", "fsdp: false")
        text = text.replace("tensor: 2", "tensor: 1").replace("sequences: 16", "sequences: 12")
        self.job = dump(loads(text + f"  recovery: {{{recovery}}}\n"))
        (self.directory / "fake.json").write_text(json.dumps({"steps": 30, "saveEvery": 5, **plan}))
        for host in range(hosts):
            self.make(host)

    def make(self, host: int, *, directory: Path | None = None) -> None:
        """Make a pod for a host, with a new address and an empty scratch; one that it has is left to itself."""
        attempt = next(self._attempts)
        root, link = self.roots / f"{host}-{attempt}", self.roots / str(host)
        for mount in ("job_mount", "token_mount", "scratch_mount"):
            (root / mount).mkdir(parents=True)
        link.unlink(missing_ok=True)
        link.symlink_to(root)
        (root / "job_mount" / pods.JOB_KEY).write_text(self.job)
        built_in = Path(accelerators.__file__).parent / "classes" / "cpu-sim.yaml"
        shutil.copy(built_in, root / "job_mount" / pods.CLASS_KEY)
        (root / "token_mount" / pods.GANG_TOKEN_KEY).write_text(GANG)
        (root / "token_mount" / pods.STATUS_TOKEN_KEY).write_text(STATUS)
        self.addresses[host] = f"{self._network}.{1 + attempt}"
        variables = {
            pods.ADDRESS_VARIABLE: self.addresses[host],
            pods.CONTRACT_VARIABLE: self.contract,
            pods.RANK_VARIABLE: str(host),
            pods.POD_ATTEMPT_VARIABLE: str(attempt),
            pods.RUN_VARIABLE: self.run,
            pods.STARTED_VARIABLE: str(time.time()),
            pods.DIRECTORY_VARIABLE: str(directory or self.directory),
            "PYTHONPATH": str(ROOT),
            **self.variables,
        }
        script = Path(__file__).parent / "pod_process.py"
        command = [sys.executable, str(script), str(root), json.dumps(self.options)]
        with self._output.open("ab") as output:
            self.processes[host] = subprocess.Popen(
                command, env=outside() | QUICK | variables, stdout=output, stderr=output, start_new_session=True
            )
        self._all.append(self.processes[host])

    def kill(self, host: int) -> None:
        """Take a pod away as a node's power failure does: all of its processes at once."""
        _end_tree(self.processes[host].pid)
        self.processes[host].wait()

    def ask_to_go(self, host: int) -> None:
        """Take a pod away as a deletion or a drain does."""
        self.processes[host].send_signal(signal.SIGTERM)

    def wait(self, host: int) -> int:
        """Wait for the end of a pod's first process; its exit code."""
        try:
            return self.processes[host].wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"host {host} has not ended:\n{self.output}") from None

    def codes(self) -> list[int]:
        """Wait for the end of all pods; their exit codes."""
        return [self.wait(host) for host in sorted(self.processes)]

    def record(self, host: int) -> TerminationRecord:
        """What the kubelet takes as a container's last message."""
        text = (self.roots / str(host) / "termination_log").read_text()
        assert len(text.encode()) <= pods.TERMINATION_RECORD_BYTES
        record = TerminationRecord.loads(text)
        assert record is not None
        return record

    def ask(self, method: str, path: str, *, host: int = 0, token: str = STATUS) -> dict[str, Any]:
        """A request to a pod."""
        return request(f"{self.addresses[host]}:{pods.AGENT_PORT}", token, method, path)

    def ready(self, host: int) -> int:
        """What a probe of the kubelet sees."""
        connection = HTTPConnection(self.addresses[host], pods.AGENT_PORT, timeout=5)
        try:
            connection.request("GET", "/ready")
            return connection.getresponse().status
        finally:
            connection.close()

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the status of host 0 is as wanted."""
        end = time.monotonic() + LIMIT_SECONDS
        status: dict[str, Any] = {}
        while time.monotonic() < end:
            try:
                status = self.ask("GET", "/status")
            except NoLeaderError:
                status = {}
            if status and condition(status):
                return status
            time.sleep(0.02)  # a poll, not a wait: the condition decides
        raise AssertionError(f"not within {LIMIT_SECONDS} s; the status is {status}\n{self.output}")

    def until_step(self, step: int, *, attempt: int = 0) -> dict[str, Any]:
        """Wait until every host is at the step in the attempt."""

        def there(status: dict[str, Any]) -> bool:
            steps = [host["step"] for host in status["hosts"] if host["trainerPid"]]
            return status["attempt"] == attempt and steps == [step] * len(self.processes)

        return self.until(there)

    def go_on(self, name: str = "go") -> None:
        """Let go of the trainers that the plan has made wait."""
        (self.directory / name).touch()

    @property
    def output(self) -> str:
        """All that the pods have logged."""
        return self._output.read_text()

    @property
    def summary(self) -> dict[str, Any]:
        """The summary as it stands."""
        read: dict[str, Any] = json.loads((self.directory / SUMMARY).read_text())
        return read

    def events(self, name: str) -> list[dict[str, Any]]:
        """The launcher's events of one kind."""
        lines = (self.directory / LOGS / "launcher.jsonl").read_text().splitlines()
        return [event for line in lines if (event := json.loads(line))["event"] == name]

    def close(self) -> list[str]:
        """End what a failed test has left running; what is left that should not be."""
        for process in self._all:
            if process.poll() is None:
                _end_tree(process.pid)
                process.wait()
        shutil.rmtree(self.roots)
        return [str(left) for left in processes.carrying({processes.RUN_VARIABLE: str(self.directory)})]


def _end_tree(pid: int) -> None:
    """End a process and all of its descendants, and leave the exit code of the first to its parent."""
    tree: set[psutil.Process] = set()
    root = psutil.Process(pid)
    # Stop them before the first is killed, because what a process starts after it was listed would get away.
    while new := {root, *root.children(recursive=True)} - tree:
        for process in new:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        tree |= new
    processes.end(processes.Identity.of(process) for process in tree)
