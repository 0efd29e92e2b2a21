"""The hosts of a job that nobody has to move on by hand: a thread is its scheduler, its kubelets and its run.

Stand-ins: pods come to run as soon as they are there, and the run takes steps while every host runs. What a test does
to them (an eviction) it does itself. It reads and writes past every proxy, so that what hurts the operator does not
hurt the hosts.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from tests.cluster.client import RefusedError
from tests.operator.building import record
from tests.operator.operating import Place, told

from shardwise.protocol.contract import ExitCode
from shardwise.protocol.run_status import RunSummary

STEPS = 100
_TICK_SECONDS = 0.1
_HOSTS = ("0-0", "0-1")
EVICTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}

Say = Callable[[str, RunSummary | None], None]


class Living:
    """The pods of one job of two hosts and its run of 100 steps, for the length of a `with` statement."""

    def __init__(self, place: Place, name: str, say: Say, *, number: int = 0, steps_per_second: float = 10.0) -> None:
        """`say` is told an address and what host 0 answers there; `number` keeps the addresses of jobs apart."""
        self.place, self.name = place, name
        self.step, self.attempt = 0.0, 0
        self.holds_at = STEPS + 1
        """Goes no further than this step."""
        self.stops = False
        """Host 0 was asked to save and stop."""
        self._say, self._number, self._pace = say, number, steps_per_second * _TICK_SECONDS
        self._hosts: dict[str, str] = {}
        self._ending: tuple[int, str] | None = None
        self._lost = 0
        self._address = ""
        self._addresses = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._live, name=f"hosts of {name}", daemon=True)

    def evict(self, pod: str) -> None:
        """The node puts a pod out, as the eviction API has it do."""
        self.place.end(pod, 137, conditions=[EVICTED])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _live(self) -> None:
        while not self._stop.wait(_TICK_SECONDS):
            with suppress(OSError, RefusedError):  # an API server that is away, or a pod that has just gone
                self._tick()

    def _tick(self) -> None:
        pods = self.place.pods(self.name)
        running: dict[str, dict[str, Any]] = {}
        for name, pod in sorted(pods.items()):
            if "deletionTimestamp" in pod["metadata"]:
                self.place.remove(name)
            elif pod["status"].get("phase") == "Running":
                running[name.removeprefix(f"{self.name}-")[:3]] = pod
            elif pod["status"].get("phase") not in ("Succeeded", "Failed"):
                self._start(name, pod)
        self._train(running)

    def _start(self, name: str, pod: dict[str, Any]) -> None:
        if "nodeName" not in pod["spec"]:
            self.place.bind(name)
        self._addresses += 1
        address = f"192.0.{2 + self._number}.{self._addresses}"
        self.place.report(name, phase="Running", podIP=address, conditions=[{"type": "Ready", "status": "True"}])

    def _train(self, running: dict[str, dict[str, Any]]) -> None:
        if self._ending:  # the API server was away before it had heard of each host's end
            self._end(running, *self._ending)
        if len(running) < len(_HOSTS):
            self._say(self._address, None)
            return
        hosts = {host: pod["metadata"]["uid"] for host, pod in running.items()}
        if self._hosts and hosts != self._hosts:
            self._lost += any(host in self._hosts and self._hosts[host] != uid for host, uid in hosts.items())
            self.attempt += 1
        if not self._hosts:
            self.stops = False  # what was asked too late of the gang before is not asked of this one
        self._hosts, self._address = hosts, running["0-0"]["status"]["podIP"]
        if self.stops:
            self._end(running, ExitCode.SAVED, "saved and stopped")
        elif self.step >= STEPS:
            self._end(running, 0, "complete")
        else:
            self.step = min(float(STEPS), float(self.holds_at), self.step + self._pace)
        restarts = {"hostLost": self._lost} if self._lost else {}
        self._say(self._address, told(step=int(self.step), attempt=self.attempt, restarts=restarts))

    def _end(self, running: dict[str, dict[str, Any]], code: int, message: str) -> None:
        self._ending = (code, message)
        restarts = {"hostLost": self._lost} if self._lost else {}
        last = record(code, step=int(self.step), checkpoint_step=int(self.step), restarts=restarts, message=message)
        for pod in running.values():
            self.place.end(pod["metadata"]["name"], code, last)
        self._ending, self.stops, self._hosts = None, False, {}


def until(what: str, holds: Callable[[], object], seconds: float) -> float:
    """Wait for something that an API server which is away cannot tell; in how many seconds it came."""
    began = time.monotonic()
    while True:
        with suppress(OSError, RefusedError):
            if holds():
                return time.monotonic() - began
        assert time.monotonic() - began < seconds, f"{what}: not within {seconds:.0f} s"
        time.sleep(_TICK_SECONDS)
