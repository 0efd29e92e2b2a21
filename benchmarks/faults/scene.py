"""The operators and the jobs that a fault of the control plane is put to, and what became of them.

Three jobs at once: one that was applied a moment ago, one whose host 0 has just been evicted, and one whose run ends.
Called by `control_plane.py`.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.faults.operators import SYSTEM, Answers, Process, server
from benchmarks.faults.outcome import Outcome
from tests.cluster.client import Client, RefusedError
from tests.cluster.commands import wait
from tests.operator.building import manifest
from tests.operator.living import STEPS, Living, until
from tests.operator.operating import Place

from shardwise.protocol.run_status import RunSummary

START, RECOVERY, END = "start", "recovery", "end"
PODS = {START: ("0-0-0", "0-1-0"), RECOVERY: ("0-0-0", "0-0-1", "0-1-0"), END: ("0-0-0", "0-1-0")}
"""Those that each of the jobs needs, by its phase."""
_HELD = {RECOVERY: 40, END: 90}
"""At which step the run waits for the fault."""
_STAND_INS = "no training: hosts are stand-ins"
_WITHIN_SECONDS = 300.0


class Job:
    """One of the three jobs, and every pod of it that there ever was."""

    def __init__(self, place: Place, answers: Answers, phase: str, number: int) -> None:
        """Nothing is applied yet."""
        self.phase, self.name, self._place, self._answers = phase, f"job-{phase}", place, answers
        self.seen: set[tuple[str, str]] = set()
        self.went_on_at: float | None = None
        self.hosts = Living(place, self.name, self._say, number=number)
        self.hosts.holds_at = _HELD.get(phase, STEPS + 1)

    def apply(self) -> None:
        """Do what `kubectl apply` does."""
        self._place.apply(manifest(self.name))

    @property
    def status(self) -> dict[str, Any]:
        """As the operator has written it; what an API server that is away cannot tell is nothing."""
        with suppress(OSError, RefusedError):
            return self._place.status(self.name)
        return {}

    @property
    def goes_on(self) -> bool:
        """Whether the operator has brought it past the fault."""
        status = self.status
        if self.phase == END:
            return status.get("phase") == "Complete"
        step = status.get("progress", {}).get("step", 0)
        return status.get("phase") in ("Running", "Complete") and step > _HELD.get(self.phase, 0)

    def check(self) -> None:
        """It has come to its right end, at its right price."""
        status, evicted = self.status, self.phase == RECOVERY
        names = sorted(name.removeprefix(f"{self.name}-") for name, _ in self.seen)
        assert status["phase"] == "Complete", f"{self.name} ended {status['phase']}: {status.get('message')}"
        assert status["progress"]["step"] == STEPS, f"{self.name} ended with {status['progress']}"
        assert status.get("restarts", {}) == ({"eviction": 1} if evicted else {}), f"charged {status.get('restarts')}"
        assert names == sorted(PODS[self.phase]), f"the pods of {self.name} were {names}"

    def _say(self, address: str, answer: RunSummary | None) -> None:
        self.seen |= {(name, pod["metadata"]["uid"]) for name, pod in self._place.pods(self.name).items()}
        self._answers.say(address, answer)


class Scene:
    """The operators and the jobs that a fault is put to."""

    def __init__(self, operators: Sequence[Process], jobs: Mapping[str, Job]) -> None:
        """They are there; the first operator leads."""
        self.operators, self.jobs = operators, jobs
        self.began = time.time()

    @property
    def leader(self) -> Process:
        """The operator that led when the fault came."""
        return self.operators[0]

    def act(self) -> None:
        """Give the operator something to do in each job."""
        self.jobs[START].apply()
        self.jobs[RECOVERY].hosts.evict(f"{self.jobs[RECOVERY].name}-0-0-0")
        for job in self.jobs.values():
            job.hosts.holds_at = STEPS + 1

    def last(self, seconds: float) -> None:
        """Let a fault last so long."""
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            self.look()
            time.sleep(0.1)

    def look(self) -> bool:
        """Note which jobs have got past the fault; whether all have."""
        for job in self.jobs.values():
            if job.went_on_at is None and job.goes_on:
                job.went_on_at = time.time()
        return all(job.went_on_at is not None for job in self.jobs.values())


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is done to the scene; `put` calls `scene.act` when it is time, and returns when the fault is over."""

    name: str
    put: Callable[[Scene], None]
    note: str
    leases: Sequence[str] = field(default=("shardwise",))
    """Of each operator."""
    unnoticed: str = "nothing is to be noticed"
    """Why no operator may have said a word."""


@contextmanager
def _scene(fault: Fault) -> Iterator[Scene]:
    client = server().client
    namespace = f"fault-{uuid.uuid4().hex[:8]}"
    client.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
    wait("the namespace", lambda: client.answers(account))
    place, answers = Place(client, namespace), Answers()
    jobs = {phase: Job(place, answers, phase, number) for number, phase in enumerate(PODS)}
    with ExitStack() as stack:
        operators = []
        for lease in fault.leases:
            operators.append(stack.enter_context(Process(answers, lease=lease)))
            wait(f"an operator to have lease {lease}", partial(_held, client, lease), 120)
        for job in jobs.values():
            stack.enter_context(job.hosts)
        for phase in _HELD:
            jobs[phase].apply()
        for phase, step in _HELD.items():
            until(f"step {step}", partial(_at_step, jobs[phase], step), _WITHIN_SECONDS)
        yield Scene(operators, jobs)
    client.request("DELETE", f"/api/v1/namespaces/{namespace}")


def _held(client: Client, lease: str) -> bool:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{lease}"
    return client.answers(path) and bool(client.request("GET", path)["spec"].get("holderIdentity"))


def _at_step(job: Job, step: int) -> bool:
    status = job.status
    return status.get("phase") == "Running" and status.get("progress", {}).get("step") == step


def _complete(job: Job) -> bool:
    return job.status.get("phase") == "Complete"


def measure(fault: Fault) -> Mapping[str, Outcome]:
    """Put the fault, wait for all three ends, check them, and tell of each job."""
    with _scene(fault) as scene:
        fault.put(scene)
        until("all jobs to go on", scene.look, _WITHIN_SECONDS)
        for job in scene.jobs.values():
            until(f"the end of {job.name}", partial(_complete, job), _WITHIN_SECONDS)
            job.check()
        heard = sorted(warning for each in scene.operators for warning in each.said(scene.began))
        ends = sum(each.ends for each in scene.operators)
    detected = heard[0][0] - scene.began if heard else None
    notes = [fault.note, *([] if heard else [fault.unnoticed])]
    if ends:
        notes.append("a process ended" if ends == 1 else f"{ends} processes ended")
    return {
        phase: Outcome(
            detected_seconds=detected,
            cause="none",
            charged="nothing" if phase != RECOVERY else "nothing beside eviction 1",
            steps_lost=0,
            next_step_seconds={"the operator goes on": (job.went_on_at or 0.0) - scene.began},
            equal=_STAND_INS,
            note="; ".join(notes),
        )
        for phase, job in scene.jobs.items()
    }
