"""What a reflector holds, and what it says has changed."""

import gc
import json
import sys
import threading
import tracemalloc
from typing import Any

import pytest
from tests.operator.runtime.scripted_server import configmap

from shardwise_operator.runtime.store import Store


def owned(name: str, version: int, owner: str, *, controller: bool = True) -> dict[str, Any]:
    """A ConfigMap that somebody owns."""
    obj = configmap(name, version)
    obj["metadata"]["ownerReferences"] = [{"uid": owner, "controller": controller}]
    return obj


@pytest.fixture
def store() -> Store:
    """Return an empty store."""
    return Store()


def test_an_object_made_anew_is_two_changes(store: Store) -> None:
    """An object deleted and made again under its name between two lists is gone, then new; never modified."""
    first, second = configmap("a", 1, uid="u1"), configmap("a", 9, uid="u2")
    store.replace([first])

    assert store.replace([second]) == [(first, None), (None, second)]


def test_a_list_says_what_changed_since_the_last(store: Store) -> None:
    """Gone, changed and new objects are told apart, and what is as it was is not mentioned."""
    a, b, c = (configmap(name, 1) for name in "abc")
    store.replace([a, b, c])
    changed, new = configmap("b", 2), configmap("d", 3)

    assert store.replace([configmap("a", 1), changed, new]) == [(c, None), (b, changed), (None, new)]


def test_the_same_event_twice_is_one_change(store: Store) -> None:
    """A watch that was taken up again may repeat itself."""
    assert store.put(configmap("a", 1)) == [(None, configmap("a", 1))]
    assert store.put(configmap("a", 1)) == []


def test_a_late_deletion_does_not_hit_the_successor(store: Store) -> None:
    """The deletion of an object whose name has another one by now changes nothing."""
    store.put(configmap("a", 5, uid="new"))

    assert store.remove(configmap("a", 4, uid="old")) == []
    assert store.get("ns", "a") is not None


def test_an_object_that_changes_is_there_all_the_while(store: Store) -> None:
    """Who looks it up meanwhile gets it as it was or as it is: a pod that is missing for a moment would be replaced."""
    store.put(configmap("a", 0))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        writer = threading.Thread(target=lambda: [store.put(configmap("a", number)) for number in range(1, 3000)])
        writer.start()
        looks = 0
        while writer.is_alive():
            assert store.get("ns", "a") is not None
            looks += 1
        writer.join()
    finally:
        sys.setswitchinterval(interval)

    assert looks > 100


def test_what_is_not_kept_is_not_told_of() -> None:
    """Readers and listeners see the same part of an object."""
    store = Store(lambda obj: {"metadata": obj["metadata"]})

    assert store.put(owned("a", 1, "job"))[0][1] == {"metadata": owned("a", 1, "job")["metadata"]}
    assert store.by_owner("ns", "job") == [store.get("ns", "a")]


def test_nothing_stays_of_an_object_that_cannot_be_read_any_more() -> None:
    """Whatever of it was held would count as how it is now; what is made under its name by then goes with it."""
    store = Store(lambda obj: {"metadata": obj["metadata"], "data": obj["data"]})
    first, odd = configmap("a", 1), configmap("a", 2, uid="new")
    del odd["data"]
    held = store.put(first)[0][1]

    assert store.put(odd) == [(held, None)]
    assert store.put(odd) == store.replace([odd]) == []
    assert store.list() == []


def test_children_are_found_by_their_controller(store: Store) -> None:
    """By the UID of the controller alone, and no longer once they are gone or given away."""
    store.replace([owned("a", 1, "job"), owned("b", 1, "job"), owned("c", 1, "other"), configmap("d", 1)])
    store.put(owned("e", 1, "job", controller=False))
    assert [obj["metadata"]["name"] for obj in store.by_owner("ns", "job")] == ["a", "b"]

    store.put(owned("a", 2, "other"))
    store.remove(owned("b", 1, "job"))

    assert store.by_owner("ns", "job") == []
    assert len(store.by_owner("ns", "other")) == 2


def test_no_object_is_owned_from_another_namespace(store: Store) -> None:
    """The API server takes any UID as that of an owner: who may write in one namespace owns nothing in another."""
    foreign = owned("b", 1, "job")
    foreign["metadata"]["namespace"] = "others"
    store.replace([owned("a", 1, "job"), foreign])
    assert [obj["metadata"]["name"] for obj in store.by_owner("ns", "job")] == ["a"]

    store.remove(foreign)

    assert [obj["metadata"]["name"] for obj in store.by_owner("ns", "job")] == ["a"]
    assert store.by_owner("others", "job") == []


def test_managed_fields_are_not_kept(store: Store) -> None:
    """They are often half of an object and nobody here reads them."""
    obj = configmap("a", 1)
    obj["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    store.put(obj)

    held = store.get("ns", "a")
    assert held is not None
    assert "managedFields" not in held["metadata"]


def test_what_stays_as_it_was_is_held_once(store: Store) -> None:
    """A change takes the memory of what has changed: readers of before have the old object, and share the rest."""
    store.put({**configmap("a", 1), "data": {"same": ["x" * 99], "other": ["1"]}})
    before = store.get("ns", "a")
    store.put({**configmap("a", 2), "data": {"same": ["x" * 99], "other": ["2"]}})
    after = store.get("ns", "a")

    assert before is not None
    assert after is not None
    assert after["data"]["same"] is before["data"]["same"]
    assert (before["data"]["other"], after["data"]["other"]) == (["1"], ["2"])
    assert (before["metadata"]["resourceVersion"], after["metadata"]["resourceVersion"]) == ("1", "2")


def test_memory_is_flat_over_lists(store: Store) -> None:
    """Thirty lists, of objects that all changed and of the same ones, hold no more than the first."""

    def page(version: int) -> list[dict[str, Any]]:
        objects: list[dict[str, Any]] = json.loads(
            json.dumps([owned(str(n), version, f"job-{n % 7}") for n in range(200)])
        )
        return objects

    def held_bytes() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        store.replace(page(1))
        first = held_bytes()
        for n in range(30):
            store.replace(page(2 + n // 2))
        last = held_bytes()
    finally:
        tracemalloc.stop()

    assert len(store) == 200
    assert last < 1.2 * first
