"""Builders of what a pass sees: a job and its class, pods in the states that a kubelet brings them to, settings.

Used by the tests of the policies, the renderings and the controller. Everything has a default; a test says what it is
about.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from shardwise.protocol.pods import PLAN, TerminationRecord, Verdict
from shardwise_operator.config import Settings
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.pod import Pod
from shardwise_operator.observe.queueing import Queueing
from shardwise_operator.observe.snapshot import Snapshot, take_snapshot
from shardwise_operator.observe.state import Phase, State
from shardwise_operator.observe.workload import Admission, Workload
from shardwise_operator.render.names import pod_name
from shardwise_operator.render.secret import Tokens

NOW = 1_800_000_000.0
UID = "11111111-2222-3333-4444-555555555555"
IMAGE = "localhost/trainer:dev"
CLASSES = Path(__file__).parents[2] / "trainer" / "shardwise" / "job" / "classes"
SETTINGS = Settings(
    trainer_image=IMAGE,
    operator_namespace="shardwise-system",
    managed_by="",
    poll_seconds=2.0,
    tokens=Tokens(b"0" * 32),
)


def manifest(name: str = "job", *, hardware: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A TrainingJob on two hosts as it is applied; `spec` goes over its fields."""
    return {
        "apiVersion": "shardwise.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "hardware": hardware or {"accelerator": "cpu-sim", "topology": "2x2"},
            "training": {
                "model": {"preset": "tiny"},
                "data": {"train": [{"name": "text", "paths": ["README.md"]}]},
                "batch": {"sequences": 1024},
                "optimizer": {"name": "adamw", "learningRate": 1e-3},
                "steps": 100,
            },
            "pod": {
                "directory": "/runs/job",
                "template": {
                    "spec": {
                        "containers": [
                            {
                                "name": "agent",
                                "volumeMounts": [{"name": "runs", "mountPath": "/runs", "readOnly": False}],
                            }
                        ],
                        "volumes": [
                            {"name": "runs", "persistentVolumeClaim": {"claimName": "runs", "readOnly": False}}
                        ],
                    }
                },
            },
            **spec,
        },
    }


def asking(job: dict[str, Any], *, agent: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """Return the job with more in its template: in the pod spec, and in the agent's container."""
    asked = job["spec"]["pod"]["template"]["spec"]
    asked["containers"][0] |= agent or {}
    asked["containers"] += spec.pop("containers", [])
    asked["volumes"] += spec.pop("volumes", [])
    asked |= spec
    return job


@cache
def classes() -> Mapping[str, Mapping[str, Any]]:
    """The built-in classes as a cluster has them, by name."""
    read = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(CLASSES.glob("*.yaml"))]
    return {each["metadata"]["name"]: each for each in read}


def snapshot(job: Mapping[str, Any] | None = None) -> Snapshot:
    """What a round of the job is made of."""
    return take_snapshot(job or manifest(), classes(), image=IMAGE)


def seen(state: State | None = None, *pods: Pod, made_of: Snapshot | None = None, **fields: Any) -> Observed:
    """A job whose first round has begun, unless `state` says otherwise."""
    made_of = made_of or snapshot()
    filled: dict[str, Any] = {
        "namespace": "default",
        "name": "job",
        "uid": UID,
        "desired": made_of,
        "snapshot": made_of if state and state.round is not None else None,
        "state": state or State(),
        "pods": pods,
        **fields,
    }
    return Observed(**filled)


def begun(phase: Phase = Phase.RUNNING, *, hosts: tuple[str, ...] = ("0-0", "0-1"), **fields: Any) -> State:
    """The state of a round that began, and ran if it does, a minute ago, with all pods made."""
    state = State(
        phase=phase,
        round=0,
        attempts=dict.fromkeys(hosts, 0),
        pods={host: f"uid-{host}-0" for host in hosts},
        started_at=NOW - 60,
        ran_at=None if phase == Phase.PENDING else NOW - 60,
    )
    return replace(state, **fields)


def pod(key: str = "0-0", attempt: int = 0, *, phase: str = "Running", **fields: Any) -> Pod:
    """A pod that runs on a node of its own, unless told otherwise."""
    filled: dict[str, Any] = {
        "name": pod_name("job", key, attempt),
        "uid": f"uid-{key}-{attempt}",
        "key": key,
        "attempt": attempt,
        "round": 0,
        "phase": phase,
        "node": f"node-{key}",
        "address": f"10.0.0.{int(key.split('-')[1]) + 1}",
        "ready": phase == "Running",
        **fields,
    }
    return Pod(**filled)


def plan_pod(attempt: int = 0, *, phase: str = "Running", **fields: Any) -> Pod:
    """The pod that plans the job, on a node of its own, unless told otherwise."""
    filled: dict[str, Any] = {
        "name": pod_name("job", PLAN, attempt),
        "uid": f"uid-{PLAN}-{attempt}",
        "key": PLAN,
        "attempt": attempt,
        "round": 0,
        "phase": phase,
        "node": f"node-{PLAN}",
        "address": "10.0.1.1",
        "created_at": NOW - 60,
        "ready": phase == "Running",
        **fields,
    }
    return Pod(**filled)


def verdict(*, fits: bool | None = True, **fields: Any) -> Verdict:
    """What a plan says of a job that needs 3 GiB of a device."""
    filled: dict[str, Any] = {
        "fits": fits,
        "needed_bytes": 3 << 30,
        "limit_bytes": None if fits is None else (4 << 30 if fits else 2 << 30),
        "change": None,
        "stand_in": False,
        **fields,
    }
    return Verdict(**filled)


def record(code: int | None = 0, **fields: Any) -> TerminationRecord:
    """What an agent says at the end of a run of 100 steps."""
    filled: dict[str, Any] = {
        "code": code,
        "host": 0,
        "attempt": 0,
        "step": 100,
        "steps": 100,
        "loss": "1.2345",
        "checkpoint_step": 100,
        "digest": "d" * 16,
        "restarts": {},
        "goodput": {"step": 90.0, "start": 10.0},
        "cause": None,
        "rank": None,
        "exit": None,
        "message": "complete",
        "tail": "",
        **fields,
    }
    return TerminationRecord(**filled)


def workload(**fields: Any) -> Workload:
    """The job's Workload, in its queue, which has not looked at it, unless told otherwise."""
    raw = {"metadata": {"name": "job-shardwise-11111111", "uid": "uid-workload", "resourceVersion": "7"}, "status": {}}
    return Workload(**{"name": "job-shardwise-11111111", "uid": "uid-workload", "queue": "team", "raw": raw, **fields})


def admitted(**fields: Any) -> Queueing:
    """How a job stands whose queue has admitted it."""
    filled = {"reserved": True, "admitted": True, "admitted_at": NOW - 60, "cluster_queue": "cluster", **fields}
    return Queueing(queue="team", workload=workload(**filled), admission=Admission())


def evicted(**fields: Any) -> Queueing:
    """How a job stands whose queue wants its quota back."""
    why = {"evicted": "Preempted", "evicted_message": "Preempted to accommodate a workload"}
    return Queueing(queue="team", workload=workload(**{"reserved": True, **why, **fields}))
