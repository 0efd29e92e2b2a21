"""What tools that know nothing of training make of a job in each phase: kstatus (Flux, kpt) and Argo CD."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.packages import LUA, require
from tests.operator.building import NOW, SETTINGS, begun, manifest, pod, record, seen
from tests.operator.operating import told

from shardwise_operator.decide.decide import decide
from shardwise_operator.decide.plan import Plan
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.poll import Poll
from shardwise_operator.observe.state import Phase
from shardwise_operator.observe.state_fields import read_state
from shardwise_operator.write.apply import Outcome
from shardwise_operator.write.status import compose

HEALTH = Path(__file__).parents[3] / "docs" / "argocd-health.lua"

Job = dict[str, Any]


def _says(phase: str) -> Poll:
    return Poll(heard_at=NOW - 1, fresh_seconds=8.0, status=told(phase, reason="because"))


def _two(**fields: Any) -> tuple[Any, Any]:
    return pod(**fields), pod("0-1", **fields)


def _ended(code: int) -> Observed:
    return seen(begun(), *_two(phase="Failed" if code else "Succeeded", record=record(code, cause="nonfinite")))


# The job as a pass sees it, and what kstatus and Argo CD must call it afterwards.
CASES: dict[str, tuple[Observed, str, str]] = {
    "pending": (seen(begun(Phase.PENDING), *_two(phase="Pending", node=None)), "InProgress", "Progressing"),
    "starting": (seen(begun(Phase.STARTING), *_two(), poll=_says("starting")), "InProgress", "Progressing"),
    "running": (seen(begun(), *_two(), poll=_says("running")), "InProgress", "Progressing"),
    "hung": (seen(begun(), *_two(), poll=_says("stalled")), "InProgress", "Progressing"),
    "silent": (seen(begun(), *_two()), "InProgress", "Progressing"),
    "recovering": (seen(begun(Phase.RECOVERING), *_two(), poll=_says("recovering")), "InProgress", "Progressing"),
    "suspending": (seen(begun(), *_two(), suspend=True), "InProgress", "Progressing"),
    "suspended": (seen(begun(Phase.SUSPENDING, stop_asked_at=NOW), suspend=True), "InProgress", "Suspended"),
    "complete": (_ended(0), "Current", "Healthy"),
    "failed": (_ended(82), "Failed", "Degraded"),
}

every = pytest.mark.parametrize(("observed", "kstatus", "argo"), CASES.values(), ids=CASES)


def job(observed: Observed, generation: int = 1) -> Job:
    """Return the job as it is after a pass over what was observed, with a status that is about `generation`."""
    plan = decide(observed, SETTINGS, NOW)
    status = compose(observed, plan, Outcome(), {}, NOW)
    made = manifest()
    made["metadata"]["generation"] = generation
    return {**made, "status": {**status, "observedGeneration": 1}}


def kstatus_of(of: Job) -> str:
    """Judge an object as kubernetes-sigs/cli-utils does, in pkg/kstatus/status/{generic,status}.go."""
    if of["metadata"].get("deletionTimestamp"):
        return "Terminating"
    status = of.get("status", {})
    if status.get("observedGeneration", of["metadata"]["generation"]) != of["metadata"]["generation"]:
        return "InProgress"
    conditions = [(each["type"], each["status"]) for each in status.get("conditions", [])]
    for condition in conditions:  # the first that is True decides
        if condition == ("Reconciling", "True"):
            return "InProgress"
        if condition == ("Stalled", "True"):
            return "Failed"
    ready = dict(conditions).get("Ready")
    return "Current" if ready in (None, "True") else "InProgress"


def health_of(of: Job) -> tuple[str, str]:
    """Judge an object by the script for Argo CD, in a real Lua."""
    require(LUA)
    script = f"obj = {_lua(of)}\nlocal health = (function() {HEALTH.read_text(encoding='utf-8')} end)()\n"
    script += 'print(health.status .. "\\t" .. health.message)'
    told = subprocess.run(["lua5.1", "-"], input=script, capture_output=True, text=True, check=True)
    status, _, message = told.stdout.rstrip("\n").partition("\t")
    return status, message


def _lua(value: object) -> str:
    """Return a value of JSON as Lua writes it."""
    match value:
        case dict():
            return "{" + ", ".join(f"[{json.dumps(key)}] = {_lua(part)}" for key, part in value.items()) + "}"
        case list() | tuple():
            return "{" + ", ".join(map(_lua, value)) + "}"
        case None:
            return "nil"
        case _:
            return json.dumps(value)


@every
def test_kstatus(observed: Observed, kstatus: str, argo: str) -> None:
    """A complete job is current, a failed one has failed, every other one is on its way."""
    assert argo
    assert kstatus_of(job(observed)) == kstatus


@every
def test_argo_cd(observed: Observed, kstatus: str, argo: str) -> None:
    """Argo CD agrees, but that it knows suspension; the message has the reason."""
    assert kstatus
    found = job(observed)
    status, message = health_of(found)

    assert status == argo
    assert message.startswith(f"{found['status']['phase']}: {found['status']['reason']}")


@every
def test_a_change_that_nobody_has_looked_at(observed: Observed, kstatus: str, argo: str) -> None:
    """A status that is about an older generation says nothing of the job as it is now."""
    assert kstatus
    assert argo
    assert kstatus_of(job(observed, generation=2)) == "InProgress"
    assert health_of(job(observed, generation=2))[0] == "Progressing"


def test_a_job_without_a_status() -> None:
    """Argo CD waits for the operator. kstatus takes it for current, as any object of a kind that it does not know."""
    assert health_of(manifest()) == ("Progressing", "the operator has not looked at it yet")


def test_every_phase_is_tried() -> None:
    """Each phase of a job has a case above."""
    assert {job(observed)["status"]["phase"] for observed, *_ in CASES.values()} == {*map(str, Phase)}


@every
def test_conditions_stay(observed: Observed, kstatus: str, argo: str) -> None:
    """A pass that finds nothing new leaves them as they are, their times included: each write costs every watcher."""
    assert kstatus
    assert argo
    first = job(observed)["status"]
    again = replace(observed, state=read_state(first))
    later = compose(again, Plan(state=again.state), Outcome(), first, NOW + 60)

    assert later["conditions"] == first["conditions"]
    assert first["conditions"][0]["type"] == "Reconciling"
