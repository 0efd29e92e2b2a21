"""What a pass sees of a job: caches that lag, what this process made itself, and what need not be asked for."""

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.operator.building import NOW, SETTINGS, UID, begun, classes, manifest, seen, snapshot

from shardwise_operator.decide.decide import decide
from shardwise_operator.decide.plan import Delete
from shardwise_operator.observe.observe import Observer
from shardwise_operator.observe.state import LONGEST_WAIT_SECONDS, Loss, Phase
from shardwise_operator.observe.state_fields import write_state
from shardwise_operator.render.secret import Tokens
from shardwise_operator.runtime.errors import NotFoundError
from shardwise_operator.runtime.kinds import ACCELERATOR_CLASSES, CONFIG_MAPS, NETWORK_POLICIES, Kind, Object
from shardwise_operator.runtime.transport import Page
from shardwise_operator.write.apply import Outcome
from shardwise_operator.write.standard_conditions import with_standard_conditions
from shardwise_operator.write.status import compose


class _Cluster:
    """A cache that holds the classes and, by kind, some objects; an API server that has nothing, and counts."""

    def __init__(self, **objects: Sequence[Object]) -> None:
        self._objects = objects
        self.asked: list[str] = []

    def by_owner(self, kind: Kind, _namespace: str, _owner_uid: str) -> Sequence[Object]:
        return self._objects.get(kind.plural, [])

    def list(self, kind: Kind) -> Sequence[Object]:
        versioned = [{**each, "metadata": {**each["metadata"], "resourceVersion": "1"}} for each in classes().values()]
        return versioned if kind == ACCELERATOR_CLASSES else []

    def get(self, kind: Kind, _namespace: str, name: str) -> Any:
        self.asked.append(f"{kind.kind}/{name}")
        raise NotFoundError(404, "NotFound", name)

    def pages(self, _kind: Kind, _namespace: str = "", *, labels: str = "") -> Iterator[Page]:  # noqa: ARG002
        return iter(())


def _job(**status: Any) -> Object:
    job = manifest()
    return {**job, "metadata": {**job["metadata"], "uid": UID, "generation": 1}, "status": status}


def _made(kind: Kind, name: str) -> tuple[Kind, Object]:
    return kind, {"metadata": {"name": name, "uid": f"uid-{name}"}}


LOSS = Loss(NOW + 7200, frozenset({1}), "unknown")
BEGUN = {"round": 0, "startTime": "2027-01-15T08:00:00Z", "attempts": {"0-0": 0, "0-1": 0}}
SEALED = {**BEGUN, "sealedRound": 0}


def _seal(key: bytes = SETTINGS.tokens.key, uid: str = UID, round_: int = 0, data: dict[str, str] | None = None) -> str:
    return Tokens(key).seal(uid, round_, snapshot().data if data is None else data)


def test_of_a_job_that_has_ended_nothing_is_kept() -> None:
    """A month of jobs takes no more memory than those of now: what each was made of goes with it."""
    cluster = _Cluster(configmaps=[{"metadata": {"name": "job-shardwise-0", "uid": "uid-map"}}])
    observer = Observer(cluster, cluster, SETTINGS)
    made_of = snapshot()
    kept = weakref.ref(made_of)
    observer.remember(seen(made_of=made_of), [_made(CONFIG_MAPS, "job-shardwise-0")])
    del made_of
    assert kept() is not None

    observer.observe(_job(phase="Complete"), None, NOW)

    assert kept() is None


def test_how_long_a_finished_job_is_kept() -> None:
    """What the job says counts; the operator's own words count for jobs that say nothing; without either, for good."""
    cluster, silent, told = _Cluster(), _job(phase="Complete"), _job(phase="Complete")
    told["spec"] = {**told["spec"], "ttlAfterFinished": "1m"}

    def kept(job: Object, default: str | None) -> float | None:
        observer = Observer(cluster, cluster, replace(SETTINGS, ttl_after_finished=default))
        return observer.observe(job, None, NOW).ttl_seconds

    assert (kept(silent, None), kept(silent, "7d"), kept(told, "7d")) == (None, 604800.0, 60.0)


def test_what_an_operator_with_a_clock_that_was_ahead_has_written_is_of_now() -> None:
    """Else a stop would have no end, a notice no save, and a lost pod no successor, for as long as it was ahead."""
    written = replace(
        begun(), save_asked_at=NOW + 7200, stop_asked_at=NOW + 7200, not_before=NOW + 7200, last_loss={"0": LOSS}
    )
    other: Any = _Cluster()

    state = Observer(other, other, SETTINGS).observe(_job(**write_state(written, 1)), None, NOW).state

    assert (state.save_asked_at, state.stop_asked_at, state.last_loss["0"].at) == (NOW, NOW, NOW)
    assert state.not_before == NOW + LONGEST_WAIT_SECONDS
    assert state.started_at == written.started_at


def test_what_two_passes_made_is_remembered() -> None:
    """The second pass does not make the first one's objects forgotten, which the cache has not shown yet."""
    cluster = _Cluster()
    observer = Observer(cluster, cluster, SETTINGS)
    made_of = seen(made_of=snapshot())
    observer.remember(made_of, [_made(CONFIG_MAPS, "job-shardwise-0"), _made(NETWORK_POLICIES, "one")])
    observer.remember(made_of, [_made(NETWORK_POLICIES, "another")])

    found = observer.observe(_job(round=0), None, NOW)

    assert found.children == {
        (CONFIG_MAPS, "job-shardwise-0"): "uid-job-shardwise-0",
        (NETWORK_POLICIES, "one"): "uid-one",
        (NETWORK_POLICIES, "another"): "uid-another",
    }
    assert found.snapshot == made_of.made_of
    assert cluster.asked == []
    assert observer.remembers(UID)


class _WithSnapshot(_Cluster):
    """Has a ConfigMap for the first round, with this seal."""

    def __init__(self, seal: str, **parts: Any) -> None:
        metadata = _made(CONFIG_MAPS, "job-shardwise-0")[1]["metadata"] | {"annotations": {"shardwise.dev/seal": seal}}
        self.config_map = {"metadata": metadata, "data": snapshot().data, "immutable": True, **parts}
        super().__init__(configmaps=[self.config_map])

    def get(self, kind: Kind, _namespace: str, name: str) -> Any:
        assert (kind, name) == (CONFIG_MAPS, "job-shardwise-0")
        return self.config_map


@pytest.mark.parametrize(
    ("seal", "status", "counts"),
    [
        (_seal(), SEALED, True),
        (_seal(), {}, True),  # whoever made it ended before the status was written
        (_seal(key=b"1" * 32), SEALED, True),
        (_seal(key=b"2" * 32), SEALED, False),
        (_seal(round_=1), SEALED, False),
        (_seal(uid="another"), SEALED, False),
        (_seal(data={}), SEALED, False),
        ("", SEALED, False),
        ("", {}, False),
        ("", BEGUN, True),  # an older release has begun it
        ("", {**BEGUN, "sealedRound": 1}, True),  # likewise, after a rollback
    ],
)
def test_only_what_is_sealed_counts(seal: str, status: dict[str, Any], counts: bool) -> None:  # noqa: FBT001  a column
    """By this key or the one before it, for this job, this round and this content."""
    cluster = _WithSnapshot(seal)
    settings = replace(SETTINGS, tokens=Tokens(SETTINGS.tokens.key, previous=b"1" * 32))

    found = Observer(cluster, cluster, settings).observe(_job(**status), None, NOW)
    plan = decide(found, settings, NOW)

    assert (found.snapshot is not None, found.foreign_snapshot == "") == (counts, counts)
    removed = [step for step in plan.steps if isinstance(step, Delete)]
    begun = "round" in status  # if not, this pass says that it has, and the next one deletes
    assert removed == ([] if counts or not begun else [Delete(CONFIG_MAPS, "job-shardwise-0", "uid-job-shardwise-0")])
    assert counts or plan.steps == (*removed,)


@pytest.mark.parametrize("parts", [{"immutable": False}, {"immutable": None}])
def test_what_can_be_edited_later_does_not_count(parts: dict[str, Any]) -> None:
    """Sealed or not: the pods read it after this operator has."""
    cluster = _WithSnapshot(_seal(), **parts)
    assert Observer(cluster, cluster, SETTINGS).observe(_job(**SEALED), None, NOW).foreign_snapshot


def test_a_config_map_without_data_is_foreign() -> None:
    """It ends no pass."""
    cluster = _WithSnapshot("")
    del cluster.config_map["data"]
    assert Observer(cluster, cluster, SETTINGS).observe(_job(**SEALED), None, NOW).foreign_snapshot


def test_a_finished_job_costs_nothing() -> None:
    """Its pods may be gone with their nodes; nobody asks for them, nor for what the round was made of."""
    cluster = _Cluster(configmaps=[_made(CONFIG_MAPS, "job-shardwise-0")[1]])
    hosts = {"ready": 0, "of": 2, "summary": "0/2"}
    state = with_standard_conditions(begun(Phase.COMPLETE, completed_at=NOW - 60), NOW - 60)
    old = write_state(state, 1) | {"restartCount": 0, "hosts": hosts, "progress": {"step": 100}}

    found = Observer(cluster, cluster, SETTINGS).observe(_job(**old), None, NOW)
    plan = decide(found, SETTINGS, NOW)

    assert cluster.asked == []
    assert (plan.steps, plan.requeue_after_seconds) == ((), None)
    assert compose(found, plan, Outcome(), old, NOW) == old


def test_a_round_that_no_status_has_is_seen_by_its_snapshot() -> None:
    """An operator that ended before its first status write has left it; what the job says now no longer counts."""
    made_of = snapshot()
    cluster = _Cluster(configmaps=[{"metadata": {"name": "job-shardwise-0", "uid": "uid-map"}}])
    observer = Observer(cluster, cluster, SETTINGS)
    observer.remember(seen(made_of=made_of), [(CONFIG_MAPS, {"metadata": {"name": "other", "uid": "uid-map"}})])

    found = observer.observe(_job(), None, NOW)

    assert found.snapshot is made_of
    assert found.desired is None
    assert Observer(_Cluster(), _Cluster(), SETTINGS).observe(_job(), None, NOW).snapshot is None


def test_a_pod_that_is_gone_is_asked_for_once() -> None:
    """No pod comes back: a job that stops without a leader knows the last UIDs of its hosts until all have ended."""
    cluster = _WithSnapshot(_seal())
    api = _Cluster()
    observer = Observer(cluster, api, SETTINGS)
    observer.remember(seen(made_of=snapshot()), [(CONFIG_MAPS, cluster.config_map)])
    pods = {"0-0": "uid-0-0-0", "0-1": "uid-0-1-0"}

    passes = [observer.observe(_job(**SEALED, phase="Suspending", pods=pods), None, NOW) for _ in range(3)]

    assert [found.pods for found in passes] == [()] * 3
    assert api.asked == ["Pod/job-0-0-0", "Pod/job-0-1-0"]
    observer.observe(_job(**SEALED, phase="Suspending", pods={**pods, "0-1": "another"}), None, NOW)
    assert api.asked[2:] == ["Pod/job-0-1-0"]
