"""A job that trains in pods of the bare test cluster, as a fault finds it, and what became of it.

Called by `in_cluster.py`. Processes are found and killed from outside: nodes are processes of this machine.
"""

import itertools
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.faults.outcome import EQUAL, Outcome
from benchmarks.faults.said import Said
from benchmarks.faults.stage import NAMESPACE, Stage, alone
from tests.cluster.commands import run
from tests.kubernetes.jobs import STATUS, Ended, Job, own_number, small

from shardwise.protocol.contract import CHECKPOINTS, COMMITTED

START, STEP, SAVE = "start", "step", "save"
_ROOM, _FILLING = "64m", "filling"
STEPS, EVERY_STEPS, FAULT_STEP = 100, 20, 45
WITHIN_SECONDS = 400.0
_STATUS_SECONDS = 0.2
_numbers = itertools.count(1)


class Hurt:
    """A job, what is done to it, and what it says of that."""

    def __init__(
        self,
        made: Stage,
        training: Mapping[str, Any],
        pod: Mapping[str, Any],
        agent: Mapping[str, Any],
        nodes: Mapping[str, str],
    ) -> None:
        """Apply it."""
        self.stage, self.client, self.namespace, self.image = made, made.cluster.client, NAMESPACE, made.image
        self.manifest = small(**{"steps": STEPS, "checkpoint": {"everySteps": EVERY_STEPS}, **training})
        name = f"fault-{next(_numbers)}"
        self.manifest["metadata"]["name"] = name
        self.manifest["spec"]["pod"] |= {"directory": f"/runs/{name}", **pod}
        spec = self.manifest["spec"]["pod"]["template"]["spec"]
        spec["containers"][0] |= agent
        if nodes:
            spec["nodeSelector"] = dict(nodes)
        self._small_volume(made.volume / name)
        self.began = self._noticed = 0.0
        self._pods_at: float | None = None
        self._frozen: list[int] = []
        self.job = Job(self.client, self.namespace, made.volume, self.manifest)
        self.said = Said(self.job.folder)

    def _small_volume(self, folder: Path) -> None:
        """Give its directory a room of its own, which can be filled."""
        folder.mkdir()
        run("mount", "-t", "tmpfs", "-o", f"mode=0777,size={_ROOM}", "shardwise", folder)

    # --------------------------------------------------------------------------------------------- the phases of a run

    def until_phase(self, phase: str) -> None:
        """Wait until the run is in a phase; in a save its trainers stand still until the fault is put."""
        if phase == START:
            self.job.until("the trainers to start", lambda: self.said.event("attempt"), WITHIN_SECONDS)
            return
        self.job.until(f"step {FAULT_STEP}", lambda: len(self.said.steps) >= FAULT_STEP, WITHIN_SECONDS)
        if phase == SAVE:
            self._until_save()

    def _until_save(self) -> None:
        trainers = self.processes(0, "shardwise.train") + self.processes(1, "shardwise.train")
        folder = self.job.folder / CHECKPOINTS
        while True:
            assert self.job.phase != "Complete", "no save was caught"
            ends_at = time.monotonic() + 5.0
            while time.monotonic() < ends_at:
                if any(not (each / COMMITTED).exists() for each in folder.iterdir()):
                    for pid in trainers:
                        os.kill(pid, signal.SIGSTOP)
                    if any(not (each / COMMITTED).exists() for each in folder.iterdir()):
                        self._frozen = trainers
                        return
                    for pid in trainers:
                        os.kill(pid, signal.SIGCONT)

    def let_go(self) -> None:
        """Have the trainers that stand still go on, those that are left."""
        for pid in self._frozen:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGCONT)

    # ----------------------------------------------------------------------------------------------------- what is hurt

    def pod(self, host: int) -> str:
        """The name of a host's pod, which must be there."""
        (name,) = (name for name in self.job.pods if name.startswith(f"{self.job.name}-0-{host}-"))
        return name

    def node(self, host: int) -> str:
        """The node of a host's pod."""
        return self.job.kubectl("get", "pod", self.pod(host), "--output=jsonpath={.spec.nodeName}")

    def runs_elsewhere(self, host: int, node: str) -> bool:
        """Whether the host has a pod that is ready on another node."""
        pods = (pod for pod in self.job.all_pods if pod["metadata"]["name"].startswith(f"{self.job.name}-0-{host}-"))
        return any(_is_ready(pod) and pod["spec"]["nodeName"] != node for pod in pods)

    def address(self, host: int) -> str:
        """The address of a host's pod."""
        return self.job.kubectl("get", "pod", self.pod(host), "--output=jsonpath={.status.podIP}")

    def processes(self, host: int, word: str) -> list[int]:
        """The processes of a host's pod whose command line has a word."""
        return self.job.processes(self.pod(host), word)

    def kill_trainer(self, host: int) -> None:
        """Kill the trainer of a host, not the one that waits to take its place."""
        number = json.loads(self.job.inside(self.pod(0), STATUS))["hosts"][host]["trainerPid"]
        (trainer,) = (pid for pid in self.processes(host, "shardwise.train") if own_number(pid) == number)
        self.now()
        os.kill(trainer, signal.SIGKILL)

    def kill_container(self, host: int) -> None:
        """Kill the first process of a host's container, and so all of it."""
        first = self.job.first_process(self.pod(host))
        self.now()
        os.kill(first, signal.SIGKILL)

    def fill_volume(self) -> None:
        """Take all that is left of the room of its directory."""
        with suppress(OSError), (self.job.folder / _FILLING).open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))

    def empty_volume(self) -> None:
        """Give it back."""
        (self.job.folder / _FILLING).unlink()

    # -------------------------------------------------------------------------------------------------- what is awaited

    def now(self) -> None:
        """Say that the fault is put at this moment."""
        self.began = time.time()
        self._before = self.job.pods

    def noticed(self) -> None:
        """Say that it is noticed at this moment."""
        self._noticed = self._noticed or time.time()

    def until_noticed(self) -> None:
        """Wait until the launcher or the operator says a word of it."""
        self.job.until("a word of it", self.look, WITHIN_SECONDS)

    def until_next_step(self) -> None:
        """Wait until trainers that started since the fault have taken a step."""
        self.job.until(
            "the next step",
            lambda: self.look() and self.said.next_step(self.began, begun_anew=True) is not None,
            WITHIN_SECONDS,
        )

    def until_seconds(self, seconds: float) -> None:
        """Wait until so long after the fault."""
        while time.time() < self.began + seconds:
            time.sleep(_STATUS_SECONDS)

    def look(self) -> bool:
        """Note what the job says; whether the fault is noticed."""
        if not self._noticed and self.job.status.get("reason") in ("PodReplaced", "NodeLeaving"):
            self._noticed = time.time()
        said = self.said.unusual(self.began)
        if said is not None:
            self._noticed = min(self._noticed or said, said)
        if self._pods_at is None and self._noticed:
            pods = self.job.all_pods
            ready = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods if _is_ready(pod)}
            if len(ready) == 2 and ready != self._before:
                self._pods_at = time.time()
        return bool(self._noticed)

    # ---------------------------------------------------------------------------------------------------------- the end

    def outcome(self, charged: Sequence[Mapping[str, int]], note: str) -> Outcome:
        """Wait for the end, hold it against what was promised, and tell."""
        while (status := self.job.status).get("phase") not in ("Complete", "Failed"):
            self.look()
            assert time.time() < self.began + 2 * WITHIN_SECONDS, f"no end: {status}"
            time.sleep(_STATUS_SECONDS)
        self.said.end()
        restarts = status.get("restarts", {})
        assert status["phase"] == "Complete", f"{status['phase']}: {status.get('message')}"
        assert restarts in charged, f"charged {restarts}, not {charged}: {self.said.ends}"
        assert Ended(status["digest"], self.job.losses) == alone(self.stage, self.manifest), "the bits are others"
        next_step = self.said.next_step(self.began)
        return Outcome(
            detected_seconds=self._noticed - self.began if self._noticed else None,
            cause=", ".join(restarts) or "none",
            charged=", ".join(f"{cause} {count}" for cause, count in restarts.items()) or "nothing",
            steps_lost=self.said.steps_lost,
            next_step_seconds={} if next_step is None else self._way_back(next_step),
            equal=EQUAL,
            note=note,
        )

    def remove(self) -> None:
        """Leave nothing of it."""
        self.said.end()
        self.job.delete()
        run("umount", "--lazy", self.job.folder)
        self.stage.cluster.erase(self.job.folder)

    def _way_back(self, next_step: float) -> dict[str, float]:
        marks = {"noticed": self._noticed or self.began, "pods": self._pods_at or 0.0, "trainers": next_step}
        way, since = dict[str, float](), self.began
        for what, at in marks.items():
            if since < at <= next_step:
                way[what], since = at - since, at
        return way


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", ())
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]
