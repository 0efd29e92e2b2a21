"""Looks at one job and all that is its own: the objects in the caches, and the last word of host 0.

The caches may lag. What would be mistaken for an end of a pod (one that the status knows and the cache does not) is
asked for by name before it is believed. What is to know of nodes is in `nodes.py`.
"""

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from shardwise.job.errors import JobError
from shardwise.job.quantity import Duration
from shardwise_operator.config import Settings
from shardwise_operator.frozen import Frozen, freeze, thaw
from shardwise_operator.nodes import Nodes
from shardwise_operator.observed import Guard, Observed
from shardwise_operator.pod import read_pod
from shardwise_operator.poll import Key, Poll
from shardwise_operator.render.names import config_map_name, controller_of, pod_name, policy_name
from shardwise_operator.rivals import Rivals
from shardwise_operator.runtime.errors import NotFoundError
from shardwise_operator.runtime.kinds import (
    ACCELERATOR_CLASSES,
    CONFIG_MAPS,
    NETWORK_POLICIES,
    PODS,
    Kind,
    Object,
)
from shardwise_operator.state import Phase, State, read_state
from shardwise_operator.views import Caches, Reader

CHILDREN = (CONFIG_MAPS, NETWORK_POLICIES)

RECENT_SECONDS = 5.0

T = TypeVar("T")


@dataclass(frozen=True)
class _Made:
    """An object that this process made, and when, in monotonic seconds."""

    at: float
    kind: Kind
    obj: Object

    def recent(self, now: float) -> bool:
        """Whether the cache may not hold it yet; some kinds are never in one."""
        return now - self.at <= RECENT_SECONDS


class Observer:
    """Observes jobs; it remembers only what would come out the same again."""

    def __init__(self, caches: Caches, api: Reader, settings: Settings) -> None:
        """Read from `caches`, and from `api` what a cache must not be trusted with."""
        self._caches, self._api, self._settings = caches, api, settings
        self._nodes, self._rivals = Nodes(caches, api), Rivals(caches)
        self._frozen = _Memory[Frozen]()
        self._asked = _Memory[Frozen | str]()
        self._lock = threading.Lock()
        self._recent: dict[str, list[_Made]] = {}

    def remember(self, seen: Observed, made: list[tuple[Kind, Object]]) -> None:
        """A job's objects that were made a moment ago, which the cache may not hold yet."""
        now, made_of = time.monotonic(), seen.made_of
        for kind, obj in made:
            if kind == CONFIG_MAPS and made_of is not None:  # spares reading it back
                self._frozen.get((seen.namespace, seen.name), obj["metadata"]["uid"], lambda: made_of)
        with self._lock:
            kept = {uid: [each for each in known if each.recent(now)] for uid, known in self._recent.items()}
            kept[seen.uid] = [*kept.get(seen.uid, []), *(_Made(now, kind, obj) for kind, obj in made)]
            self._recent = {uid: known for uid, known in kept.items() if known}

    def observe(self, job: Object, poll: Poll | None, now: float) -> Observed:
        """The job, an object of the cache, as it stands."""
        metadata, spec, status = job["metadata"], job["spec"], job.get("status", {})
        uid, state = metadata["uid"], read_state(status)
        if state.finished:
            self.forget((metadata["namespace"], metadata["name"]))
            return self._observe_finished(metadata, spec, state)
        children = {kind: self._own(kind, uid) for kind in CHILDREN}
        frozen = self._thawed(children[CONFIG_MAPS], metadata, state)
        asked = None if frozen and state.phase != Phase.SUSPENDED else self._freeze(job)
        pods = tuple(read_pod(raw) for raw in self._pods(metadata, state))
        gone, silent = self._nodes.lost(pods, now)
        seen = Observed(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=uid,
            generation=metadata.get("generation", 1),
            deleting="deletionTimestamp" in metadata,
            suspend=bool(spec.get("suspend")),
            preflight=spec.get("preflight") == "plan",
            deadline_seconds=_seconds(spec.get("deadline")),
            ttl_seconds=_seconds(spec.get("ttlAfterFinished")),
            state=state,
            saved_step=status.get("checkpoint", {}).get("step"),
            asked=asked if isinstance(asked, Frozen) else None,
            problem=asked if isinstance(asked, str) else "",
            frozen=frozen,
            pods=pods,
            children=frozenset(
                f"{kind.kind}/{child['metadata']['name']}" for kind in CHILDREN for child in children[kind]
            ),
            guard=_guard(children[NETWORK_POLICIES], metadata["name"]),
            nodes=self._nodes.known(pods),
            pools=dict(self._nodes.pools(frozen, state, pods)),
            gone_nodes=gone,
            silent_nodes=silent,
            poll=poll,
        )
        elder = self._rivals.elder(metadata, seen.current_pods()) if state.phase == Phase.PENDING else ""
        return replace(seen, gone_places=self._nodes.gone_places(seen), elder=elder)

    def _observe_finished(self, metadata: Mapping[str, Any], spec: Mapping[str, Any], state: State) -> Observed:
        """A job that has finished: nothing but its pods in the cache and its time to live decide what follows.

        There may be thousands of them, and after a failover all are looked at.
        """
        return Observed(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            generation=metadata.get("generation", 1),
            deleting="deletionTimestamp" in metadata,
            ttl_seconds=_seconds(spec.get("ttlAfterFinished")),
            state=state,
            pods=tuple(read_pod(raw) for raw in self._own(PODS, metadata["uid"])),
        )

    def _thawed(self, config_maps: Sequence[Object], metadata: Mapping[str, Any], state: State) -> Frozen | None:
        """What the round is made of, read once: it never changes, and the caches do not hold it."""
        if state.round is None:
            return None
        wanted = config_map_name(metadata["name"], state.round)
        found = next((each["metadata"]["uid"] for each in config_maps if each["metadata"]["name"] == wanted), None)
        if found is None:
            return None
        namespace = metadata["namespace"]
        return self._frozen.get(
            (namespace, metadata["name"]), found, lambda: thaw(self._api.get(CONFIG_MAPS, namespace, wanted)["data"])
        )

    def _freeze(self, job: Object) -> Frozen | str:
        """The job with its class as they are now, or why they do not go together."""
        classes = {each["metadata"]["name"]: each for each in self._caches.list(ACCELERATOR_CLASSES)}
        machine = classes.get(job["spec"]["hardware"]["accelerator"])
        version = machine["metadata"]["resourceVersion"] if machine else tuple(sorted(classes))
        known = (job["metadata"]["uid"], job["metadata"].get("generation"), version)

        def freezing() -> Frozen | str:
            try:
                return freeze(job, classes, image=self._settings.trainer_image)
            except JobError as error:
                return str(error)

        return self._asked.get((job["metadata"]["namespace"], job["metadata"]["name"]), known, freezing)

    def _pods(self, metadata: Mapping[str, Any], state: State) -> Iterator[Object]:
        known = self._own(PODS, metadata["uid"])
        yield from known
        there = {pod["metadata"]["uid"] for pod in known}
        for host, uid in state.pods.items():
            if uid not in there:
                name = pod_name(metadata["name"], host, state.attempts[host])
                yield from self._uncached(metadata, name)

    def _own(self, kind: Kind, uid: str) -> list[Object]:
        """The job's objects of a kind: those of the cache, and those that it has never shown and may not hold yet."""
        cached = list(self._caches.by_owner(kind, uid))
        if uid not in self._recent:
            return cached
        now, there = time.monotonic(), {obj["metadata"]["uid"] for obj in cached}
        with self._lock:
            made = [each for each in self._recent.get(uid, []) if each.obj["metadata"]["uid"] not in there]
            self._recent[uid] = made
        return cached + [each.obj for each in made if each.kind == kind and each.recent(now)]

    def forget(self, key: Key) -> None:
        """The job is gone, or needs nothing more."""
        self._frozen.forget(key)
        self._asked.forget(key)

    def remembers(self, uid: str) -> bool:
        """Whether objects of this job are counted as there that the cache has not shown: they may be gone already."""
        now = time.monotonic()
        return any(each.recent(now) for each in self._recent.get(uid, []))

    def _uncached(self, metadata: Mapping[str, Any], name: str) -> Iterator[Object]:
        try:
            found = self._api.get(PODS, metadata["namespace"], name)
        except NotFoundError:
            return
        if controller_of(found) == metadata["uid"]:
            yield found


class _Memory(Generic[T]):
    """For each job, what was last made of an input that never changes."""

    def __init__(self) -> None:
        self._known: dict[Key, tuple[Hashable, T]] = {}

    def get(self, key: Key, of: Hashable, make: Callable[[], T]) -> T:
        """What is known of the job, if it was made of this, or is made now, which may take a request."""
        known = self._known.get(key)
        if known is None or known[0] != of:
            known = self._known[key] = (of, make())
        return known[1]

    def forget(self, key: Key) -> None:
        """Keep nothing of a job."""
        self._known.pop(key, None)


def _guard(policies: Sequence[Object], job: str) -> Guard | None:
    for each in policies:
        metadata = each["metadata"]
        if metadata["name"] == policy_name(job):
            return Guard(metadata["uid"], frozenset(owner["uid"] for owner in metadata["ownerReferences"]))
    return None


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else Duration(text).seconds
    except ValueError:  # refused with the rest of the job, before its first round
        return None
