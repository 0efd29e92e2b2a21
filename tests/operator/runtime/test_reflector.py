"""Reflectors: equal to the server after every fault."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.operator.runtime.scripted_server import Answer, Ending, Events, ScriptedServer, configmap, event, listing

from shardwise_operator.runtime import reflector as module
from shardwise_operator.runtime.connection import Connection
from shardwise_operator.runtime.elector import Timing
from shardwise_operator.runtime.kinds import CONFIG_MAPS, Object
from shardwise_operator.runtime.metrics import Metrics
from shardwise_operator.runtime.reflector import Reflector
from shardwise_operator.runtime.store import Change
from shardwise_operator.runtime.transport import Api

GONE = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
Eventually = Callable[[Callable[[], object]], None]


class Told:
    """What a reflector told, as (what, name, version)."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, str, str]] = []

    def __call__(self, change: Change) -> None:
        """Take one change."""
        old, new = change
        what = "added" if old is None else "deleted" if new is None else "modified"
        metadata = (new or old or {})["metadata"]
        self.changes.append((what, metadata["name"], metadata["resourceVersion"]))


@pytest.fixture
def told() -> Told:
    """Return an empty record."""
    return Told()


@pytest.fixture
def reflector(scripted_api: Api, metrics: Metrics, told: Told, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reflector]:
    """Return a reflector of the scripted server that has not begun; its watches give up after a second or two."""
    monkeypatch.setattr("shardwise_operator.runtime.transport._WATCH_MARGIN_SECONDS", 0.5)
    made = Reflector(scripted_api, metrics, CONFIG_MAPS, told, namespace="ns", watch_seconds=1)
    yield made
    made.stop()
    made._thread.join()


def names(reflector: Reflector) -> list[str]:
    """Name and version of what is held."""
    return sorted(f"{o['metadata']['name']}{o['metadata']['resourceVersion']}" for o in reflector.store.list())


def test_pages_are_one_list(script: ScriptedServer, reflector: Reflector, eventually: Eventually) -> None:
    """It is synced when the last page is there, not before, and watches from the version of the list."""
    script.lists.extend(
        [listing(configmap("a", 1), version=7, token="more"), listing(configmap("b", 2), version=7)]  # noqa: S106
    )
    script.watches.append(Events())

    reflector.start()
    eventually(script.watched_from)

    assert reflector.synced
    assert names(reflector) == ["a1", "b2"]
    assert script.watched_from()[0] == "7"
    assert script.asked[0][1:] == ("/api/v1/namespaces/ns/configmaps", {"limit": "500"})
    assert script.asked[1][2]["continue"] == "more"


def test_a_page_that_expired_begins_the_list_again(
    script: ScriptedServer, reflector: Reflector, eventually: Eventually
) -> None:
    """A list so slow that the server forgot its version holds nothing of the half that was read."""
    script.lists.extend(
        [
            listing(configmap("a", 1), version=7, token="more"),  # noqa: S106
            Answer(GONE, status=410),
            listing(configmap("b", 8), version=9),
        ]
    )
    script.watches.append(Events())

    reflector.start()
    eventually(lambda: reflector.synced)

    assert names(reflector) == ["b8"]


def test_a_watch_that_ends_is_taken_up_where_it_stood(
    script: ScriptedServer, reflector: Reflector, told: Told, eventually: Eventually
) -> None:
    """Ended in order, cut, or silent: the next watch begins at the last version seen, a bookmark's too; no new list."""
    bookmark: dict[str, Any] = {"kind": "ConfigMap", "metadata": {"resourceVersion": "30"}}
    script.lists.append(listing(configmap("a", 1), version=7))
    script.watches.extend(
        [
            Events([event("MODIFIED", configmap("a", 10))], Ending.ORDERLY),
            Events([event("ADDED", configmap("b", 20)), '{"type": "MODIF'], Ending.CUT),
            Events([event("BOOKMARK", bookmark)], Ending.SILENT),
            Events([event("DELETED", configmap("a", 40))], Ending.SILENT),
        ]
    )

    reflector.start()
    eventually(lambda: len(script.watched_from()) >= 4 and len(told.changes) >= 4)

    assert script.watched_from()[:4] == ["7", "10", "20", "30"]
    assert script.num_lists() == 1
    assert told.changes == [("added", "a", "1"), ("modified", "a", "10"), ("added", "b", "20"), ("deleted", "a", "10")]
    assert {query["allowWatchBookmarks"] for _, _, query in script.asked if "watch" in query} == {"true"}


@pytest.mark.parametrize("gone", [Answer(GONE, status=410), Events([event("ERROR", GONE)], Ending.ORDERLY)])
def test_a_version_too_old_means_a_new_list(
    gone: Answer | Events, script: ScriptedServer, reflector: Reflector, told: Told, eventually: Eventually
) -> None:
    """Whether refused or told in the stream; an object made anew meanwhile is seen to go and to come."""
    script.lists.extend(
        [
            listing(configmap("a", 1, uid="u1"), configmap("b", 1), version=7),
            listing(configmap("a", 50, uid="u2"), configmap("b", 1), version=60),
        ]
    )
    script.watches.extend([gone, Events()])

    reflector.start()
    eventually(lambda: len(script.watched_from()) >= 2)

    assert script.watched_from()[:2] == ["7", "60"]
    assert sorted(told.changes[:2]) == [("added", "a", "1"), ("added", "b", "1")]
    assert told.changes[2:] == [("deleted", "a", "1"), ("added", "a", "50")]


def test_events_told_twice_are_one_change(
    script: ScriptedServer, reflector: Reflector, told: Told, eventually: Eventually
) -> None:
    """A server that repeats itself after a reconnect makes nobody work twice."""
    again = [event("ADDED", configmap("a", 8)), event("MODIFIED", configmap("a", 8)), event("ADDED", configmap("b", 9))]
    script.lists.append(listing(version=7))
    script.watches.extend([Events([*again], Ending.CUT), Events([*again], Ending.SILENT)])

    reflector.start()
    eventually(lambda: len(script.watched_from()) >= 3)

    assert told.changes == [("added", "a", "8"), ("added", "b", "9")]


def test_a_broken_server_is_asked_ever_less_often(
    script: ScriptedServer,
    reflector: Reflector,
    metrics: Metrics,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Errors on list and watch, nonsense, and watches that end at once: the pauses double; then all is well.

    They stay shorter than a lease: whoever takes over while the server comes back waits for the longest of them.
    """
    pauses: list[int] = []

    def pause(failures: int, *, first: float, most: float) -> float:
        assert first <= most <= Timing().lease
        pauses.append(failures)
        return 0.01

    monkeypatch.setattr(module, "retry_seconds", pause)
    script.lists.extend([Answer("oops", status=500), Answer("<html>", status=200), listing(version=7)])
    script.watches.extend(
        [
            Answer({"message": "busy"}, status=503),
            Events(["no json\n"], Ending.SILENT),
            Events([], Ending.ORDERLY),
            Events([], Ending.CUT),
            Events([event("ADDED", configmap("a", 9))]),
        ]
    )

    reflector.start()
    eventually(lambda: names(reflector) == ["a9"])

    assert pauses[:6] == [1, 2, 3, 4, 5, 6]
    assert reflector.alive
    assert metrics.registry.get_sample_value("shardwise_operator_lists_total", {"kind": "configmaps"}) == 1


def test_a_silent_peer_is_given_up_within_a_minute(
    scripted_api: Api,
    metrics: Metrics,
    script: ScriptedServer,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection that stays open and is dead looks like a calm one: no watch is asked to be calm for longer."""
    asked: list[float] = []
    send = Connection.send

    def listen(connection: Connection, method: str, path: str, **words: Any) -> Any:
        if words["query"].get("watch"):
            asked.append(words["read_seconds"])
        return send(connection, method, path, **words)

    monkeypatch.setattr(Connection, "send", listen)
    script.lists.append(listing(version=7))
    script.watches.append(Events([], Ending.ORDERLY))
    reflector = Reflector(scripted_api, metrics, CONFIG_MAPS, lambda _: None)
    reflector.start()
    eventually(lambda: len(asked) >= 2)
    reflector.stop()

    assert max(asked) < 60.0


def test_no_server_is_no_reason_to_end(
    scripted_api: Api, metrics: Metrics, script: ScriptedServer, eventually: Eventually
) -> None:
    """Where nothing listens the reflector lives, is not synced, and catches up once something does."""
    script.lists.append(Answer({"message": "starting"}, status=503))
    reflector = Reflector(scripted_api, metrics, CONFIG_MAPS, lambda _: None)
    reflector.start()
    eventually(lambda: script.num_lists() >= 2)
    assert reflector.alive
    assert not reflector.synced

    script.watches.append(Events())
    script.lists.append(listing(configmap("a", 1), version=2))
    eventually(lambda: reflector.synced)
    reflector.stop()


def test_an_object_that_cannot_be_read_is_left_out(
    scripted_api: Api,
    metrics: Metrics,
    script: ScriptedServer,
    told: Told,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of a page and of a watch alike: nothing stays of how it was before, and all others come as ever."""
    odd, changed = configmap("odd", 1), configmap("a", 10)
    del odd["data"], changed["data"]
    script.lists.append(listing(odd, configmap("a", 1), version=7))
    events = [event("MODIFIED", changed), event("ADDED", configmap("b", 11)), event("DELETED", odd)]
    script.watches.append(Events([*events, event("MODIFIED", configmap("a", 12))]))

    reflector = Reflector(
        scripted_api, metrics, CONFIG_MAPS, told, keep=lambda obj: {**obj, "data": {"text": obj["data"]["text"]}}
    )
    reflector.start()
    eventually(lambda: len(told.changes) >= 4 or not reflector.alive)
    reflector.stop()

    assert told.changes == [("added", "a", "1"), ("deleted", "a", "1"), ("added", "b", "11"), ("added", "a", "12")]
    assert names(reflector) == ["a12", "b11"]
    assert [line.getMessage() for line in caplog.records if line.levelname == "ERROR"] == [
        "ConfigMap ns/odd is left out: it cannot be read",
        "ConfigMap ns/a is left out: it cannot be read",
    ]


def test_a_fault_of_ours_shows_in_the_health(
    scripted_api: Api, metrics: Metrics, script: ScriptedServer, eventually: Eventually
) -> None:
    """A handler that fails ends the thread, and `alive` says so: a new process is the answer, not a deaf one."""
    script.lists.append(listing(configmap("a", 1), version=2))

    def broken(_: Change) -> None:
        raise KeyError("spec")

    caught: list[object] = []
    threading.excepthook, before = lambda args: caught.append(args.exc_type), threading.excepthook
    try:
        reflector = Reflector(scripted_api, metrics, CONFIG_MAPS, broken)
        reflector.start()
        eventually(lambda: not reflector.alive)
    finally:
        threading.excepthook = before

    assert caught == [KeyError]


def test_stop_ends_a_silent_watch_at_once(
    script: ScriptedServer, scripted_api: Api, metrics: Metrics, eventually: Eventually
) -> None:
    """Nobody waits for the watch of two minutes to run out."""
    script.lists.append(listing(version=7))
    script.watches.append(Events())
    reflector = Reflector(scripted_api, metrics, CONFIG_MAPS, lambda _: None)
    reflector.start()
    eventually(script.watched_from)

    reflector.stop()
    reflector._thread.join(30)

    assert not reflector._thread.is_alive()


def test_a_real_server(api: Api, namespace: str, metrics: Metrics, told: Told, eventually: Eventually) -> None:
    """Made, changed, deleted and selected by labels, over TLS, with what the server itself adds."""

    def write(name: str, text: str, label: str = "x") -> Object:
        metadata = {"namespace": namespace, "name": name, "labels": {"test": label}}
        return api.apply(
            CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": text}}
        )

    first = write("a", "1")
    write("other", "1", "y")
    reflector = Reflector(api, metrics, CONFIG_MAPS, told, namespace=namespace, labels="test=x")
    reflector.start()
    eventually(lambda: reflector.synced)
    held = reflector.store.get(namespace, "a")
    assert held is not None
    assert (held["apiVersion"], held["kind"]) == ("v1", "ConfigMap")

    write("a", "2")
    write("b", "1")
    api.delete(CONFIG_MAPS, namespace, "a", uid=first["metadata"]["uid"])
    eventually(lambda: len(told.changes) >= 4)
    reflector.stop()

    assert [change[:2] for change in told.changes] == [
        ("added", "a"),
        ("modified", "a"),
        ("added", "b"),
        ("deleted", "a"),
    ]
    assert [obj["metadata"]["name"] for obj in reflector.store.list()] == ["b"]
