"""What others say, drawn: host 0's answers, and what containers leave at their end. Both are whatever a pod makes them.

Each is refused as a whole, or it makes a status that the API server takes, and metrics that Prometheus reads.
"""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from tests.operator.building import NOW, SETTINGS, begun, manifest, plan_pod, pod, seen, snapshot

from shardwise.protocol.job_status import JobStatus
from shardwise.protocol.pods import TerminationRecord, Verdict
from shardwise.protocol.run_status import RunSummary
from shardwise_operator.decide.decide import decide
from shardwise_operator.job_metrics import JobMetrics
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.poll import Poll
from shardwise_operator.observe.state import Phase, Preflight
from shardwise_operator.write.apply import Outcome
from shardwise_operator.write.milestones import milestones
from shardwise_operator.write.status import compose

_KEPT_BYTES = 4096  # what the kubelet keeps of a container's message
_WORDS = st.sampled_from(
    ["", "running", "recovering", "done", "hang", "a" * 63, "a" * 64, "nan", "-inf", "é", "\0", "1_0"]
)
_NUMBERS = st.one_of(st.integers(-1, 2**31), st.integers(), st.floats())
_ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), _NUMBERS, _WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_WORDS, inner, max_size=3)),
    max_leaves=5,
)
_COUNTS = st.dictionaries(_WORDS, st.integers(0, 2**31 - 1), max_size=20)
_SECONDS = st.dictionaries(_WORDS, st.floats(0, 1e12), max_size=4)


def _or_anything(likely: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(likely, likely, likely, _ANYTHING)


def _object(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={name: _or_anything(values) for name, values in fields.items()})


_PROGRESS = _object(
    step=st.integers(0, 2**31 - 1),
    of=st.integers(0, 2**31 - 1),
    loss=st.one_of(st.floats(), _WORDS),
    tokensPerSecond=st.one_of(st.floats(), _WORDS),
    mfu=st.one_of(st.floats(), _WORDS),
    stepSeconds=st.floats(0, 1e12),
    etaSeconds=st.floats(0, 1e22),
)
_TOLD = st.builds(
    lambda phase, rest: {"phase": phase, **rest},
    _or_anything(st.sampled_from(["running", "recovering", "stalled", "done", "x" * 32])),
    _object(
        reason=st.text(max_size=20),
        attempt=st.integers(0, 9),
        restarts=_COUNTS,
        slowestHost=st.integers(0, 2**31 - 1),
        progress=_PROGRESS,
        checkpoint=_object(step=st.integers(0, 2**31 - 1), seconds=st.floats(0, 1e12)),
        failedSaves=_object(inARow=st.integers(0, 2**31 - 1), reason=st.text(max_size=5000)),
        joined=st.integers(0, 2**31 - 1),
        goodput=_SECONDS,
        stuck=st.lists(_object(host=st.just(1), address=_WORDS, message=_WORDS), max_size=2),
    ),
)
_RECORD = st.fixed_dictionaries(
    {
        "code": _or_anything(st.sampled_from([None, 0, 1, 80, 82, 84, 85, 143, 255])),
        "host": _or_anything(st.just(0)),
        "attempt": _or_anything(st.just(0)),
        "step": _or_anything(st.integers(0, 2**31 - 1)),
        "steps": _or_anything(st.integers(0, 2**31 - 1)),
        "loss": _or_anything(st.one_of(st.none(), _WORDS, st.just("2.5"))),
        "checkpointStep": _or_anything(st.one_of(st.none(), st.integers(0, 2**31 - 1))),
        "digest": _or_anything(st.one_of(st.none(), st.just("d" * 16))),
        "restarts": _or_anything(_COUNTS),
        "goodput": _or_anything(st.dictionaries(_WORDS, st.floats(), max_size=3)),
        "cause": _or_anything(st.one_of(st.none(), _WORDS)),
        "rank": _or_anything(st.one_of(st.none(), st.integers())),
        "exit": _or_anything(st.one_of(st.none(), _WORDS)),
        "message": _or_anything(st.text(max_size=200)),
        "tail": _or_anything(st.text(max_size=200)),
    }
)
_A_RECORD: dict[str, Any] = {
    **dict.fromkeys(("code", "host", "attempt", "step", "steps"), 0),
    **dict.fromkeys(("loss", "checkpoint_step", "digest", "cause", "rank", "exit")),
    "restarts": {},
    "goodput": {},
    "message": "",
    "tail": "",
}


def _check(observed: Observed) -> None:
    """A pass over this makes a status within the CRD's bounds, and its events can be told."""
    plan = decide(observed, SETTINGS, NOW)
    status = compose(observed, plan, Outcome(), {}, NOW)
    JobStatus.model_validate(json.loads(json.dumps(status, allow_nan=False)), by_alias=True, by_name=False)
    assert all(event.reason for event in (*plan.events, *milestones({}, status)))


@given(_TOLD)
@example({"phase": "running", "restarts": {"hang": 2**31 - 1, "failure": 2**31 - 1}})
@example({"phase": "running", "progress": {"step": 2**31 - 1, "of": 0, "etaSeconds": 1e22}})
@example({"phase": "running", "goodput": {"": 1.0}})
def test_what_host_0_says(told: Mapping[str, Any]) -> None:
    """No answer stops the passes of its job, or the metrics of all."""
    try:
        status = RunSummary.model_validate_json(json.dumps(told))
    except ValueError:
        return
    poll = Poll(heard_at=NOW - 1, fresh_seconds=8.0, status=status)
    registry = CollectorRegistry()
    job = manifest()
    job["metadata"]["uid"] = "uid"
    registry.register(JobMetrics(lambda: [job], lambda: {"uid": status}, leads=lambda: True))

    _check(seen(begun(), pod(), pod("0-1"), poll=poll))
    assert generate_latest(registry)


@given(_RECORD)
@example({**_A_RECORD, "loss": "much"})
@example({**_A_RECORD, "goodput": {"step": float("inf")}})
@example({**_A_RECORD, "goodput": {"step": -1.0, "start": 1.0000001}})
@example({**_A_RECORD, "restarts": {"hang": 2**31 - 1, "failure": 2**31 - 1}})
@example({**_A_RECORD, "code": 1, "cause": "x" * 64})
def test_what_an_agent_leaves(record: Mapping[str, Any]) -> None:
    """A record that is none is none; another ends or goes on with the job."""
    read = TerminationRecord.loads(json.dumps(record)[:_KEPT_BYTES])
    ended = pod(phase="Failed", exit_code=1, exit_reason="Error", record=read, ready=False)

    _check(seen(begun(), ended, pod("0-1")))


@given(
    st.one_of(
        _object(
            fits=st.one_of(st.none(), st.booleans()),
            neededBytes=st.integers(0, 2**63),
            limitBytes=st.one_of(st.none(), st.integers(0, 2**63)),
            change=st.one_of(st.none(), _WORDS),
            standIn=st.booleans(),
        ),
        _ANYTHING,
    )
)
@example({"fits": True, "neededBytes": 10**400, "limitBytes": None, "change": None, "standIn": False})
def test_what_a_plan_leaves(verdict: Any) -> None:
    """A verdict that is none fails the plan, in words."""
    text = json.dumps(verdict)
    made_of = snapshot(manifest(preflight="plan"))
    state = begun(Phase.PENDING, hosts=(), attempts={"plan": 0}, preflight=Preflight(of=made_of.planned_digest))
    ended = plan_pod(phase="Succeeded", exit_code=0, termination_message=text, ready=False)

    _check(seen(state, ended, made_of=made_of))
    read = Verdict.loads(text)
    assert read is None or read.words


@pytest.mark.parametrize("text", ["[" * _KEPT_BYTES, '{"a":' * 800, "\0", "{}", "null", "\ud800"])
def test_what_is_nothing(text: str) -> None:
    """Neither a record nor a verdict, however deep."""
    assert TerminationRecord.loads(text) is None
    assert Verdict.loads(text) is None
