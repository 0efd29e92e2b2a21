"""A job's life as spans: which there are, what they say, and that each is the same whichever operator sends it."""

import random
from collections.abc import Iterable
from typing import Any
from uuid import UUID

import pytest
from tests.operator.building import NOW, UID, manifest
from tests.operator.life import HOUR, Life

from shardwise.protocol.contract import Cause
from shardwise_operator.runtime.kinds import TRAINING_JOBS, exact_timestamp, timestamp
from shardwise_operator.runtime.tracing import Span
from shardwise_operator.write.spans import Traces, ended, trace_id

KEY = ("default", "job")
Job = dict[str, Any]


def _job(uid: str = UID) -> Job:
    job = manifest()
    job["metadata"] |= {"uid": uid, "creationTimestamp": timestamp(NOW)}
    return job


def _record(name: str, number: int, start: float, end: float | None = None, **fields: Any) -> dict[str, Any]:
    ends = {} if end is None else {"end": exact_timestamp(NOW + end)}
    return {"name": name, "number": number, "start": exact_timestamp(NOW + start), **ends, **fields}


def _status(*records: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"phase": records[-1]["name"], "hosts": {"of": 2}, "phases": [*records], **fields}


PENDING = _record("Pending", 0, 0.25, 1.5)
RUNNING = _record("Running", 1, 1.5, 9.0, step=40)
RECOVERING = _record("Recovering", 2, 9.0, 12.0, cause="hang", step=40)
AGAIN = _record("Running", 3, 12.0, 20.0, step=100)


def test_what_has_ended_between_two_statuses() -> None:
    """A part for each phase that is over by now and was not before, in their order, with exact times."""
    before = _status(_record("Pending", 0, 0.25))
    after = _status(PENDING, RUNNING, _record("Recovering", 2, 9.0, cause="hang"))

    spans = list(ended(_job(), before, after))

    assert [(each.name, each.start - NOW, each.end - NOW) for each in spans] == [
        ("Pending", 0.25, 1.5),
        ("Running", 1.5, 9.0),
    ]
    assert spans[1].attributes == {
        "k8s.namespace.name": "default",
        "shardwise.job.name": "job",
        "shardwise.job.uid": UID,
        "shardwise.job.hardware.accelerator": "cpu-sim",
        "shardwise.job.hardware.topology": "2x2",
        "shardwise.job.hardware.slices": 1,
        "shardwise.job.hardware.hosts": 2,
        "shardwise.job.phase.name": "Running",
        "shardwise.job.phase.number": 1,
        "shardwise.job.progress.step": 40,
    }
    assert list(ended(_job(), after, after)) == []
    assert list(ended(_job(), after, before)) == []


def test_a_recovery_says_why() -> None:
    """By the cause of the restart; it is a part of a job that goes on, so no error."""
    before = _status(PENDING, RUNNING, _record("Recovering", 2, 9.0, cause="hang"))
    after = _status(PENDING, RUNNING, RECOVERING, _record("Running", 3, 12.0))

    (span,) = ended(_job(), before, after)

    assert (span.name, span.attributes["shardwise.job.restart.cause"], span.error) == ("Recovering", "hang", None)


def test_the_whole_of_a_complete_job() -> None:
    """The root, once the job is over: from its creation on, and what has come of it."""
    after = _status(
        *(PENDING, RUNNING, RECOVERING, AGAIN, _record("Complete", 4, 20.0)),
        reason="Trained",
        progress={"step": 100, "of": 100},
        checkpoint={"step": 90},
        restartCount=1,
        goodput="87%",
    )

    *parts, root = ended(_job(), {}, after)

    assert (root.name, root.parent_id, root.start, root.end) == ("TrainingJob", None, NOW, NOW + 20.0)
    assert root.error is None
    assert {name: value for name, value in root.attributes.items() if name not in parts[0].attributes} == {
        "shardwise.job.reason": "Trained",
        "shardwise.job.restart.count": 1,
        "shardwise.job.progress.step": 100,
        "shardwise.job.progress.steps": 100,
        "shardwise.job.checkpoint.step": 90,
        "shardwise.job.goodput.ratio": 0.87,
    }
    assert root.attributes["shardwise.job.phase.name"] == "Complete"
    assert {part.parent_id for part in parts} == {root.span_id}
    assert {each.trace_id for each in (*parts, root)} == {UUID(UID).int} == {trace_id(UID)}
    assert len({each.span_id for each in (*parts, root)}) == 5
    assert root.start <= parts[0].start
    assert [each.end for each in parts[:-1]] == [each.start for each in parts[1:]]
    assert parts[-1].end == root.end


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ({"message": "the loss is nan (rank 1)"}, "the loss is nan (rank 1)"),
        ({"message": "x" * 5000}, "x" * 1024),
        ({"message": ""}, "NonFinite"),
        ({}, "NonFinite"),
    ],
)
def test_a_failed_job_is_an_error(words: dict[str, str], error: str) -> None:
    """With the message, which is bounded: a log's end is in it."""
    after = _status(PENDING, _record("Failed", 1, 1.5), reason="NonFinite", **words)

    part, root = ended(_job(), {}, after)

    assert (part.error, root.error, root.attributes["error.type"]) == (None, error, "NonFinite")


def test_a_suspended_job() -> None:
    """Its rest is a part like the others: the trace has no gap, and the root waits for the end."""
    after = _status(
        PENDING,
        _record("Running", 1, 1.5, 5.0),
        _record("Suspending", 2, 5.0, 6.0),
        _record("Suspended", 3, 6.0, 900.0),
        _record("Pending", 4, 900.0),
    )

    names = [each.name for each in ended(_job(), {}, after)]

    assert names == ["Pending", "Running", "Suspending", "Suspended"]


def test_a_job_that_no_phase_is_known_of() -> None:
    """One that an older operator has ended, or that nobody has looked at, has no spans."""
    assert list(ended(_job(), {}, {})) == []
    assert list(ended(_job(), {"phase": "Running"}, {"phase": "Complete"})) == []


def test_each_is_sent_once() -> None:
    """However often a status is seen, in whatever order; a job of the same name is another trace."""
    sent: list[Span] = []
    traces = Traces(sent.extend, clock=lambda: NOW + 30)
    first, second = _status(PENDING, _record("Running", 1, 1.5)), _status(PENDING, RUNNING, _record("Failed", 2, 9.0))

    for status in ({}, first, first, second, first, {}, second):
        traces.tell(KEY, _job(), status)
    traces.tell(KEY, _job(uid=UID.replace("1", "9")), first)

    assert [each.name for each in sent] == ["Pending", "Running", "TrainingJob", "Pending"]
    assert len({each.trace_id for each in sent}) == 2


def test_another_operator_sends_what_may_be_missing() -> None:
    """What ended shortly before it came, for the one before may not have sent it; older spans are not sent again."""
    sent: list[Span] = []
    status = _status(PENDING, RUNNING, RECOVERING, _record("Running", 3, 12.0))

    Traces(sent.extend, clock=lambda: NOW + 605).tell(KEY, _job(), status)

    assert [each.name for each in sent] == ["Running", "Recovering"]


def test_a_job_that_goes_is_forgotten() -> None:
    """Nothing is kept of it; another look is as that of another operator."""
    sent: list[Span] = []
    traces = Traces(sent.extend, clock=lambda: NOW + 30)
    status = _status(PENDING, _record("Running", 1, 1.5))

    traces.tell(KEY, _job(), status)
    traces.forget(KEY)
    traces.tell(KEY, _job(), status)

    assert sent[0] == sent[1]
    assert len(sent) == 2


class Traced(Life):
    """A job in a simulated cluster, whose operator sends spans, and is killed before it has sent some."""

    def __init__(self, seed: int) -> None:
        """Nothing has happened yet."""
        self.sent: list[Span] = []
        self.writes = 0
        super().__init__(topology="2x2x2", slices=2, pools=3, steps=3000)
        self.random = random.Random(seed)
        job = self.job
        self.world.put(TRAINING_JOBS, {**job, "metadata": {**job["metadata"], "uid": UID}})

    def start_operator(self) -> None:
        """Another process, which knows nothing of what is sent."""
        super().start_operator()
        self.traces = Traces(self._send, clock=lambda: self.world.now)

    def _send(self, spans: Iterable[Span]) -> None:
        self.sent += spans

    def _pass(self) -> None:
        before = self.status
        self.traces.tell(KEY, self.job, before)
        super()._pass()
        if self.status != before:
            self.writes += 1
            if self.random.random() < 0.2:
                self.start_operator()
            else:
                self.traces.tell(KEY, self.job, self.status)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_life_with_faults_is_a_whole_trace(seed: int) -> None:
    """Operators are killed between a write and the sending: no span is lost, and none is sent with other content.

    There is no gap from the first look to the end, however many phases there were, and each restart has its cause.
    """
    life = Traced(seed)
    life.run(0.5 * HOUR)
    for fault in (Cause.FAILURE, Cause.HANG, None, Cause.DEVICE, None):
        if fault is None:
            life.cluster.preempt(life.cluster.used()[0], 0.5 * HOUR)
        else:
            life.launcher.fault(fault)
        life.run(1.0 * HOUR)
    life.suspend(suspended=True)
    life.run(1.0 * HOUR)
    life.suspend(suspended=False)
    life.run(100 * HOUR)
    life.traces.tell(KEY, life.job, life.status)
    spans = {each.span_id: each for each in life.sent}
    *parts, root = sorted(spans.values(), key=lambda each: (each.parent_id is None, each.start, each.end))

    assert life.status["phase"] == "Complete"
    assert all(spans[each.span_id] == each for each in life.sent), "a span came twice, and not the same"
    assert root.name == "TrainingJob"
    numbers = [each.attributes["shardwise.job.phase.number"] for each in parts]
    assert numbers == list(range(len(parts)))
    assert len(parts) > 10, "more than a status keeps"
    assert [each.end for each in parts[:-1]] == [each.start for each in parts[1:]]
    assert (parts[0].start, parts[-1].end) == (root.start, root.end)
    assert {"Suspending", "Suspended", "Running", "Starting"} <= {each.name for each in parts}
    causes = [each.attributes.get("shardwise.job.restart.cause") for each in parts if each.name == "Recovering"]
    assert causes == ["failure", "hang", "maintenance", "device", "maintenance", *causes[5:]]
    assert set(causes[5:]) <= {None}, "the stand-in for the leader says so after a resume, too"
    assert root.attributes["shardwise.job.restart.count"] == sum(life.status["restarts"].values()) == 5
