"""Operators as processes on a real API server, each behind a proxy of its own. Called by `control_plane.py`.

They run as the chart has them run: its command, its service account, its rights. A process that ends is started again,
at once the first time and then ever later, as a kubelet does. There are no nodes: hosts are stand-ins.
"""

import atexit
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Self

import yaml
from benchmarks.faults.stand_in_operator import ANSWERS
from tests.charts.helm import CHARTS, Helm
from tests.charts.stand_in_kubelet import command
from tests.cluster.api_server import ApiServer
from tests.operator.runtime.meddling import Meddler

from shardwise.protocol.run_status import RunSummary

SYSTEM = "shardwise-system"
SECOND_LEASE = "second"
_DEPLOYMENT = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/shardwise"


@cache
def server() -> ApiServer:
    """An API server with the chart, until this process ends; its operators may hold a second lease."""
    made = ApiServer()
    atexit.register(made.stop)
    made.start()
    Helm(made.kubeconfig)("install", "shardwise", CHARTS / "shardwise", "--namespace", SYSTEM, "--create-namespace")
    add = {"op": "add", "path": "/rules/1/resourceNames/-", "value": SECOND_LEASE}
    role = ("patch", "role", "shardwise-lease", "--namespace", SYSTEM, "--type=json", f"--patch={json.dumps([add])}")
    made.client.kubectl(*role)
    return made


class Answers:
    """What host 0 of each job answers, in a folder that every operator reads."""

    def __init__(self) -> None:
        """Nobody answers yet."""
        self.folder = Path(tempfile.mkdtemp(prefix="shardwise-answers-"))
        self._lock = threading.Lock()

    def say(self, address: str, answer: RunSummary | None) -> None:
        """Have host 0 at an address answer this from now on; None is silence."""
        if not address:
            return
        with self._lock:
            if answer is None:
                (self.folder / address).unlink(missing_ok=True)
                return
            part = self.folder / ".part"
            part.write_text(answer.model_dump_json(), encoding="utf-8")
            part.rename(self.folder / address)


class Process:
    """One operator, from the start of a `with` statement to its end."""

    def __init__(self, answers: Answers, *, lease: str = "shardwise") -> None:
        """Nothing runs yet."""
        self.between = Meddler(server())
        self.ends = 0
        """How often it has ended by itself."""
        self.keeps = True
        """Whether it is started again when it ends."""
        self.first_backoff_seconds = 10.0
        """Of its second start by a kubelet; the first is at once."""
        folder = Path(tempfile.mkdtemp(prefix="shardwise-operator-"))
        deployment = server().client.request("GET", _DEPLOYMENT)
        words, variables = command(server().client, folder, SYSTEM, deployment["spec"]["template"]["spec"])
        words = [re.sub(r"address=:\d+", "address=127.0.0.1:0", word) for word in words[1:]]
        words = [re.sub(r"--lease-name=.*", f"--lease-name={lease}", word) for word in words]
        self._command = [sys.executable, "-m", "benchmarks.faults.stand_in_operator", *words]
        kubeconfig = self.between.kubeconfig(Path(variables["KUBECONFIG"]), folder)
        self._variables = {**os.environ, "KUBECONFIG": str(kubeconfig), ANSWERS: str(answers.folder)}
        self._log = folder / "operator.log"
        self._over = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._kubelet = threading.Thread(target=self._keep, name="kubelet of an operator", daemon=True)

    def signal(self, number: signal.Signals) -> None:
        """Send its process a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def said(self, since: float) -> Iterator[tuple[float, str]]:
        """What it has logged since a time as a warning, or as it began to lead: when, and its words."""
        for line in self._log.read_text(encoding="utf-8", errors="replace").splitlines():
            if not line.startswith("{"):
                continue
            said = json.loads(line)
            at = datetime.fromisoformat(said["time"]).timestamp()
            if at >= since and (said["level"] != "info" or said["message"].startswith("leading as")):
                yield at, said["message"]

    def __enter__(self) -> Self:
        self.between.__enter__()
        self._run()
        self._kubelet.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        self._kubelet.join()
        self._process.kill()
        self._process.wait()
        self.between.__exit__()

    def _run(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _keep(self) -> None:
        backoff = 0.0
        while True:
            assert self._process is not None
            self._process.wait()
            if self._over.is_set():
                return
            self.ends += 1
            while not self.keeps:
                if self._over.wait(0.1):
                    return
            if self._over.wait(backoff):
                return
            backoff = max(self.first_backoff_seconds, 2.0 * backoff)
            self._run()


def forget_lease() -> None:
    """Let the next operator lead at once, though the last one has not given its lease back."""
    server().client.kubectl("delete", "lease", "shardwise", "--namespace", SYSTEM, "--ignore-not-found")


@contextmanager
def without_right(kind: str, name: str, resource: str, verb: str) -> Iterator[None]:
    """A role of the chart's operator without a verb, as long as this lasts."""
    client = server().client
    role = yaml.safe_load(client.kubectl("get", kind, name, "--namespace", SYSTEM, "--output=yaml"))
    kept = [
        {**rule, "verbs": [each for each in rule["verbs"] if each != verb]} if resource in rule["resources"] else rule
        for rule in role["rules"]
    ]
    assert kept != role["rules"], f"no rule of {name} has {verb} {resource}"
    _replace_rules(kind, name, [rule for rule in kept if rule["verbs"]])
    try:
        yield
    finally:
        _replace_rules(kind, name, role["rules"])


def _replace_rules(kind: str, name: str, rules: list[dict[str, Any]]) -> None:
    patch = json.dumps({"rules": rules})
    server().client.kubectl("patch", kind, name, "--namespace", SYSTEM, "--type=merge", f"--patch={patch}")
