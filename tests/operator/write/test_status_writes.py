"""When a status is written, and which one a pass goes on from."""

from collections.abc import Sequence
from typing import Any

import pytest

from shardwise_operator.runtime.errors import ConflictError
from shardwise_operator.runtime.kinds import Kind, Object
from shardwise_operator.write.status_writes import StatusWrites

KEY = ("default", "job")
BEGUN = {"phase": "Pending", "round": 0, "attempts": {"0-0": 0}, "hosts": {"ready": 0, "of": 1}}
MADE = {**BEGUN, "pods": {"0-0": "uid"}}
RUNNING = {**MADE, "phase": "Running", "hosts": {"ready": 1, "of": 1}}


class _Server:
    """The API server and the cache of it, which a test brings up to date."""

    def __init__(self) -> None:
        self.now = 100.0
        self.jobs: dict[str, Object] = {}
        self.told: list[tuple[str, Object]] = []
        self.refuses = False

    def add(self, name: str = "job", *, uid: str = "uid", status: Object | None = None) -> None:
        version = str(len(self.told) + 1)
        metadata = {"namespace": "default", "name": name, "uid": uid, "resourceVersion": version}
        self.jobs[name] = {"metadata": metadata, "spec": {}, "status": status or {}}

    def replace_status(self, kind: Kind, obj: Object) -> Object:
        del kind
        if self.refuses:
            raise ConflictError(409, "Conflict", "another version")
        self.told.append((obj["metadata"]["name"], obj["status"]))
        return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(len(self.told) + 1)}}

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        del kind, namespace
        return self.jobs.get(name)

    def list(self, kind: Kind) -> Sequence[Object]:
        raise NotImplementedError(kind)

    def by_owner(self, kind: Kind, namespace: str, owner_uid: str) -> Sequence[Object]:
        raise NotImplementedError(kind, namespace, owner_uid)


@pytest.fixture
def server() -> _Server:
    """Return a server with one new job."""
    made = _Server()
    made.add()
    return made


@pytest.fixture
def writes(server: _Server) -> StatusWrites:
    """Return what is tested."""
    return StatusWrites(server, server, lambda *_: None, clock=lambda: server.now)


def _keep(writes: StatusWrites, status: Object, name: str = "job", **fields: Any) -> float:
    key = ("default", name)
    job = writes.newest(key)
    assert job is not None
    return writes.keep(key, job, status, **{"at_once": False, **fields})


def test_what_is_decided_by_is_written_at_once(server: _Server, writes: StatusWrites) -> None:
    """A round that has begun, a pod that is charged for: the next pass acts on it."""
    assert _keep(writes, BEGUN) == 0.0
    assert _keep(writes, {**BEGUN, "attempts": {"0-0": 1}}) == 0.0
    assert len(server.told) == 2


def test_a_burst_is_one_write(server: _Server, writes: StatusWrites) -> None:
    """Passes go on from what is not written yet, and a pod that they have made once is not made again."""
    _keep(writes, BEGUN)
    assert _keep(writes, MADE) > 0.0
    newest = writes.newest(KEY)
    assert newest is not None
    assert newest["status"] == MADE
    server.now += 10.0
    assert _keep(writes, {**MADE, "reason": "Scheduling"}) == 0.0

    assert server.told == [("job", BEGUN), ("job", {**MADE, "reason": "Scheduling"})]


def test_what_comes_to_nothing_is_not_written(server: _Server, writes: StatusWrites) -> None:
    """A host that was ready for a moment is what it was."""
    _keep(writes, BEGUN)
    assert _keep(writes, {**BEGUN, "hosts": {"ready": 1, "of": 1}}) > 0.0
    assert _keep(writes, BEGUN) == 0.0

    assert server.told == [("job", BEGUN)]


def test_that_a_job_runs_is_told_at_once(server: _Server, writes: StatusWrites) -> None:
    """Nothing more is to come then; while some hosts are not ready, more is."""
    _keep(writes, BEGUN)
    assert _keep(writes, {**RUNNING, "hosts": {"ready": 0, "of": 1}}) > 0.0
    assert _keep(writes, RUNNING) == 0.0

    assert server.told[-1] == ("job", RUNNING)


def test_what_is_told_with_an_event_does_not_wait(server: _Server, writes: StatusWrites) -> None:
    """An event comes after the status that says the same."""
    _keep(writes, BEGUN)
    assert _keep(writes, MADE, at_once=True) == 0.0

    assert server.told[-1] == ("job", MADE)


def test_of_many_jobs_details_wait_longer_and_phases_do_not(server: _Server, writes: StatusWrites) -> None:
    """A thousand jobs that start together cost as many writes a second as fifty; that a pod was lost is told soon."""
    names = [f"job-{number}" for number in range(200)]
    for name in names:
        server.add(name)
        _keep(writes, BEGUN, name)
    waits = [_keep(writes, MADE, name) for name in names]

    assert waits[0] < max(waits)
    assert _keep(writes, {**MADE, "phase": "Recovering"}, names[-1]) < waits[-1]


def test_of_many_jobs_that_start_each_is_written_twice(server: _Server, writes: StatusWrites) -> None:
    """That its round has begun, and that it runs: that its pods are up in between is told by that, if it comes soon."""
    names = [f"job-{number}" for number in range(200)]
    for name in names:
        server.add(name)
        _keep(writes, BEGUN, name)
    for name in names:
        _keep(writes, MADE, name)
        server.now += 0.01
    assert _keep(writes, {**MADE, "phase": "Starting"}, names[-1]) > 5.0
    assert _keep(writes, RUNNING, names[-1]) == 0.0

    assert [status for name, status in server.told if name == names[-1]] == [BEGUN, RUNNING]


def test_another_s_write_counts(server: _Server, writes: StatusWrites) -> None:
    """What waits is forgotten when the API server has another status than it was to replace."""
    _keep(writes, BEGUN)
    _keep(writes, MADE)
    server.add(status={**BEGUN, "phase": "Failed"})
    newest = writes.newest(KEY)

    assert newest is not None
    assert newest["status"]["phase"] == "Failed"


def test_a_new_job_of_the_same_name_begins_anew(server: _Server, writes: StatusWrites) -> None:
    """It has none of what waits to be said of the one before it."""
    server.add(status=BEGUN)
    writes.wait(KEY)
    _keep(writes, MADE)
    server.add(uid="other", status=BEGUN)
    newest = writes.newest(KEY)

    assert newest is not None
    assert newest["status"] == BEGUN


def test_what_could_not_be_written_is_not_lost(server: _Server, writes: StatusWrites) -> None:
    """A person's change of the spec comes in between: the pods that were made stay known."""
    _keep(writes, BEGUN)
    _keep(writes, MADE)
    server.now += 10.0
    server.refuses = True
    with pytest.raises(ConflictError):
        _keep(writes, MADE)
    newest = writes.newest(KEY)

    assert newest is not None
    assert newest["status"] == MADE


def test_what_is_written_is_told(server: _Server) -> None:
    """With what the API server had before: passes that made no write between are no part of it."""
    told: list[tuple[Object, Object]] = []
    writes = StatusWrites(
        server, server, lambda _, before, after: told.append((before, after)), clock=lambda: server.now
    )

    _keep(writes, BEGUN)
    _keep(writes, {**BEGUN, "phase": "Starting"})
    _keep(writes, RUNNING)

    assert told == [({}, BEGUN), (BEGUN, RUNNING)]


def test_the_record_of_a_phase_waits_with_it(server: _Server, writes: StatusWrites) -> None:
    """What a status keeps of a job's past costs no write of its own."""
    _keep(writes, BEGUN)
    server.now += 0.5

    assert _keep(writes, {**MADE, "phase": "Starting", "phases": [{"name": "Starting", "number": 1}]}) > 0.0
    assert len(server.told) == 1
