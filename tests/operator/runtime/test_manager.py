"""The manager: changes become passes, of leaders alone, and an end that leaves nothing half done."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Self
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from tests.operator.runtime.scripted_server import Answer, Events, ScriptedServer, configmap, listing

from shardwise_operator.runtime.cache import Cache
from shardwise_operator.runtime.elector import Elector, Timing
from shardwise_operator.runtime.errors import ConflictError
from shardwise_operator.runtime.kinds import CONFIG_MAPS, LEASES, PODS, SECRETS, Object
from shardwise_operator.runtime.manager import Manager, Watch
from shardwise_operator.runtime.metrics import Metrics
from shardwise_operator.runtime.queue import Key, WorkQueue
from shardwise_operator.runtime.reflector import Reflector
from shardwise_operator.runtime.transport import Api
from shardwise_operator.runtime.web import WebServer, health_pages, metrics_pages

Eventually = Callable[[Callable[[], object]], None]


def place(obj: Object) -> list[Key]:
    """The object's own key."""
    return [(obj["metadata"]["namespace"], obj["metadata"]["name"])]


def owner(obj: Object) -> list[Key]:
    """The key of the ConfigMap that the label names."""
    return [(obj["metadata"]["namespace"], obj["metadata"]["labels"]["of"])]


class Recording:
    """A controller that writes down its passes, and does what the test says."""

    def __init__(self) -> None:
        self.passes: list[Key] = []
        self.does: Callable[[Key], float | None] = lambda _: None

    @property
    def watches(self) -> Sequence[Watch]:
        """ConfigMaps, and Secrets that name one."""
        return [
            Watch(kind=CONFIG_MAPS, keys=place, labels="test=work"),
            Watch(kind=SECRETS, keys=owner, labels="of"),
        ]

    def reconcile(self, key: Key) -> float | None:
        """Write it down."""
        self.passes.append(key)
        return self.does(key)


class Operator:
    """A manager with its parts, in a thread of this process."""

    def __init__(self, api: Api, namespace: str, metrics: Metrics, identity: str) -> None:
        self.cache, self.controller = Cache(), Recording()
        elector = Elector(
            api,
            namespace=namespace,
            name="operator",
            identity=identity,
            lost=pytest.fail,
            timing=Timing(lease=30, renew=20, retry=0.2),
        )
        self.manager = Manager(api, self.cache, WorkQueue(metrics), elector, metrics, workers=3, namespace=namespace)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.manager.run, args=(self.controller, self.stop), daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Ask it to end, and wait until it has."""
        self.stop.set()
        self.thread.join()


@pytest.fixture
def operator(api: Api, namespace: str, metrics: Metrics) -> Iterator[Operator]:
    """Return an operator that runs."""
    with Operator(api, namespace, metrics, "one") as made:
        yield made


def write(api: Api, namespace: str, name: str, **data: str) -> Object:
    """Make or change a ConfigMap that is watched."""
    metadata = {"namespace": namespace, "name": name, "labels": {"test": "work"}}
    return api.apply(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


def result(metrics: Metrics, name: str) -> float:
    """How many passes ended like this."""
    return metrics.registry.get_sample_value("shardwise_operator_reconciles_total", {"result": name}) or 0


def workers() -> int:
    """How many workers of the operator are there."""
    return sum(thread.name.startswith("worker ") for thread in threading.enumerate())


def test_changes_become_passes(api: Api, namespace: str, operator: Operator, eventually: Eventually) -> None:
    """What is there from the start, what comes, changes and goes, and a child's change by its owner's key."""
    write(api, namespace, "a", n="1")
    eventually(lambda: (namespace, "a") in operator.controller.passes)
    assert operator.cache.get(CONFIG_MAPS, namespace, "a") is not None

    operator.controller.passes.clear()
    metadata = {"namespace": namespace, "name": "child", "labels": {"of": "b"}}
    child = api.create(SECRETS, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
    eventually(lambda: operator.controller.passes == [(namespace, "b")])
    api.delete(SECRETS, namespace, "child", uid=child["metadata"]["uid"])
    eventually(lambda: operator.controller.passes == [(namespace, "b")] * 2)

    assert operator.cache.synced(CONFIG_MAPS)
    assert not operator.cache.synced(PODS)


def test_a_pass_that_fails_comes_again(
    api: Api, namespace: str, operator: Operator, metrics: Metrics, eventually: Eventually
) -> None:
    """Whatever it raised; the others go on meanwhile, and a pass that asks for it is called again by itself."""
    failures: list[Exception] = [ConflictError(409, "Conflict", "another version"), KeyError("spec")]

    def does(key: Key) -> float | None:
        if key[1] == "bad" and failures:
            raise failures.pop(0)
        return 0.01 if len(operator.controller.passes) < 10 else None

    operator.controller.does = does
    write(api, namespace, "bad")
    write(api, namespace, "good")
    eventually(lambda: len(operator.controller.passes) >= 10 and not failures)

    eventually(lambda: result(metrics, "done") >= 2)
    assert (result(metrics, "outdated"), result(metrics, "failed")) == (1, 1)
    assert result(metrics, "again") >= 6


def test_a_follower_watches_and_waits(api: Api, namespace: str, operator: Operator, eventually: Eventually) -> None:
    """It is synced and ready while another leads, has no pass, and does them all once the leader has gone."""
    write(api, namespace, "a")
    eventually(lambda: operator.controller.passes)
    with Operator(api, namespace, Metrics(), "two") as follower:
        eventually(lambda: follower.cache.get(CONFIG_MAPS, namespace, "a") and not follower.manager.unsynced())
        assert follower.controller.passes == []

        operator.end()
        eventually(lambda: follower.controller.passes == [(namespace, "a")])


def test_the_end_waits_for_the_pass_that_runs(
    api: Api, namespace: str, operator: Operator, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Lease is still held while a pass runs, and given back after it; no further pass begins.

    Not even on a machine so busy that the queue is shut only once that pass has ended.
    """
    may_end, holders = threading.Event(), []
    queue, passes = operator.manager.queue, operator.controller.passes
    shut = queue.shut

    def shut_late() -> None:
        eventually(lambda: len(passes) > 1 or workers() < 3)
        shut()

    monkeypatch.setattr(queue, "shut", shut_late)

    def does(_: Key) -> None:
        may_end.wait(30)
        holders.append(api.get(LEASES, namespace, "operator")["spec"]["holderIdentity"])

    operator.controller.does = does
    write(api, namespace, "a")
    eventually(lambda: passes)
    operator.stop.set()
    write(api, namespace, "a", n="2")
    eventually(lambda: (seen := operator.cache.get(CONFIG_MAPS, namespace, "a")) and seen.get("data") == {"n": "2"})
    may_end.set()
    operator.thread.join()

    assert holders == ["one"]
    assert api.get(LEASES, namespace, "operator")["spec"]["holderIdentity"] == ""
    assert passes == [(namespace, "a")]


def test_a_pass_that_stands_still_is_told(
    api: Api, namespace: str, operator: Operator, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker takes no other job. One that asks the API server again and again is only long."""
    monkeypatch.setattr("shardwise_operator.runtime.manager._STUCK_SECONDS", 2.0)  # an answer may take a while
    lets, asks = threading.Event(), threading.Event()
    asks.set()

    def long(_: Key) -> None:
        while not lets.wait(0.02):
            if asks.is_set():
                api.get(CONFIG_MAPS, namespace, "a")

    operator.controller.does = long
    write(api, namespace, "a")
    eventually(lambda: operator.controller.passes)
    assert not lets.wait(2.5)
    assert operator.manager.stuck() == []

    asks.clear()
    eventually(lambda: operator.manager.stuck() == [f"{namespace}/a"])
    lets.set()
    eventually(lambda: operator.manager.stuck() == [])


def test_more_may_be_watched_later(api: Api, namespace: str, operator: Operator, eventually: Eventually) -> None:
    """A watch that is added while it runs fills the cache beside the others; an object in two of them is one."""
    write(api, namespace, "a")
    eventually(lambda: operator.controller.passes)

    operator.manager.watch(Watch(kind=CONFIG_MAPS, keys=place, labels="test"))
    operator.manager.watch(Watch(kind=CONFIG_MAPS, keys=place, labels="test"))
    eventually(lambda: operator.cache.synced(CONFIG_MAPS))

    assert len(operator.cache.list(CONFIG_MAPS, namespace)) == 1
    assert len(operator.manager._all()) == 3
    assert operator.cache.by_owner(CONFIG_MAPS, namespace, "nobody") == []


def test_a_watch_may_end_before_the_operator(
    api: Api, namespace: str, operator: Operator, metrics: Metrics, eventually: Eventually
) -> None:
    """Its objects are held no longer, and it may begin again; what another watch has of them stays."""

    def held() -> float | None:
        return metrics.registry.get_sample_value("shardwise_operator_cached_objects", {"kind": "configmaps"})

    write(api, namespace, "a")
    eventually(lambda: held() == 1)
    for _ in range(2):
        operator.manager.watch(Watch(kind=CONFIG_MAPS, keys=place, labels="test"))
        eventually(lambda: held() == 2)

        operator.manager.unwatch(CONFIG_MAPS, "test")
        eventually(lambda: held() == 1)

        assert len(operator.cache.list(CONFIG_MAPS, namespace)) == 1
        assert operator.manager.dead() == []
    operator.manager.unwatch(CONFIG_MAPS, "test=work")
    assert operator.cache.list(CONFIG_MAPS, namespace) == []


def test_an_object_of_which_no_key_can_be_told_ends_no_watch(
    scripted_api: Api,
    script: ScriptedServer,
    metrics: Metrics,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log has its name, and what lies beside it brings passes as ever."""
    odd, good = configmap("odd", 1), configmap("good", 1)
    good["metadata"]["labels"] = {"of": "job"}
    script.lists.append(listing(odd, good, version=2))
    script.watches.append(Events())
    with Operator(scripted_api, "ns", metrics, "one") as operator:
        eventually(lambda: not operator.manager.unsynced() or operator.manager.dead())
        assert operator.manager.dead() == []
        keys = {operator.manager.queue.get() for _ in range(3)}

    assert keys == {("ns", "odd"), ("ns", "good"), ("ns", "job")}
    assert "ConfigMap ns/odd brings no pass: it cannot be read" in caplog.text


def test_a_watch_that_is_about_to_begin_is_not_dead(
    operator: Operator, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks for the dead while a watch is being added is not told of a thread that has not begun."""
    eventually(lambda: operator.cache.synced(SECRETS) and operator.cache.synced(CONFIG_MAPS))
    said: list[list[str]] = []
    asking = threading.Thread(target=lambda: said.append(operator.manager.dead()))
    start = Reflector.start

    def start_while_somebody_asks(reflector: Reflector) -> None:
        asking.start()
        asking.join(0.5)  # it may have to wait for what follows
        start(reflector)

    monkeypatch.setattr(Reflector, "start", start_while_somebody_asks)
    operator.manager.watch(Watch(kind=CONFIG_MAPS, keys=place, labels="test=later"))

    asking.join()
    assert said == [[]]


def page(server: WebServer, path: str) -> tuple[int, str]:
    """What a probe gets."""
    try:
        with urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()


def test_health_and_readiness(
    scripted_api: Api, script: ScriptedServer, metrics: Metrics, eventually: Eventually
) -> None:
    """Ready only when all is listed, healthy before that too; who leads does not matter; metrics are served."""
    script.lists.append(Answer({"message": "starting"}, 503))
    script.watches.append(Events())
    polls_stuck: list[str] = []
    operator = Operator(scripted_api, "ns", metrics, "one")
    pages = health_pages(operator.manager, lambda: polls_stuck) | metrics_pages(metrics.registry)
    with WebServer("127.0.0.1:0", pages) as server, operator:
        eventually(lambda: len(script.asked) >= 3)
        assert page(server, "/readyz") == (503, "not listed yet: configmaps, secrets\n")
        assert page(server, "/healthz") == (200, "ok\n")

        script.lists.append(listing(version=2))
        eventually(lambda: page(server, "/readyz") == (200, "ok\n"))
        polls_stuck.append("default/job")
        assert page(server, "/healthz") == (503, "a poll stands still: default/job\n")
        assert page(server, "/none") == (404, "/healthz /readyz /metrics")
        status, text = page(server, "/metrics")

    assert status == 200
    assert "shardwise_operator_leader 0.0" in text
    assert 'shardwise_operator_cached_objects{kind="configmaps"} 0.0' in text
    assert "process_resident_memory_bytes" in text
