"""The two ways of one job file to its first step, and what each phase took. Called by `__main__.py`.

Moments come from three places on one machine's clock: a watch of the API server, the launcher's own events, and the
first step's line in metrics.jsonl. What the trainers did in between is what the run wrote into summary.json.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.apply.stage import EXAMPLE, NAMESPACE, Stage
from benchmarks.operator.crowd import Arrivals
from benchmarks.turns import ROOT
from tests.cluster.commands import ClusterError, say, wait
from tests.kubernetes.jobs import EXAMPLES, Job, manifest

HOSTS = 2
IN_PODS, IN_PODS_AGAIN, BY_COMMAND, BY_COMMAND_AGAIN = "pods, first", "pods, again", "command, cold", "command, warm"
MADE, SCHEDULED, STARTED, AGENTS, RAY = "pods are made", "scheduled", "containers run", "agents meet", "Ray"
OF_TRAINERS = ("interpreter", "imports", "join", "data", "init", "compile")
STEP, OTHER, TOTAL, TOLD = "step", "other", "total", "told by its status after"
WITHIN_SECONDS = 600
Phases = dict[str, float]

_POLL_SECONDS = 0.005
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods?watch=1"
_JOBS = f"/apis/shardwise.dev/v1alpha1/namespaces/{NAMESPACE}/trainingjobs?watch=1"


def in_pods(made: Stage) -> dict[str, Phases]:
    """{way: seconds by phase} of the job applied, deleted with all that it wrote, and applied again."""
    return {way: _applied(made, way) for way in (IN_PODS, IN_PODS_AGAIN)}


def by_command() -> dict[str, Phases]:
    """{way: seconds by phase} of `shardwise run` with an empty cache, and in a new directory with the same cache."""
    with tempfile.TemporaryDirectory(prefix="shardwise-bench-") as folder:
        return {way: _commanded(Path(folder), way) for way in (BY_COMMAND, BY_COMMAND_AGAIN)}


def _applied(made: Stage, way: str) -> Phases:
    say(way)
    watches = {
        MADE: Arrivals(_PODS, "application/json", lambda _: True),
        SCHEDULED: Arrivals(_PODS, "application/json", lambda pod: "nodeName" in pod["spec"]),
        STARTED: Arrivals(_PODS, "application/json", _runs),
    }
    told = Arrivals(_JOBS, "application/json", _tells_a_step)
    began = time.time()
    job = Job(made.client, NAMESPACE, made.volume, manifest(EXAMPLE))
    try:
        since_epoch = time.time() - time.monotonic()
        seen = {what: since_epoch + watch.wait(HOSTS, what, WITHIN_SECONDS) for what, watch in watches.items()}
        wait("the first step", lambda: _first_step(job.folder), WITHIN_SECONDS)
        at = time.time()
        told_at = since_epoch + told.wait(1, "the status to tell it", WITHIN_SECONDS)
        job.until_phase("Complete", WITHIN_SECONDS)
        return phases(began, seen, job.folder, at) | {TOLD: told_at - at}
    finally:
        job.delete()
        shutil.rmtree(job.folder, ignore_errors=True)


def _commanded(folder: Path, way: str) -> Phases:
    say(way)
    directory = folder / way
    command = [str(Path(sys.executable).with_name("shardwise")), "run", str(EXAMPLES / f"{EXAMPLE}.yaml")]
    environment = {**os.environ, "SHARDWISE_CACHE": str(folder / "cache")}
    began = time.time()
    with (
        (folder / "log").open("w+b") as log,
        subprocess.Popen([*command, "--dir", str(directory)], cwd=ROOT, env=environment, stdout=log, stderr=log) as run,
    ):
        while not _first_step(directory) and run.poll() is None:
            time.sleep(_POLL_SECONDS)
        at = time.time()
        if run.wait(WITHIN_SECONDS):
            raise ClusterError(f"{' '.join(command)} failed:\n{(folder / 'log').read_text(errors='replace')[-4000:]}")
    return phases(began, {}, directory, at)


def phases(began: float, seen: Mapping[str, float], directory: Path, first_step_at: float) -> Phases:
    """Seconds by phase; `seen` has the moments up to the containers' start, in order."""
    events = [json.loads(line) for line in (directory / "logs" / "launcher.jsonl").read_text().splitlines()]
    opened, started = (next(event for event in events if event["event"] == name) for name in ("epoch", "incarnation"))
    marks = {**seen, AGENTS: opened["time"] - opened["seconds"], RAY: started["time"]}
    taken, since = Phases(), began
    for what, moment in marks.items():
        reached = max(moment, since)  # two watches may tell of one moment in the wrong order
        taken[what], since = reached - since, reached
    written = json.loads((directory / "summary.json").read_text())["phases"]
    taken |= {phase: written[phase] for phase in OF_TRAINERS} | {STEP: _first_step(directory)}
    total = first_step_at - began
    return taken | {OTHER: total - sum(taken.values()), TOTAL: total}


def _first_step(directory: Path) -> float:
    """Seconds of the first step by its own account, as soon as its line is there; 0 before."""
    metrics = directory / "metrics.jsonl"
    lines = metrics.read_text(encoding="utf-8").splitlines(keepends=True) if metrics.exists() else []
    records = (json.loads(line) for line in lines if line.endswith("\n"))
    return next((float(record["stepSeconds"]) for record in records if "event" not in record), 0.0)


def _runs(pod: Mapping[str, Any]) -> bool:
    return any("running" in container["state"] for container in pod["status"].get("containerStatuses", []))


def _tells_a_step(job: Mapping[str, Any]) -> bool:
    return int(job.get("status", {}).get("progress", {}).get("step", 0)) >= 1
