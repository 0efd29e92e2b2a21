"""Groups of pods in a queue: one that is over gives its quota back, one that goes on keeps it."""

from typing import Any

import pytest
from tests.operator.building import NOW, SETTINGS, begun, pod, seen

from shardwise_operator.decide.decide import decide
from shardwise_operator.decide.plan import Patch
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.pod import Pod
from shardwise_operator.observe.state import Phase, State


def _marked(observed: Observed) -> list[str]:
    """The pods of which the pass says that nobody follows them."""
    patches = [step for step in decide(observed, SETTINGS, NOW).steps if isinstance(step, Patch)]
    says = {"metadata": {"annotations": {"kueue.x-k8s.io/retriable-in-group": "false"}}}
    return [patch.name for patch in patches if patch.patch == says]


def _ended(host: str, **fields: Any) -> Pod:
    return pod(host, **{"phase": "Failed", "address": None, "group": "job-0", **fields})


AT_REST = [
    begun(Phase.SUSPENDED, pods={}),
    begun(Phase.FAILED, completed_at=NOW - 60),
    begun(Phase.COMPLETE, completed_at=NOW - 60),
]


@pytest.mark.parametrize("state", AT_REST, ids=lambda state: state.phase)
def test_a_job_at_rest_gives_its_quota_back(state: State) -> None:
    """One of its pods says so for all; without that a queue waits for their successors."""
    suspend = state.phase == Phase.SUSPENDED

    assert _marked(seen(state, _ended("0-0"), _ended("0-1"), suspend=suspend)) == ["job-0-0-0"]
    assert _marked(seen(state, _ended("0-0"), _ended("0-1", unfollowed=True), suspend=suspend)) == []
    assert _marked(seen(state, _ended("0-0", group=""), suspend=suspend)) == []


def test_an_earlier_round_gives_its_quota_to_the_next() -> None:
    """Which is another group, and would wait for what the job itself holds."""
    state = begun(round=1, attempts={"0-0": 1, "0-1": 1}, pods={"0-0": "uid-0-0-1", "0-1": "uid-0-1-1"})
    now = [pod(host, attempt=1, round=1, group="job-1") for host in ("0-0", "0-1")]

    assert _marked(seen(state, _ended("0-0"), _ended("0-1"), *now)) == ["job-0-0-0"]


def test_a_lost_pod_keeps_its_group() -> None:
    """Its successor takes its place in the quota."""
    state = begun(attempts={"0-0": 0, "0-1": 1}, pods={"0-0": "uid-0-0-0", "0-1": "uid-0-1-1"})

    assert _marked(seen(state, pod(group="job-0"), _ended("0-1"), pod("0-1", attempt=1, group="job-0"))) == []
