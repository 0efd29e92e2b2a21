"""A plan carried out: the pods of a job several at a time, and none more once one is refused."""

import threading
from dataclasses import replace
from typing import Any, cast

import pytest
from tests.operator.building import NOW, UID, begun, seen

from shardwise.protocol.pods import JOB_LABEL
from shardwise_operator.decide.plan import Create, Delete, Event, Patch, Plan, ReplaceStatus, Step
from shardwise_operator.observe.agents import Agents
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.state import Phase, State
from shardwise_operator.reasons import INVALID, NAME_CONFLICT, NOT_STARTED, SCHEDULED, TRUE
from shardwise_operator.render.names import MANAGED_BY_LABEL, MANAGER
from shardwise_operator.render.secret import Tokens
from shardwise_operator.runtime.errors import (
    AlreadyExistsError,
    ApiError,
    ForbiddenError,
    KubernetesError,
    NotFoundError,
    TooManyRequestsError,
    UnreachableError,
)
from shardwise_operator.runtime.kinds import CONFIG_MAPS, NETWORK_POLICIES, PODS, WORKLOADS, Kind, Object
from shardwise_operator.runtime.transport import Api
from shardwise_operator.write.apply import Applier, Outcome
from shardwise_operator.write.requests import Requests
from shardwise_operator.write.status import compose


class _Server:
    """Makes what it is asked for, as many at a time as come."""

    def __init__(self, *, refuses: str = "") -> None:
        self._refuses, self._lock = refuses, threading.Lock()
        self.made: list[str] = []
        self.most = self._now = self.done = 0
        self.patched: list[str] = []

    def create(self, _kind: Kind, obj: Object) -> Object:
        name = obj["metadata"]["name"]
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
            self.made.append(name)
        threading.Event().wait(0.02)
        with self._lock:
            self._now -= 1
            self.done += 1
        if name == self._refuses:
            raise ForbiddenError(403, "Forbidden", "exceeded quota: pods")
        return obj

    def patch(self, _kind: Kind, _namespace: str, name: str, _patch: Object, *, uid: str) -> None:
        self.patched.append(f"{name} {uid}")


class _Failing(_Server):
    """Makes no pods."""

    def __init__(self, error: KubernetesError) -> None:
        super().__init__()
        self._error = error

    def create(self, kind: Kind, obj: Object) -> Object:
        if kind == PODS:
            raise self._error
        return super().create(kind, obj)


def _apply(server: _Server) -> Any:
    pods = [Create(PODS, {"metadata": {"name": f"pod-{number}"}}) for number in range(100)]
    steps = (Create(NETWORK_POLICIES, {"metadata": {"name": "policy"}}), *pods)
    with Requests(Agents(), lambda _: None) as requests:
        applier = Applier(cast("Api", server), requests, Tokens(b"0" * 32))
        return applier.apply(seen(begun()), Plan(state=begun(), steps=steps))


def test_pods_are_made_several_at_a_time() -> None:
    """All of them, bounded, after what they need; the outcome has them in their order."""
    server = _Server()

    outcome = _apply(server)

    assert server.made[0] == "policy"
    assert [pod["metadata"]["name"] for pod in outcome.pods] == [f"pod-{number}" for number in range(100)]
    assert len(server.made) == 101
    assert 4 < server.most <= 16


class _Guarding(_Server):
    """Lets nobody change or delete anything."""

    def delete(self, _kind: Kind, _namespace: str, name: str, *, uid: str, grace_seconds: int | None) -> None:
        raise ForbiddenError(403, "Forbidden", f"{name} {uid} {grace_seconds}")

    def patch(self, _kind: Kind, _namespace: str, name: str, _patch: Object, *, uid: str) -> None:
        raise ForbiddenError(403, "Forbidden", f"{name} {uid}")

    def replace_status(self, _kind: Kind, obj: Object) -> None:
        raise ForbiddenError(403, "Forbidden", f"{obj['metadata']['name']} status")


def test_what_may_stay_holds_nothing_back(caplog: pytest.LogCaptureFixture) -> None:
    """Where the role lacks a right that only a newer operator uses, the job goes on; another deletion is refused."""
    server = _Guarding()
    old = Delete(CONFIG_MAPS, "job-shardwise-0", "uid", may_stay=True)
    with Requests(Agents(), lambda _: None) as requests:
        applier = Applier(cast("Api", server), requests, Tokens(b"0" * 32))
        create = Create(NETWORK_POLICIES, {"metadata": {"name": "policy"}})
        outcome = applier.apply(seen(begun()), Plan(state=begun(), steps=(old, create)))
        other = applier.apply(seen(begun()), Plan(state=begun(), steps=(replace(old, may_stay=False), create)))

    assert (server.made, outcome.reason, other.reason) == (["policy"], "", "Refused")
    assert caplog.messages == ["ConfigMap job-shardwise-0 stays: job-shardwise-0 uid None"]


_WORDS = "job-0-1-0 uid"
_REFUSED = [
    pytest.param(Patch(PODS, "job-0-1-0", "uid", {}), _WORDS, id="patch"),
    pytest.param(Delete(PODS, "job-0-1-0", "uid"), f"{_WORDS} None", id="delete"),
    pytest.param(ReplaceStatus(WORKLOADS, {"metadata": {"name": "job"}}), "job status", id="status"),
]


def _refused(step: Step, observed: Observed, state: State) -> Outcome:
    with Requests(Agents(), lambda _: None) as requests:
        applier = Applier(cast("Api", _Guarding()), requests, Tokens(b"0" * 32))
        return applier.apply(observed, Plan(state=state, steps=(step,)))


@pytest.mark.parametrize(("step", "words"), _REFUSED)
def test_a_change_that_is_refused_is_said(step: Step, words: str) -> None:
    """In the status and, once, in an event; it says nothing of where the pods are."""
    state = begun(reason="Running").with_condition(SCHEDULED, TRUE, "Scheduled", "", now=NOW)
    outcome = _refused(step, seen(state), state)
    status = compose(seen(state), Plan(state=state), outcome, {}, NOW)
    again = _refused(step, seen(replace(state, message=words)), state)

    assert (status["phase"], status["reason"], status["message"]) == ("Running", "Refused", words)
    assert {each["type"]: each["status"] for each in status["conditions"]}[SCHEDULED] == TRUE
    assert (outcome.events, again.events) == ([Event("Refused", words)], [])


@pytest.mark.parametrize("reason", [NOT_STARTED, INVALID, NAME_CONFLICT])
def test_a_reason_that_decisions_go_by_outlives_a_refusal(reason: str) -> None:
    """A job that gives its quota back would begin a round with each pass. The event has the API server's words."""
    state = begun(Phase.PENDING, reason=reason, message="why")
    outcome = _refused(Delete(PODS, "job-0-1-0", "uid"), seen(state), state)
    status = compose(seen(state), Plan(state=state), outcome, {}, NOW)

    assert (status["reason"], status["message"]) == (reason, "why")
    assert [event.reason for event in outcome.events] == ["Refused"]


@pytest.mark.parametrize("phase", [Phase.SUSPENDED, Phase.COMPLETE, Phase.FAILED])
def test_a_job_does_not_come_to_rest_by_what_was_refused(phase: Phase) -> None:
    """Its reason is how it ended, and nothing would be tried again: the pass fails, and is repeated."""
    with pytest.raises(ForbiddenError):
        _refused(Delete(PODS, "job-0-1-0", "uid"), seen(begun()), begun(phase))


class _Unlabelled(_Server):
    """Has this round's ConfigMap, which has lost its label."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted: list[str] = []

    def create(self, kind: Kind, obj: Object) -> Object:
        if kind == CONFIG_MAPS and not self.deleted:
            raise AlreadyExistsError(409, "AlreadyExists", "it is there")
        return super().create(kind, obj)

    def get(self, _kind: Kind, _namespace: str, name: str) -> Object:
        return {"metadata": {"name": name, "uid": "old", "ownerReferences": [{"uid": UID, "controller": True}]}}

    def delete(self, _kind: Kind, _namespace: str, name: str, *, uid: str) -> None:
        self.deleted.append(f"{name} {uid}")


def test_a_config_map_that_is_watched_no_more_is_made_anew() -> None:
    """One that has lost its label is in no cache: each pass would make it, and find it there."""
    server, observed = _Unlabelled(), seen(begun())
    plan = Plan(state=begun(), steps=(Create(CONFIG_MAPS, {"metadata": {"name": "job-shardwise-0"}}),))
    with Requests(Agents(), lambda _: None) as requests:
        applier = Applier(cast("Api", server), requests, Tokens(b"0" * 32))
        with pytest.raises(AlreadyExistsError):
            applier.apply(observed, plan)
        applier.apply(observed, plan)

    assert (server.deleted, server.made) == (["job-shardwise-0 old"], ["job-shardwise-0"])


def test_a_quota_is_not_run_against_by_all() -> None:
    """The first pod that is refused is asked for alone; later ones with the few of their batch."""
    first, later = _Server(refuses="pod-0"), _Server(refuses="pod-5")

    refused, partly = _apply(first), _apply(later)

    assert (first.made, refused.reason) == (["policy", "pod-0"], "QuotaExceeded")
    assert sorted(later.made) == ["pod-0", "pod-1", "pod-2", "pod-3", "pod-4", "pod-5", "pod-6", "policy"]
    assert (partly.reason, len(partly.pods)) == ("QuotaExceeded", 6)


def test_what_the_cache_does_not_show_yet_is_not_patched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes follow each other faster than the cache; what it does not show later on is patched once more."""
    server, now = _Server(), [100.0]
    monkeypatch.setattr("shardwise_operator.write.apply.time.monotonic", lambda: now[0])
    patch = Patch(NETWORK_POLICIES, "policy", "uid-1", {"metadata": {"labels": {"a": "b"}}})
    other = replace(patch, uid="uid-2")
    with Requests(Agents(), lambda _: None) as requests:
        applier = Applier(cast("Api", server), requests, Tokens(b"0" * 32))
        for steps in ((patch,), (patch,), (patch, other)):
            applier.apply(seen(begun()), Plan(state=begun(), steps=steps))
        assert server.patched == ["policy uid-1", "policy uid-2"]
        now[0] += 11.0
        applier.apply(seen(begun()), Plan(state=begun(), steps=(patch,)))
    assert server.patched == ["policy uid-1", "policy uid-2", "policy uid-1"]


@pytest.mark.parametrize("status", [500, 503])
def test_a_webhook_that_does_not_answer_is_said(status: int) -> None:
    """For as long as it does not: a pass that fails writes no status, so a job would not even have a phase."""
    words = 'Internal error occurred: failed calling webhook "pods.example.com": connection refused'

    outcome = _apply(_Failing(ApiError(status, "InternalError", words)))

    assert (outcome.reason, outcome.message) == ("Refused", words)
    assert [obj["metadata"]["name"] for _, obj in outcome.made] == ["policy"]


@pytest.mark.parametrize(
    "error", [TooManyRequestsError(429, "", "slowly"), NotFoundError(404, "", "none"), UnreachableError("silence")]
)
def test_what_is_tried_again_soon_is_no_refusal(error: KubernetesError) -> None:
    """The pass is repeated, on what there is then."""
    with pytest.raises(type(error)):
        _apply(_Failing(error))


_EARLIER = {"kind": "TrainingJob", "name": "job", "uid": "another", "controller": True}

_POD = {"kind": "Pod", "name": "job-0-0-0", "uid": "of the pod"}
_OURS = {MANAGED_BY_LABEL: MANAGER, JOB_LABEL: "job"}


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({}, "rename one of the two"),
        ({"deletionTimestamp": "2027-01-15T08:00:00Z"}, "it is being deleted, and the job waits for that"),
        ({"ownerReferences": [_EARLIER]}, "it is of an earlier job of this name, and goes with it"),
        ({"ownerReferences": [{**_EARLIER, "name": "other"}]}, "rename one of the two"),
        ({"ownerReferences": [_POD], "labels": _OURS}, "it is of an earlier job of this name, and goes with it"),
        ({"ownerReferences": [_POD], "labels": {**_OURS, JOB_LABEL: "other"}}, "rename one of the two"),
        ({"ownerReferences": [_POD], "labels": {JOB_LABEL: "job"}}, "rename one of the two"),
        ({"labels": _OURS}, "rename one of the two"),
    ],
)
def test_a_name_that_is_taken(found: Object, says: str) -> None:
    """Nobody is told to rename a job for pods that go by themselves."""

    class Taken(_Server):
        def create(self, _kind: Kind, _obj: Object) -> Object:
            raise AlreadyExistsError(409, "AlreadyExists", "it is there")

        def get(self, _kind: Kind, _namespace: str, name: str) -> Object:
            return {"metadata": {"name": name, "uid": "1", **found}}

    outcome = _apply(Taken())

    assert outcome.reason == "NameConflict"
    assert outcome.message.startswith("NetworkPolicy policy is there already and is not this job's: " + says)


def test_a_pod_that_only_says_it_is_the_jobs_takes_a_name() -> None:
    """Whoever may make pods can name any job as its controller: no pass fails by it, and the status says so."""

    class Forged(_Server):
        def create(self, _kind: Kind, _obj: Object) -> Object:
            raise AlreadyExistsError(409, "AlreadyExists", "it is there")

        def get(self, _kind: Kind, _namespace: str, name: str) -> Object:
            owner = {"kind": "TrainingJob", "name": "job", "uid": UID, "controller": True}
            return {"metadata": {"name": name, "uid": "1", "ownerReferences": [owner]}}

    plan = Plan(state=begun(), steps=(Create(PODS, {"metadata": {"name": "job-0-0-0"}}),))
    with Requests(Agents(), lambda _: None) as requests:
        outcome = Applier(cast("Api", Forged()), requests, Tokens(b"0" * 32)).apply(seen(begun()), plan)

    assert (outcome.reason, outcome.made) == ("NameConflict", [])
    assert outcome.message.startswith("Pod job-0-0-0 is there already, and names the job without being of it")


def test_a_pass_that_fails_leaves_nothing_on_its_way() -> None:
    """What was begun beside a step that failed is done when the pass has ended: no pod comes after it."""

    class Away(_Server):
        def create(self, kind: Kind, obj: Object) -> Object:
            if obj["metadata"]["name"] == "pod-1":
                raise UnreachableError("the API server does not answer")
            return super().create(kind, obj)

    server = Away()
    with pytest.raises(UnreachableError):
        _apply(server)

    assert server.made[-1] == "pod-2"
    assert server.done == len(server.made)
