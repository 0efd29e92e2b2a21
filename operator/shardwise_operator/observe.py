"""Looks at one job and all that is its own: the objects in the caches, and the last word of host 0.

The caches may lag. What would be mistaken for an end of a pod (one that the status knows and the cache does not) is
asked for by name before it is believed; so are the nodes of pods that are stuck or wait for their slice's place.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from shardwise.job.errors import JobError
from shardwise.job.quantity import Duration
from shardwise_operator.config import Settings
from shardwise_operator.frozen import Frozen, freeze, thaw
from shardwise_operator.observed import Endpoint, Observed
from shardwise_operator.pod import Pod, read_pod
from shardwise_operator.poll import Poll
from shardwise_operator.render.names import config_map_name, controller_of, pod_name, service_name
from shardwise_operator.runtime.errors import NotFoundError
from shardwise_operator.runtime.kinds import (
    ACCELERATOR_CLASSES,
    CONFIG_MAPS,
    ENDPOINT_SLICES,
    NETWORK_POLICIES,
    NODES,
    PODS,
    SERVICES,
    Kind,
    Object,
)
from shardwise_operator.state import Phase, State, read_state

CHILDREN = (CONFIG_MAPS, SERVICES, NETWORK_POLICIES, ENDPOINT_SLICES)

RECENT_SECONDS = 5.0
_MAX_REMEMBERED = 2048
_ON_A_NODE_THAT_IS_GONE = ("DeletionByTaintManager", "DeletionByPodGC")

T = TypeVar("T")


class Caches(Protocol):
    """What the observer reads of the runtime's cache."""

    def by_owner(self, kind: Kind, owner_uid: str) -> Sequence[Object]:
        """The objects of a kind that one object controls."""

    def list(self, kind: Kind) -> Sequence[Object]:
        """Every object of a kind."""


class Getter(Protocol):
    """What the observer asks of the API server itself."""

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """One object; NotFoundError."""


class Observer:
    """Observes jobs; it remembers only what would come out the same again."""

    def __init__(self, caches: Caches, api: Getter, settings: Settings) -> None:
        """Read from `caches`, and from `api` what a cache must not be trusted with."""
        self._caches, self._api, self._settings = caches, api, settings
        self._frozen = _Memory[Frozen]()
        self._asked = _Memory[Frozen | str]()
        self._lock = threading.Lock()
        self._recent: dict[str, tuple[float, list[tuple[Kind, Object]]]] = {}

    def remember(self, seen: Observed, made: list[tuple[Kind, Object]]) -> None:
        """A job's objects that were made a moment ago, which the cache may not hold yet."""
        now = time.monotonic()
        for kind, obj in made:
            if kind == CONFIG_MAPS and seen.made_of is not None:  # spares reading it back
                self._frozen[obj["metadata"]["uid"]] = seen.made_of
        with self._lock:
            self._recent = {uid: kept for uid, kept in self._recent.items() if now - kept[0] < RECENT_SECONDS}
            self._recent[seen.uid] = (now, made)

    def observe(self, job: Object, poll: Poll | None, now: float) -> Observed:
        """The job, an object of the cache, as it stands."""
        metadata, spec, status = job["metadata"], job["spec"], job.get("status", {})
        uid, state = metadata["uid"], read_state(status)
        children = {kind: self._own(kind, uid) for kind in CHILDREN}
        frozen = self._thawed(children[CONFIG_MAPS], metadata["name"], state)
        asked = None if frozen and state.phase != Phase.SUSPENDED else self._freeze(job)
        pods = tuple(read_pod(raw) for raw in self._pods(metadata, state))
        gone, silent = self._lost_nodes(pods, now)
        return Observed(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=uid,
            generation=metadata.get("generation", 1),
            labels=metadata.get("labels", {}),
            deleting="deletionTimestamp" in metadata,
            suspend=bool(spec.get("suspend")),
            deadline_seconds=_seconds(spec.get("deadline")),
            ttl_seconds=_seconds(spec.get("ttlAfterFinished")),
            state=state,
            asked=asked if isinstance(asked, Frozen) else None,
            problem=asked if isinstance(asked, str) else "",
            frozen=frozen,
            pods=pods,
            children=frozenset(
                f"{kind.kind}/{child['metadata']['name']}" for kind in CHILDREN for child in children[kind]
            ),
            endpoint=_endpoint(children[ENDPOINT_SLICES], metadata["name"]),
            pools=dict(self._pools(frozen, state, pods)),
            gone_nodes=gone,
            silent_nodes=silent,
            poll=poll,
        )

    def _thawed(self, config_maps: Sequence[Object], name: str, state: State) -> Frozen | None:
        if state.round is None:
            return None
        wanted = config_map_name(name, state.round)
        found = next((each for each in config_maps if each["metadata"]["name"] == wanted), None)
        return None if found is None else self._frozen.get(found["metadata"]["uid"], lambda: thaw(found["data"]))

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

        return self._asked.get(known, freezing)

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
        made = self._remembered(uid)
        there = {obj["metadata"]["uid"] for obj in cached}
        made[:] = [(other, obj) for other, obj in made if obj["metadata"]["uid"] not in there]
        return cached + [obj for other, obj in made if other == kind]

    def remembers(self, uid: str) -> bool:
        """Whether objects of this job are counted as there that the cache has not shown: they may be gone already."""
        return bool(self._remembered(uid))

    def _remembered(self, uid: str) -> list[tuple[Kind, Object]]:
        """What was made a moment ago; nothing once that is over, for some kinds are never in a cache."""
        made_at, made = self._recent.get(uid, (0.0, []))
        return made if time.monotonic() - made_at <= RECENT_SECONDS else []

    def _uncached(self, metadata: Mapping[str, Any], name: str) -> Iterator[Object]:
        try:
            found = self._api.get(PODS, metadata["namespace"], name)
        except NotFoundError:
            return
        if controller_of(found) == metadata["uid"]:
            yield found

    def _lost_nodes(self, pods: Iterable[Pod], now: float) -> tuple[frozenset[str], frozenset[str]]:
        """The nodes that are no more, and those that say nothing, of pods that are stuck."""
        gone, silent = set(), set()
        for node in {pod.node for pod in pods if pod.node and _stuck(pod, now)}:
            try:
                conditions = self._api.get(NODES, "", node).get("status", {}).get("conditions", [])
            except NotFoundError:
                gone.add(node)
                continue
            if any(each["type"] == "Ready" and each["status"] == "Unknown" for each in conditions):
                silent.add(node)
        return frozenset(gone), frozenset(silent)

    def _pools(self, frozen: Frozen | None, state: State, pods: Iterable[Pod]) -> Iterator[tuple[int, str]]:
        """The place of each slice that has one and needs to know it, by a pod that is bound there."""
        label = frozen.placement_label if frozen else None
        if frozen is None or label is None:
            return
        waiting = {pod.slice for pod in pods if pod.gated}
        waiting |= {int(host.split("-")[0]) for host in frozen.hosts if host not in state.pods}
        bound = {
            pod.slice: pod.node
            for pod in pods
            if pod.node and not pod.ended and pod.deleting_at is None and state.pods.get(pod.key) == pod.uid
        }
        for slice_ in sorted(waiting & bound.keys()):
            try:
                node = self._api.get(NODES, "", bound[slice_])
            except NotFoundError:
                continue
            place = node["metadata"].get("labels", {}).get(label)
            if place is not None:
                yield slice_, place


class _Memory(OrderedDict[Hashable, T]):
    """What was made of an input that never changes; the oldest is forgotten."""

    def get(self, key: Hashable, make: Callable[[], T]) -> T:  # type: ignore[override]
        if key not in self:
            self[key] = make()
            while len(self) > _MAX_REMEMBERED:
                self.popitem(last=False)
        return self[key]


def _stuck(pod: Pod, now: float) -> bool:
    if pod.deleting_at is None or pod.ended:
        return False
    return pod.disruption in _ON_A_NODE_THAT_IS_GONE or now > pod.deleting_at


def _endpoint(slices: Sequence[Object], job: str) -> Endpoint | None:
    for each in slices:
        if each["metadata"]["name"] == service_name(job):
            addresses = [address for endpoint in each["endpoints"] for address in endpoint["addresses"]]
            return Endpoint(addresses[0] if addresses else "", each["metadata"]["uid"])
    return None


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else Duration(text).seconds
    except ValueError:  # refused with the rest of the job, before its first round
        return None
