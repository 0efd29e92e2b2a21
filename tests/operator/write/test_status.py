"""What the status says of the training, from host 0's word or from the last record; nobody's guess."""

import json
from typing import Any

import pytest
from tests.operator.building import NOW, UID, begun, manifest, plan_pod, pod, record, seen, snapshot
from tests.operator.operating import told

from shardwise.protocol.contract import ExitCode
from shardwise.protocol.job_status import MAX_HOSTS, MAX_MESSAGE, JobStatus
from shardwise.protocol.pods import TerminationRecord
from shardwise_operator.decide.plan import Plan
from shardwise_operator.decide.policies import new_round
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.poll import Poll
from shardwise_operator.observe.state import Finding, Loss, Phase, Preflight
from shardwise_operator.observe.state_fields import read_state, write_state
from shardwise_operator.runtime.kinds import PODS
from shardwise_operator.write.apply import Outcome
from shardwise_operator.write.status import compose


def _compose(observed: Observed, old: dict[str, Any] | None = None, outcome: Outcome | None = None) -> dict[str, Any]:
    status = compose(observed, Plan(state=observed.state), outcome or Outcome(), old or {}, NOW)
    JobStatus.model_validate(status, by_alias=True, by_name=False)
    return status


def _told(**fields: Any) -> Poll:
    return Poll(heard_at=NOW - 1, fresh_seconds=8.0, status=told(**fields))


def test_progress_is_the_run_s_word() -> None:
    """With figures that may not be numbers as text, and the time that is left at the last step's pace."""
    status = _compose(seen(begun(), pod(), pod("0-1"), poll=_told(step=10, joined=1)))

    assert status["progress"] == {
        "step": 10,
        "of": 100,
        "loss": "2.5000",
        "heldOutLoss": "2.7500",
        "tokensPerSecond": "1000",
        "mfu": "25.0%",
        "eta": "3m0s",
        "observedAt": "2027-01-15T07:59:59Z",
    }
    assert status["goodput"] == "50%"
    assert status["hosts"] == {"ready": 1, "of": 2, "summary": "1/2"}


@pytest.mark.parametrize(
    ("reported", "before", "pods", "ready"),
    [
        pytest.param({"joined": 2}, 0, ["Running", "Running"], 2, id="all"),
        pytest.param({"joined": 0}, 2, ["Running", "Running"], 0, id="starting"),
        pytest.param({"joined": 2}, 2, ["Running", "Failed"], 1, id="lost since"),
        pytest.param({}, 0, ["Running", "Running"], 2, id="of an older release"),
        pytest.param(None, 0, ["Running", "Running"], 0, id="not asked yet"),
        pytest.param(None, 2, ["Running", "Running"], 2, id="silent"),
        pytest.param(None, 2, ["Running", "Pending"], 1, id="silent, and one is made anew"),
    ],
)
def test_the_hosts_that_have_joined(reported: dict[str, int] | None, before: int, pods: list[str], ready: int) -> None:
    """Host 0 counts them: a pod that runs says nothing of its trainer, and one that has ended has none."""
    poll = None if reported is None else _told(**reported)
    there = [pod(f"0-{host}", phase=phase) for host, phase in enumerate(pods)]

    status = _compose(seen(begun(), *there, poll=poll), {"hosts": {"ready": before, "of": 2}})

    assert status["hosts"] == {"ready": ready, "of": 2, "summary": f"{ready}/2"}


def test_saves_that_fail_are_told_until_one_succeeds() -> None:
    """With when the last one was heard of. They stay while host 0 is silent; the end of the run has its own words."""
    failed = {"inARow": 2, "reason": "503"}
    first = _compose(seen(begun(), pod(), pod("0-1"), poll=_told(failedSaves=failed)))
    assert first["failedSaves"] == {**failed, "time": "2027-01-15T07:59:59Z"}

    later = Poll(heard_at=NOW + 60, fresh_seconds=8.0, status=told(failedSaves=failed))
    ended = pod(phase="Failed", record=record(84)), pod("0-1")
    for poll, kept in ((later, True), (None, True), (_told(), False)):
        status = _compose(seen(begun(), pod(), pod("0-1"), poll=poll), first)
        assert status.get("failedSaves") == (first["failedSaves"] if kept else None)
    assert "failedSaves" not in _compose(seen(begun(), *ended, poll=later), first)


def test_a_pod_of_a_host_that_the_job_no_longer_has_is_none_of_the_round() -> None:
    """Its host keeps its number, and the pod is there for as long as its node is silent."""
    attempts = {"0-0": 1, "0-1": 1, "1-0": 0}
    state = begun(Phase.PENDING, round=1, attempts=attempts, pods={"0-0": "uid-0-0-1"})
    left = pod("1-0", deleting_at=NOW - 90)
    composed = _compose(seen(state, pod(attempt=1, round=1), pod("0-1", 1, round=1), left))

    assert composed["pods"] == {"0-0": "uid-0-0-1", "0-1": "uid-0-1-1"}


def test_time_alone_is_no_news() -> None:
    """A pass for another reason does not write the same figures with another time."""
    first = _compose(seen(begun(), pod(), pod("0-1"), poll=_told(step=10)))
    later = Poll(heard_at=NOW + 60, fresh_seconds=8.0, status=told(step=10))

    assert _compose(seen(begun(), pod(), pod("0-1"), poll=later), first)["progress"] == first["progress"]


def test_the_slowest_host_is_named_as_its_pods_are() -> None:
    """By slice and host, not by rank."""
    status = _compose(seen(begun(), pod(), pod("0-1"), poll=_told(slowestHost=1)))

    assert status["progress"]["slowestHost"] == "0-1"


def test_silence_keeps_what_was_said() -> None:
    """The last known step stays, with its time; so it does over a suspend."""
    old = {"progress": {"step": 7}, "goodput": "40%"}

    status = _compose(seen(begun(Phase.SUSPENDED)), old)

    assert status["progress"] == {"step": 7}
    assert status["goodput"] == "40%"


def test_checkpoints_of_another_place_are_not_those_of_the_run() -> None:
    """A job that goes on with another path has none yet: a step of before would keep its budgets from filling again."""
    old = {"checkpoint": {"step": 500}, "failedSaves": {"inARow": 1, "reason": "full"}, "progress": {"step": 510}}
    ended = pod(phase="Failed", record=record(ExitCode.SAVED, checkpoint_step=510))
    suspended = begun(Phase.SUSPENDED, pods={})
    job, other = manifest(), manifest()
    other["spec"]["training"]["checkpoint"] = {"path": "/runs/others"}

    def resumed(after: dict[str, Any]) -> dict[str, Any]:
        observed = seen(suspended, ended, made_of=snapshot(after), snapshot=snapshot(job), saved_step=500)
        plan = new_round.decide(observed, NOW)
        assert plan is not None
        assert plan.state.round == 1
        return compose(observed, plan, Outcome(), old, NOW)

    moved = resumed(other)

    assert resumed(job)["checkpoint"] == {"step": 510}
    assert moved.keys() & {"checkpoint", "failedSaves"} == set()
    assert moved["progress"]["step"] == 100


def test_what_a_newer_release_has_said_is_kept() -> None:
    """After a rollback it may come back, and goes by it; what this one knows and has no more to say of goes."""
    newer = {"weather": {"sun": 1}, "progress": {"step": 9}, "phase": "Drifting", "round": 0, "notBefore": "2020"}
    status = compose(seen(begun()), Plan(state=begun()), Outcome(), newer, NOW)

    assert (status["weather"], status["progress"], status["phase"]) == ({"sun": 1}, {"step": 9}, "Running")
    assert "notBefore" not in status
    assert read_state({"phase": "Drifting", "round": 0}).phase == Phase.RECOVERING
    assert read_state({"phase": "Drifting"}).phase == Phase.PENDING


def test_the_end_is_the_last_record_s() -> None:
    """Step, loss, checkpoint, digest, goodput and restarts outlive the pods' agents."""
    ended = pod(phase="Succeeded", record=record(0, restarts={"hang": 2}, held_out_loss="2.5"))

    status = _compose(seen(begun(Phase.COMPLETE, completed_at=NOW), ended))

    assert status["progress"] == {"step": 100, "of": 100, "loss": "1.2345", "heldOutLoss": "2.5000"}
    assert status["checkpoint"] == {"step": 100}
    assert status["digest"] == "d" * 16
    assert status["restarts"] == {"hang": 2}
    assert status["completionTime"] == "2027-01-15T08:00:00Z"


@pytest.mark.parametrize("code", [ExitCode.HOSTS_MISSING, ExitCode.STORAGE])
def test_an_agent_that_could_not_begin_has_no_figures(code: ExitCode) -> None:
    """Its record says nothing of the run: what is known stays, and restarts are not counted as new ones later."""
    unknown = TerminationRecord(code=code, host=1, message="nothing heard of host 0")
    old = {
        "progress": {"step": 90_000, "of": 100_000, "loss": "2.1000", "mfu": "45.0%"},
        "checkpoint": {"step": 89_000},
        "goodput": "88%",
        "restarts": {"failure": 2, "hang": 3},
        "restartCount": 5,
    }

    status = _compose(seen(begun(), pod(phase="Failed"), pod("0-1", phase="Failed", record=unknown)), old)

    assert {name: status[name] for name in old} == old


def test_a_lost_pod_is_one_restart() -> None:
    """To the run it is a lost host, to the operator an eviction: it is counted once, under the name that says more."""
    state = begun(losses={"eviction": 1})
    status = _compose(seen(state, pod(), pod("0-1"), poll=_told(restarts={"hostLost": 1, "failure": 2})))

    assert status["restarts"] == {"eviction": 1, "failure": 2}
    assert status["restartCount"] == 3
    silent = _compose(seen(state, pod(), pod("0-1")), status)
    assert silent["restarts"] == status["restarts"]


@pytest.mark.parametrize("run", ["told by host 0", "told by its record"])
def test_an_image_that_could_not_be_pulled_hides_no_lost_host(run: str) -> None:
    """The run counts none of it: there was no run while the pods waited for their image."""
    counted = {"hostLost": 2}
    poll = _told(restarts=counted) if run == "told by host 0" else None
    last: dict[str, Any] = {} if poll else {"phase": "Failed", "record": record(84, restarts=counted)}

    status = _compose(seen(begun(losses={"image": 3, "nodeLost": 1}), pod(**last), pod("0-1"), poll=poll))

    assert status["restarts"] == {"hostLost": 1, "image": 3, "nodeLost": 1}
    assert status["restartCount"] == 5


def test_pods_that_were_made_are_known() -> None:
    """By their UID: without it a pod that goes at once could not be missed."""
    made = {
        "metadata": {
            "uid": "new",
            "name": "job-0-1-0",
            "labels": {"shardwise.dev/slice": "0", "shardwise.dev/host": "1"},
        }
    }

    status = _compose(seen(begun(pods={}), pod()), outcome=Outcome(made=[(PODS, made)]))

    assert status["pods"] == {"0-0": "uid-0-0-0", "0-1": "new"}


def test_what_was_refused_is_said() -> None:
    """With the API server's words."""
    status = _compose(seen(begun(Phase.PENDING, pods={})), outcome=Outcome(reason="QuotaExceeded", message="exceeded"))

    assert status["reason"] == "QuotaExceeded"
    assert status["message"] == "exceeded"
    (condition,) = [each for each in status["conditions"] if each["type"] == "Scheduled"]
    assert (condition["status"], condition["reason"]) == ("False", "QuotaExceeded")


def test_the_pod_of_a_plan_is_no_host() -> None:
    """It is known while the plan is made, so that a deleted one is missed, and counts among no hosts."""
    state = begun(Phase.PENDING, pods={}, attempts={"0-0": 0, "0-1": 0, "plan": 0}, preflight=Preflight(of="x"))
    made = begun(Phase.PENDING, pods={}, preflight=Preflight(of="x", finding=Finding.FITS))

    planning, planned = _compose(seen(state, plan_pod())), _compose(seen(made, plan_pod(phase="Succeeded")))

    assert planning["hosts"] == planned["hosts"] == {"ready": 0, "of": 2, "summary": "0/2"}
    assert planning["pods"] == {"plan": "uid-plan-0"}
    assert "pods" not in planned


def test_the_largest_status_fits_into_etcd() -> None:
    """Of the most hosts that a job can have, each known by its pod, its node and the node that it is to avoid."""
    hosts = [f"{slice_}-{host}" for slice_ in range(4) for host in range(MAX_HOSTS // 4)]
    node = "gke-cluster-of-some-length-pool-of-some-length-12345678-abcd"
    places = {host: f"{node}{host}" for host in hosts}
    loss = Loss(NOW, frozenset(range(MAX_HOSTS // 4)))
    state = begun(
        attempts=dict.fromkeys(hosts, 1000),
        pods=dict.fromkeys(hosts, UID),
        lost_at=places,
        leaving=places,
        last_loss={str(slice_): loss for slice_ in range(4)},
    )

    status = write_state(state, 1)

    assert len(json.dumps(status, separators=(",", ":"))) < 1_100_000


def test_no_message_is_longer_than_the_api_server_takes() -> None:
    """It would keep the whole status out, for as long as it is said."""
    state = begun(message="m" * 40_000).with_condition("Failed", "True", "Hang", "n" * 40_000, now=NOW)

    status = _compose(seen(state, pod(), pod("0-1")))

    assert status["message"] == "m" * MAX_MESSAGE
    assert {"n" * MAX_MESSAGE} == {each["message"] for each in status["conditions"] if each["type"] == "Failed"}


def test_the_largest_job_has_a_plan_too() -> None:
    """The plan's pod has a number beside those of all hosts."""
    hosts = [f"{slice_}-{host}" for slice_ in range(4) for host in range(MAX_HOSTS // 4)]
    state = begun(Phase.PENDING, pods={}, attempts=dict.fromkeys([*hosts, "plan"], 0), preflight=Preflight(of="x"))

    assert len(_compose(seen(state))["attempts"]) == MAX_HOSTS + 1
