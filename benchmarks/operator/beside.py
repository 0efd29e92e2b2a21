"""The same pods made in five ways, in turns: alone, by Indexed Jobs, by JobSets, and twice by TrainingJobs.

Called by `__main__.py`. All pods have the spec that the operator gives those of a job, so that they weigh the same.
What the control plane does with nothing there is measured before each turn, and taken off: leases come by the second,
not by the job. So that little is taken off, the nodes are as few as hold the pods with ease.
"""

import random
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.operator import costs, crowd, jobset
from benchmarks.operator.stage import NAMESPACE, Stage, operating
from benchmarks.turns import Spread
from tests.cluster.commands import say, wait
from tests.operator.building import begun, classes, seen

from shardwise_operator.observe.snapshot import take_snapshot
from shardwise_operator.render.pods import Place, pod_manifest

CALM_SECONDS = 10.0
NODES_A_JOB = 0.6
_CALM_SHARE = 0.95
PODS, JOBS, JOBSETS = "pods alone", "Indexed Jobs", f"JobSets ({jobset.VERSION})"
OURS, ONE_POLICY = "Shardwise", "Shardwise, one NetworkPolicy for all"
_PODS_PATH = f"/api/v1/namespaces/{NAMESPACE}/pods"
_JOBS_PATH = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
_WITHIN_SECONDS = 900.0


@dataclass(frozen=True)
class Way:
    """How pods are made: what is sent, and where to."""

    path: str
    bodies: list[dict[str, Any]]


def measure(made: Stage, pids: dict[str, int], *, jobs: int, hosts: int, rounds: int) -> dict[str, Any]:
    """All ways in every round, in shuffled order: seconds, and core-seconds above idle, each with its spread."""
    results: dict[str, list[dict[str, float]]] = {PODS: [], JOBS: [], JOBSETS: [], OURS: [], ONE_POLICY: []}
    for number in range(rounds):
        order = list(results)
        random.Random(number).shuffle(order)  # noqa: S311  repeatable, not secret
        for name in order:
            say(f"round {number + 1} of {rounds}: {name}")
            with _operating(made, name) as operator:
                turn = _turn(made, pids, operator, _way(name, jobs, hosts), jobs * hosts)
            say(", ".join(f"{figure} {value:.1f}" for figure, value in turn.items()))
            results[name].append(turn)
    return {
        "jobs": jobs,
        "hosts": hosts,
        "rounds": rounds,
        "ways": {
            name: {figure: asdict(Spread.of([turn[figure] for turn in turns])) for figure in turns[0]}
            for name, turns in results.items()
        },
        "times": {
            name: asdict(Spread.of([_all(turn) / _all(bare) for turn, bare in zip(turns, results[PODS], strict=True)]))
            for name, turns in results.items()
        },
    }


@contextmanager
def _operating(made: Stage, name: str) -> Iterator[int | None]:
    """Have the operator of a way run, if it has one; its process."""
    with tempfile.TemporaryDirectory() as folder:
        operators = {
            JOBSETS: lambda: jobset.operating(made.client, Path(folder)),
            OURS: lambda: operating(made),
            ONE_POLICY: lambda: operating(made, one_policy=True),
        }
        with operators.get(name, nullcontext)() as pid:
            yield pid


def _all(turn: Mapping[str, float]) -> float:
    """The core-seconds of the control plane and of the way's own operator."""
    return turn["core_seconds"] + turn["operator_core_seconds"]


def _turn(made: Stage, pids: dict[str, int], operator: int | None, way: Way, pods: int) -> dict[str, float]:
    """From the first object to the last running pod; then all of it goes again."""
    pids = {**pids, "operator": operator} if operator else pids
    idle = _calm(pids)
    running = crowd.Arrivals.of_pods()
    before, began = costs.cpu(pids), time.monotonic()
    crowd.post(way.path, way.bodies)
    seconds = running.wait(pods, "all pods to be Running", _WITHIN_SECONDS) - began
    spent = _above_idle(costs.difference(costs.cpu(pids), before), time.monotonic() - began, idle)
    peak = costs.resident_bytes(operator, "VmHWM") / 2**20 if operator else 0.0
    _delete_all(made, way.path)
    _delete_all(made, _PODS_PATH)  # the garbage collector takes them too, more slowly
    wait("all pods to be gone", lambda: _none(made, _PODS_PATH), 600)
    by_operator = spent.pop("operator", 0.0)
    cluster = sum(spent.values())
    return {
        "seconds": seconds,
        "idle_cores": sum(idle.values()),
        "core_seconds": cluster,
        "operator_core_seconds": by_operator,
        "peak_mib": peak,
    }


def _calm(pids: dict[str, int]) -> dict[str, float]:
    """Cores by process with nothing there, once they fall no more: what was deleted is cleared away for a while."""
    cores = _cores(pids)
    while sum((later := _cores(pids)).values()) < _CALM_SHARE * sum(cores.values()):
        cores = later
    return cores


def _cores(pids: dict[str, int]) -> dict[str, float]:
    before = costs.cpu(pids)
    time.sleep(CALM_SECONDS)
    return {name: used / CALM_SECONDS for name, used in costs.difference(costs.cpu(pids), before).items()}


def _delete_all(made: Stage, path: str) -> None:
    """A hundred at a time: a thousand take longer than a request may."""
    while not _none(made, path):
        made.client.request("DELETE", f"{path}?limit=100", {"propagationPolicy": "Background", "gracePeriodSeconds": 1})


def _none(made: Stage, path: str) -> bool:
    return not made.client.request("GET", f"{path}?limit=1")["items"]


def _above_idle(spent: Mapping[str, float], seconds: float, idle: Mapping[str, float]) -> dict[str, float]:
    """Core-seconds by process above what it takes in that time with nothing there."""
    return {name: used - idle[name] * seconds for name, used in spent.items()}


def _way(name: str, jobs: int, hosts: int) -> Way:
    match name:
        case _ if name == PODS:
            return Way(_PODS_PATH, list(_pods(jobs, hosts)))
        case _ if name == JOBS:
            return Way(_JOBS_PATH, list(_indexed_jobs(jobs, hosts)))
        case _ if name == JOBSETS:
            pod = {"spec": _spec(hosts)}
            path = jobset.path(NAMESPACE)
            return Way(path, [jobset.job_set(f"set-{number:05}", hosts, pod) for number in range(jobs)])
        case _:
            return Way(crowd.JOBS, [crowd.job(number, hosts) for number in range(jobs)])


def _spec(hosts: int) -> dict[str, Any]:
    """That of the last host's pod of one of our jobs."""
    made_of = take_snapshot(crowd.job(0, hosts), classes(), image="localhost/none")
    last = made_of.hosts[-1]
    spec: dict[str, Any] = pod_manifest(seen(begun(hosts=made_of.hosts), made_of=made_of), last, Place())["spec"]
    return spec


def _pods(jobs: int, hosts: int) -> Iterator[dict[str, Any]]:
    spec = _spec(hosts)
    for number in range(jobs):
        for host in range(hosts):
            metadata = {"name": f"pod-{number:05}-{host}", "namespace": NAMESPACE}
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _indexed_jobs(jobs: int, hosts: int) -> Iterator[dict[str, Any]]:
    spec = {"completionMode": "Indexed", "completions": hosts, "parallelism": hosts, "template": {"spec": _spec(hosts)}}
    for number in range(jobs):
        metadata = {"name": f"job-{number:05}", "namespace": NAMESPACE}
        yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
