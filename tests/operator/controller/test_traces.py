"""The trace of a job on a real API server, as a collector gets it; and collectors that are none."""

import json
from functools import partial
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from tests.cluster.api_server import ApiServer
from tests.cluster.client import RefusedError
from tests.operator.building import manifest, record
from tests.operator.collecting import Collector, Received, answered
from tests.operator.living import EVICTED
from tests.operator.operating import MERGE, Operator, Place, StandInAgents, told

from shardwise.launcher.system.ports import free_port
from shardwise.protocol.job_status import MAX_PHASES
from shardwise_operator.runtime import tracing
from shardwise_operator.runtime.kinds import seconds_of

_MILLION = 1_000_000


def _parts(spans: list[Received]) -> list[Received]:
    return [each for each in spans if each.parent]


def _recorded(status: dict[str, Any]) -> list[tuple[str, int, int, str | None]]:
    """The phases that a status has on record and that are over, with times in milliseconds."""
    return [
        (each["name"], *(round(1000 * seconds_of(each[name])) for name in ("start", "end")), each.get("cause"))
        for each in status["phases"]
        if "end" in each
    ]


def _sent(spans: list[Received]) -> list[tuple[str, int, int, str | None]]:
    return [
        (each.name, each.start // _MILLION, each.end // _MILLION, each.attributes.get("shardwise.job.restart.cause"))
        for each in _parts(spans)
    ]


def _lose(place: Place, pod: str, successor: str) -> None:
    """Have a pod evicted, and its successor run."""
    place.end(pod, 137, conditions=[EVICTED])
    place.until("its successor", lambda: successor in place.pods())
    place.run(successor)


def _complete(place: Place, *pods: str) -> dict[str, Any]:
    for pod in pods:
        place.end(pod, 0, record(0))
    return place.until_phase("Complete")


def test_a_job_is_a_trace(place: Place, api_server: ApiServer, agents: StandInAgents) -> None:
    """From apply over a lost pod to the end: the root, and below it each phase with the times of the status."""
    agents.answer = told()
    with (
        Collector() as collector,
        Operator(api_server.kubeconfig, place.namespace, agents, collector=collector.url) as one,
    ):
        made, _ = place.train(manifest())
        _lose(place, "job-0-0-0", "job-0-0-1")
        place.until_phase("Running")
        status = _complete(place, "job-0-0-1", "job-0-1-0")
        place.until("the root", lambda: collector.spans and not collector.spans[-1].parent)
    counted = [one.spans(result) for result in ("sent", "failed", "dropped")]
    *parts, root = collector.spans

    assert _sent(collector.spans) == _recorded(status)
    names = [each.name for each in parts]
    assert [name for name in names if name not in ("Starting", "Pending")] == ["Running", "Recovering", "Running"]
    assert [each.attributes.get("shardwise.job.restart.cause") for each in parts if each.name == "Recovering"] == [
        "eviction"
    ]
    assert {each.trace for each in collector.spans} == {made["metadata"]["uid"].replace("-", "")}
    assert {each.parent for each in parts} == {root.span}
    assert root.start == round(seconds_of(made["metadata"]["creationTimestamp"])) * 1000 * _MILLION
    assert (root.end, root.failed) == (parts[-1].end, False)
    assert root.attributes["shardwise.job.goodput.ratio"] == 0.9
    assert root.attributes["k8s.namespace.name"] == place.namespace
    assert root.resource["service.name"] == "shardwise-operator"
    assert counted == [len(collector.spans), 0, 0]


def test_another_operator_goes_on_with_the_trace(place: Place, api_server: ApiServer, agents: StandInAgents) -> None:
    """A phase that began under one and ended under the other is one span; a failed job's root is an error."""
    agents.answer = told()
    with Collector() as collector:
        with Operator(api_server.kubeconfig, place.namespace, agents, collector=collector.url):
            place.train(manifest())
        with Operator(api_server.kubeconfig, place.namespace, agents, collector=collector.url):
            last = record(82, step=10, cause="nonfinite", message="the loss is nan")
            place.end("job-0-0-0", 82, last)
            status = place.until_phase("Failed")
        spans = collector.of("job")
    root = spans[-1]

    assert _sent(spans) == _recorded(status)
    assert len({each.resource["service.instance.id"] for each in collector.spans}) == 2
    assert (root.name, root.failed, root.message) == ("TrainingJob", True, "the loss is nan")
    assert root.attributes["error.type"] == "NonFinite"


@pytest.mark.parametrize("how", ["down", "hangs", "refuses"])
def test_a_bad_collector_harms_no_job(
    place: Place, api_server: ApiServer, agents: StandInAgents, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It trains, loses a pod and completes as without; what was not sent is counted."""
    monkeypatch.setattr(tracing, "_LAST_SECONDS", 0.5)
    agents.answer = told()
    with Collector() as collector:
        collector.answer = partial(_hangs, collector) if how == "hangs" else partial(answered, status=500)
        with Operator(api_server.kubeconfig, place.namespace, agents, collector=_url(collector, how)) as one:
            place.train(manifest())
            _lose(place, "job-0-0-0", "job-0-0-1")
            place.until_phase("Running")
            status = _complete(place, "job-0-0-1", "job-0-1-0")
            if how == "refuses":
                place.until("the count", lambda: one.spans("failed") == len(_recorded(status)) + 1)
            assert one.spans("sent") == 0

    assert status["restarts"] == {"eviction": 1}
    assert len(_recorded(status)) >= 4


def _hangs(collector: Collector, _handler: BaseHTTPRequestHandler) -> None:
    collector.closing.wait()


def _url(collector: Collector, how: str) -> str:
    return f"http://127.0.0.1:{free_port('127.0.0.1')}" if how == "down" else collector.url


def test_a_status_keeps_few_phases(place: Place, api_server: ApiServer, agents: StandInAgents) -> None:
    """The API server takes as many as there may be, with their times as they are, and refuses one more."""
    with Operator(api_server.kubeconfig, place.namespace, agents):
        place.apply(manifest(suspend=True))
        place.until_phase("Suspended")
        for _ in range(MAX_PHASES):
            place.change("job", suspend=False)
            place.until_phase("Pending")
            place.change("job", suspend=True)
            place.until_phase("Suspended")
        phases = place.status()["phases"]

    numbers = [each["number"] for each in phases]
    assert len(numbers) == MAX_PHASES
    assert numbers[-1] >= 2 * MAX_PHASES
    assert [each["end"] for each in phases[:-1]] == [each["start"] for each in phases[1:]]
    assert len(json.dumps(phases)) < 1500
    path = place.path("trainingjobs", "job/status", "apis/shardwise.dev/v1alpha1")
    with pytest.raises(RefusedError, match="at most 10 items"):
        place.client.request("PATCH", path, {"status": {"phases": [phases[0], *phases]}}, MERGE)
