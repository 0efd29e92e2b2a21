"""Kubernetes Events about an object, on a real API server."""

import pytest
from tests.cluster.api_server import ApiServer
from tests.operator.runtime.scripted_server import Answer, ScriptedServer, configmap

from shardwise_operator.runtime.kinds import CONFIG_MAPS, EVENTS, Object
from shardwise_operator.runtime.metrics import Metrics
from shardwise_operator.runtime.recorder import NORMAL, WARNING, Recorder
from shardwise_operator.runtime.transport import Api


@pytest.fixture
def about(api: Api, namespace: str) -> Object:
    """Return an object to speak about."""
    metadata = {"namespace": namespace, "name": "thing"}
    return api.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})


def results(metrics: Metrics) -> dict[str, float]:
    """What became of the events."""
    family = "shardwise_operator_events_total"
    found = {
        name: metrics.registry.get_sample_value(family, {"result": name}) for name in ("sent", "dropped", "failed")
    }
    return {name: count for name, count in found.items() if count}


def test_the_same_words_count_up(
    api: Api, api_server: ApiServer, namespace: str, about: Object, metrics: Metrics
) -> None:
    """One event for each sentence, with how often it was said; `kubectl describe` shows it below the object."""
    recorder = Recorder(api, metrics, component="shardwise-operator")
    for _ in range(3):
        recorder.record(about, WARNING, "Restarted", "host 1 was lost")
    recorder.record(about, NORMAL, "Complete", "x" * 5000)

    events = [event for page in api.pages(EVENTS, namespace) for event in page.items]
    assert sorted((e["reason"], e["type"], e["count"], len(e["message"])) for e in events) == [
        ("Complete", "Normal", 1, 1024),
        ("Restarted", "Warning", 3, 15),
    ]
    described = api_server.client.kubectl("describe", "configmap", "thing", "-n", namespace)
    assert "Restarted" in described
    assert "shardwise-operator" in described
    assert results(metrics) == {"sent": 4}


def test_an_event_that_was_deleted_is_made_anew(api: Api, namespace: str, about: Object, metrics: Metrics) -> None:
    """The API server forgets events after an hour; the next one is said again, from one."""
    recorder = Recorder(api, metrics, component="shardwise-operator")
    recorder.record(about, NORMAL, "Suspended", "saved")
    (first,) = [event for page in api.pages(EVENTS, namespace) for event in page.items]
    api.delete(EVENTS, namespace, first["metadata"]["name"], uid=first["metadata"]["uid"])

    recorder.record(about, NORMAL, "Suspended", "saved")  # finds out
    recorder.record(about, NORMAL, "Suspended", "saved")

    (again,) = [event for page in api.pages(EVENTS, namespace) for event in page.items]
    assert again["count"] == 1
    assert results(metrics) == {"sent": 2, "failed": 1}


def test_events_never_fail_their_caller(scripted_api: Api, script: ScriptedServer, metrics: Metrics) -> None:
    """A server that refuses them, and an object that has too much to say, are counted and that is all."""
    script.lists.append(Answer({"message": "no"}, 403))
    recorder = Recorder(scripted_api, metrics, component="shardwise-operator")

    for n in range(40):
        recorder.record(configmap("a", 1), NORMAL, "Step", f"step {n}")

    assert results(metrics) == {"failed": 25, "dropped": 15}


def test_there_is_always_room_for_a_warning(api: Api, namespace: str, about: Object, metrics: Metrics) -> None:
    """However often something went well: the limits of the two are apart."""
    recorder = Recorder(api, metrics, component="shardwise-operator")
    for step in range(40):
        recorder.record(about, NORMAL, "Saved", f"step {step}")
    recorder.record(about, WARNING, "Restarted", "host 1 was lost")

    reasons = [event["reason"] for page in api.pages(EVENTS, namespace) for event in page.items]
    assert reasons.count("Restarted") == 1
    assert reasons.count("Saved") < 40
