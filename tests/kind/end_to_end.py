"""The promise itself, on the real kind: install the chart, train over two nodes, lose the control plane meanwhile.

`make test-kind` runs it by its path; it is not among the tests of `make test`, since it takes minutes and a Docker.
Everyday tests use the bare cluster (tests/cluster), whose control plane never fails.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.commands import ClusterError, attempt, run, say, wait
from tests.cluster.programs import programs
from tests.kind import lifecycle
from tests.kind.places import KUBECONFIG, VOLUME

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "kubernetes" / "cpu-two-hosts.yaml"
STEPS: int = yaml.safe_load(EXAMPLE.read_text())["spec"]["training"]["steps"]
STEPS_WITHOUT = 5  # that the job takes while no control plane is there
JOB = ("trainingjob", "cpu-two-hosts")


def kubectl(*words: str | Path) -> str:
    """Run kubectl against the kind cluster and return what it printed."""
    return run(programs() / "kubectl", "--kubeconfig", KUBECONFIG, *words)


def job() -> dict[str, Any]:
    """Return the job as the API server has it now."""
    found: dict[str, Any] = json.loads(kubectl("get", *JOB, "--output=json"))
    return found


def pods() -> dict[str, str]:
    """Return the UID of every pod of the job, by name."""
    items = json.loads(kubectl("get", "pods", "--output=json"))["items"]
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in items}


def steps(folder: Path) -> list[int]:
    """Return the steps in the run's metrics, in the order they were written; none before there are any."""
    path = folder / "cpu-two-hosts" / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    records = (json.loads(line) for line in lines)
    return [record["step"] for record in records if "step" in record and "event" not in record]


def expect(what: str, ready: Callable[[], object], seconds: float) -> None:
    """Wait until `ready` says so; else fail with all that the cluster knows of the job, since it is gone afterwards."""
    try:
        wait(what, ready, seconds)
    except ClusterError as failure:
        asked = (
            ("describe", *JOB),
            ("get", "pods", "--all-namespaces", "--output=wide"),
            ("get", "events", "--sort-by=.lastTimestamp"),
            ("logs", "--namespace=shardwise-system", "--selector=app.kubernetes.io/name=shardwise", "--tail=40"),
        )
        words = (attempt(programs() / "kubectl", "--kubeconfig", KUBECONFIG, *words)[1] for words in asked)
        pytest.fail("\n\n".join((str(failure), *words)))


@pytest.fixture(scope="module")
def volume() -> Iterator[Path]:
    """Return the folder behind the claim `runs` of a kind cluster that has the chart; all of it goes afterwards."""
    assert not lifecycle.is_up(), "a kind cluster is up, and this test makes its own: make cluster-down KIND=1"
    os.environ["PATH"] += ":/usr/local/sbin:/usr/sbin:/sbin"
    builds = (run(sys.executable, "-m", "images.build", target, folder=ROOT) for target in ("operator", "cpu"))
    images = [printed.splitlines()[-1] for printed in builds]
    try:
        lifecycle.up()
        for image in images:
            lifecycle.load(image)
        say("installing the chart")
        where = ("--kubeconfig", KUBECONFIG, "--namespace", "shardwise-system", "--create-namespace")
        run(programs() / "helm", "install", "shardwise", ROOT / "charts/shardwise", *where, "--wait", "--timeout=5m")
        yield VOLUME / "default"
    finally:
        lifecycle.down()


def test_a_job_that_loses_its_control_plane_loses_no_step(volume: Path) -> None:
    """While the control plane is dead the job goes on; when it is back, the same pods have taken every step once."""
    kubectl("apply", "--filename", EXAMPLE)
    expect("the first step", lambda: steps(volume), 600)
    before = pods()

    lifecycle.kill_node()
    say(f"the control plane is dead at step {(seen := steps(volume)[-1])}")
    assert seen + STEPS_WITHOUT < STEPS, "the job was over before its control plane died"
    expect("steps without a control plane", lambda: steps(volume)[-1] >= seen + STEPS_WITHOUT, 300)
    say(f"the control plane boots at step {steps(volume)[-1]}")
    lifecycle.start_node()
    complete = ("wait", "--for=condition=Complete", "/".join(JOB), "--timeout=60s")
    options = ("--kubeconfig", KUBECONFIG, *complete)
    expect("the job to complete", lambda: attempt(programs() / "kubectl", *options)[0] == 0, 600)

    status = job()["status"]
    assert steps(volume) == list(range(1, STEPS + 1))
    assert (status["phase"], status["progress"]["step"]) == ("Complete", STEPS)
    assert status.get("restarts", {}) == {}
    assert pods() == before
