"""NoticeTooShort: the last save took longer than a pod would have that is told to go."""

import pytest
from tests.operator.building import NOW, begun, manifest, pod, seen, snapshot

from shardwise.protocol.run_status import RunSummary
from shardwise_operator.decide.policies import notice
from shardwise_operator.observe.node import Node
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.poll import Poll
from shardwise_operator.observe.state import State
from shardwise_operator.reasons import NOTICE_TOO_SHORT

SPOT = Node(labels={"cloud.google.com/gke-spot": "true"})
PLAIN = Node(labels={"cloud.google.com/gke-spot": "false"})
SHORT = begun().with_condition(NOTICE_TOO_SHORT, "True", NOTICE_TOO_SHORT, "words", now=NOW - 60)


def _seen(checkpoint: dict[str, float] | None, node: Node = PLAIN, state: State | None = None) -> Observed:
    """A run with 60 s of grace that last said this of its checkpoint."""
    job = manifest()
    job["spec"]["pod"]["template"]["spec"]["terminationGracePeriodSeconds"] = 60
    poll = Poll(
        heard_at=NOW,
        fresh_seconds=8.0,
        status=RunSummary.model_validate({"phase": "running", "checkpoint": checkpoint}),
    )
    nodes = {"node-0-0": PLAIN, "node-0-1": node}
    return seen(state or begun(), pod(), pod("0-1"), made_of=snapshot(job), nodes=nodes, poll=poll)


@pytest.mark.parametrize(
    ("observed", "status"),
    [
        (_seen(None), None),
        (_seen({"step": 10}), None),
        (_seen({"step": 10, "seconds": 59.0}), None),
        (_seen({"step": 10, "seconds": 61.0}), "True"),
        (_seen({"step": 10, "seconds": 14.0}, SPOT), None),
        (_seen({"step": 10, "seconds": 16.0}, SPOT), "True"),
        (_seen({"step": 10, "seconds": 59.0}, state=SHORT), "False"),
        (_seen(None, state=SHORT), "True"),
    ],
)
def test_what_is_said(observed: Observed, status: str | None) -> None:
    """Nothing while there is nothing to say; False only after True, and what is not measured anew stays."""
    plan = notice.decide(observed, NOW)
    said = (plan.state if plan else observed.state).condition(NOTICE_TOO_SHORT)

    assert (said.status if said else None) == status


def test_in_words() -> None:
    """Both times, and who gives the notice."""
    observed = _seen({"step": 10, "seconds": 16.04}, SPOT)

    plan = notice.decide(observed, NOW)

    assert plan is not None
    said = plan.state.condition(NOTICE_TOO_SHORT)
    assert said is not None
    assert said.message.startswith("the last save took 16.0 s, and node node-0-1 gives 15 s: ")


def test_nobody_is_asked() -> None:
    """A job whose host 0 was never asked says nothing."""
    observed = seen(begun(), pod(), pod("0-1"))

    assert notice.decide(observed, NOW) is None
