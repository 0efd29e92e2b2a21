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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.apply.stage import EXAMPLE, NAMESPACE, Stage
from benchmarks.operator.crowd import Arrivals
from benchmarks.turns import ROOT
from tests.cluster.commands import ClusterError, say, wait
from tests.kubernetes.jobs import EXAMPLES, Job, manifest

HOSTS = 2
IN_PODS, RESUMED, BY_COMMAND, BY_COMMAND_AGAIN = "pods, first", "pods, resumed", "command, cold", "command, warm"
MADE, SCHEDULED, STARTED, AGENTS, RAY = "pods are made", "scheduled", "containers run", "agents meet", "Ray"
OF_TRAINERS = ("interpreter", "imports", "join", "data", "restore", "init", "compile")
STEP, OTHER, TOTAL, TOLD = "step", "other", "total", "told by its status after"
WITHIN_SECONDS = 600
Phases = dict[str, float]

_POLL_SECONDS = 0.005
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods?watch=1"
_JOBS = f"/apis/shardwise.dev/v1alpha1/namespaces/{NAMESPACE}/trainingjobs?watch=1"


def in_pods(made: Stage) -> dict[str, Phases]:
    """{way: seconds by phase} of the job applied, and, after a suspend has taken its pods away, resumed in new ones."""
    job = manifest(EXAMPLE)
    folder = made.volume / Path(job["spec"]["pod"]["directory"]).name
    try:
        first = _in_pods(IN_PODS, folder, lambda: Job(made.client, NAMESPACE, made.volume, job))
        applied = Job(made.client, NAMESPACE, made.volume, job)
        applied.patch(suspend=True)
        applied.until_phase("Suspended", WITHIN_SECONDS)
        resumed = _in_pods(RESUMED, folder, lambda: applied.patch(suspend=False))
        applied.until_phase("Complete", WITHIN_SECONDS)
        return {IN_PODS: first, RESUMED: resumed}
    finally:
        Job(made.client, NAMESPACE, made.volume, job).delete()
        shutil.rmtree(folder, ignore_errors=True)


def by_command() -> dict[str, Phases]:
    """{way: seconds by phase} of `shardwise run` with an empty cache, and in a new directory with the same cache."""
    with tempfile.TemporaryDirectory(prefix="shardwise-bench-") as folder:
        return {way: _commanded(Path(folder), way) for way in (BY_COMMAND, BY_COMMAND_AGAIN)}


def _in_pods(way: str, folder: Path, start: Callable[[], object]) -> Phases:
    say(way)
    taken_before = len(_steps(folder))
    watches = {
        MADE: Arrivals(_PODS, "application/json", lambda _: True),
        SCHEDULED: Arrivals(_PODS, "application/json", lambda pod: "nodeName" in pod["spec"]),
        STARTED: Arrivals(_PODS, "application/json", _runs),
    }
    told = Arrivals(_JOBS, "application/json", lambda job: _step_told(job) > taken_before)
    began = time.time()
    start()
    since_session = time.time() - time.monotonic()
    seen = {what: since_session + watch.wait(HOSTS, what, WITHIN_SECONDS) for what, watch in watches.items()}
    wait("the next step", lambda: len(_steps(folder)) > taken_before, WITHIN_SECONDS)
    at = time.time()
    told_at = since_session + told.wait(1, "the status to tell it", WITHIN_SECONDS)
    return phases(began, seen, folder, at, taken_before) | {TOLD: told_at - at}


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
        while not _steps(directory) and run.poll() is None:
            time.sleep(_POLL_SECONDS)
        at = time.time()
        if run.wait(WITHIN_SECONDS):
            raise ClusterError(f"{' '.join(command)} failed:\n{(folder / 'log').read_text(errors='replace')[-4000:]}")
    return phases(began, {}, directory, at)


def phases(began: float, seen: Mapping[str, float], directory: Path, step_at: float, taken_before: int = 0) -> Phases:
    """Seconds by phase; `seen` has the moments up to the containers' start, in order."""
    lines = (directory / "logs" / "launcher.jsonl").read_text().splitlines()
    events = [event for line in lines if (event := json.loads(line))["time"] >= began]
    opened, started = (next(event for event in events if event["event"] == name) for name in ("session", "attempt"))
    marks = {**seen, AGENTS: opened["time"] - opened["seconds"], RAY: started["time"]}
    taken, since = Phases(), began
    for what, moment in marks.items():
        reached = max(moment, since)  # two watches may tell of one moment in the wrong order
        taken[what], since = reached - since, reached
    written = json.loads((directory / "summary.json").read_text())["phases"]
    taken |= {phase: written.get(phase, 0.0) for phase in OF_TRAINERS} | {STEP: _steps(directory)[taken_before]}
    total = step_at - began
    return taken | {OTHER: total - sum(taken.values()), TOTAL: total}


def _steps(directory: Path) -> list[float]:
    """Seconds of each step by its own account, as soon as its line is there."""
    metrics = directory / "metrics.jsonl"
    lines = metrics.read_text(encoding="utf-8").splitlines(keepends=True) if metrics.exists() else []
    records = (json.loads(line) for line in lines if line.endswith("\n"))
    return [float(record["stepSeconds"]) for record in records if "event" not in record]


def _runs(pod: Mapping[str, Any]) -> bool:
    return any("running" in container["state"] for container in pod["status"].get("containerStatuses", []))


def _step_told(job: Mapping[str, Any]) -> int:
    return int(job.get("status", {}).get("progress", {}).get("step", 0))
