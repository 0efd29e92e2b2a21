"""`make bench-operator`: what many jobs cost the operator and the control plane, on nodes that KWOK plays.

Prints a table and keeps the figures in runs/bench-operator.json; with --write, they go into docs/performance.md.
"""

import json
import os
import signal
import time
from typing import Annotated, Any

import typer
from benchmarks import document
from benchmarks.command import serve
from benchmarks.machine import describe
from benchmarks.operator import beside, costs, page
from benchmarks.operator.crowd import Arrivals, make
from benchmarks.operator.stage import Stage, operating, stage
from benchmarks.turns import ROOT
from rich.console import Console
from tests.cluster import processes
from tests.cluster.commands import ClusterError, say

from shardwise_operator.observe.poll import MAX_PROGRESS_PER_SECOND

HOSTS = 4
CALM_SECONDS = 5.0
LEAST_STEADY_SECONDS = 30.0
_RESULTS = ROOT / "runs" / "bench-operator.json"


def bench(
    *,
    jobs: Annotated[int, typer.Option(min=1, max=1000, help="How many jobs of four hosts each.")] = 100,
    rounds: Annotated[
        int, typer.Option("--beside", min=0, help="Instead: turns of the same pods alone, by Indexed Jobs and by ours.")
    ] = 0,
    one_policy: Annotated[
        bool, typer.Option("--one-policy", help="Make no NetworkPolicy for a job (networkPolicy.jobs: false).")
    ] = False,
    write: Annotated[bool, typer.Option("--write", help="Write the section of docs/performance.md.")] = False,
) -> None:
    """Measure from the first `kubectl apply` until all jobs run, then while their writes keep their pace."""
    machine = describe()
    if rounds:
        with stage(nodes=max(HOSTS, round(jobs * beside.NODES_A_JOB))) as made:
            measured = beside.measure(made, _control_plane(), jobs=jobs, hosts=HOSTS, rounds=rounds)
        table = page.beside({"machine": machine, **measured})
        Console().print(table.rich(), "")
        if write:
            document.write([table])
        return
    with stage(nodes=jobs) as made, operating(made, one_policy=one_policy) as operator:
        figures = {"machine": machine, "one_policy": one_policy, **_measure(made, operator, jobs)}
    results = json.loads(_RESULTS.read_text(encoding="utf-8")) if _RESULTS.exists() else {}
    results[f"{jobs} one policy" if one_policy else str(jobs)] = figures
    _RESULTS.parent.mkdir(exist_ok=True)
    _RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for table in page.tables(results):
        Console().print(table.rich(), "")
    if write:
        document.write(page.tables(results))


def _measure(made: Stage, operator: int, jobs: int) -> dict[str, Any]:
    pids = {**_control_plane(), "operator": operator}
    pods, running = Arrivals.of_pods(), Arrivals.of_jobs()
    calm_before = costs.read(pids)
    time.sleep(CALM_SECONDS)
    calm = costs.read(pids) - calm_before
    say(f"making {jobs} jobs of {HOSTS} hosts")
    before, began = costs.read(pids), time.monotonic()
    make(jobs, HOSTS)
    created = time.monotonic()
    pods_at = pods.wait(HOSTS * jobs, "all pods to be Running", 600)
    after_pods = costs.read(pids)
    jobs_at = running.wait(jobs, "all jobs to be Running", 600)
    start = costs.read(pids) - before
    os.kill(made.hosts_pid, signal.SIGUSR1)
    steady_seconds = watched_seconds(jobs)
    say(f"all jobs are Running; watching them for {steady_seconds:.0f} s, after half as many")
    time.sleep(steady_seconds / 2)
    steady_before = costs.read(pids)
    time.sleep(steady_seconds)
    steady = costs.read(pids) - steady_before
    return {
        "jobs": jobs,
        "hosts": HOSTS,
        "create_seconds": created - began,
        "pods_running_seconds": pods_at - began,
        "jobs_running_seconds": jobs_at - began,
        "pods_cpu_seconds": dict((after_pods - before).cpu_seconds),
        "cpu_seconds": dict(start.cpu_seconds),
        "idle_cores": {name: seconds / CALM_SECONDS for name, seconds in calm.cpu_seconds.items()},
        "requests": {name: count for name, count in start.requests.most_common() if count},
        "pass_seconds": {"p50": start.pass_seconds(0.5), "p99": start.pass_seconds(0.99)},
        "passes": max(start.passes.values()),
        "steady_seconds": steady_seconds,
        "steady_cpu_seconds": dict(steady.cpu_seconds),
        "steady_requests": {name: count for name, count in steady.requests.most_common() if count},
        "resident_bytes": costs.resident_bytes(operator),
        "peak_resident_bytes": costs.resident_bytes(operator, "VmHWM"),
    }


def _control_plane() -> dict[str, int]:
    """The processes beside the operator that cost something."""
    return {name: pid for name, pid, alive in processes.recorded() if alive and name in costs.CONTROL_PLANE}


def watched_seconds(jobs: int) -> float:
    """How long running jobs are watched: each writes its progress twice, which of many jobs it does rarely."""
    return max(LEAST_STEADY_SECONDS, 2 * jobs / MAX_PROGRESS_PER_SECOND)


if __name__ == "__main__":
    serve(bench, example="make bench-operator ARGS='--jobs 100 --write'", error=ClusterError)
