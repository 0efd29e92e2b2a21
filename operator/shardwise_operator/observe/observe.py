"""Observe one job and all that belongs to it: the objects in the caches, and the last status of host 0.

The caches may lag. A pod that the status knows and the cache does not have would be taken for one that has ended, so it
is read by name before that is believed. Nodes are observed in `nodes.py`.
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwise.job.quantity import Duration
from shardwise_operator.config import Settings
from shardwise_operator.observe.caches import Caches, Reader
from shardwise_operator.observe.desired import DesiredJobs
from shardwise_operator.observe.made_pods import read_made_pods
from shardwise_operator.observe.nodes import Nodes
from shardwise_operator.observe.observed import Guard, Observed
from shardwise_operator.observe.poll import Poll
from shardwise_operator.observe.queueing import Queues
from shardwise_operator.observe.results import Results
from shardwise_operator.observe.rivals import Rivals
from shardwise_operator.observe.snapshot import Snapshot, read_snapshot
from shardwise_operator.observe.state import Phase
from shardwise_operator.observe.state_fields import read_state
from shardwise_operator.render.names import SEAL_ANNOTATION, config_map_name, pod_name, policy_name
from shardwise_operator.runtime.errors import NotFoundError
from shardwise_operator.runtime.kinds import (
    CONFIG_MAPS,
    GANGS,
    NETWORK_POLICIES,
    PODS,
    Kind,
    Object,
    seconds_of,
)
from shardwise_operator.runtime.queue import Key
from shardwise_operator.runtime.store import controller_uid


def child_kinds(settings: Settings) -> tuple[Kind, ...]:
    """Return the kinds of a job's objects of which the names and owners are enough to know."""
    return (CONFIG_MAPS, NETWORK_POLICIES, *((GANGS,) if settings.gang_scheduling else ()))


RECENT_SECONDS = 5.0


@dataclass(frozen=True)
class _Made:
    """An object that this process has created, and when, in monotonic seconds."""

    at: float
    kind: Kind
    obj: Object

    def recent(self, now: float) -> bool:
        """Return whether the cache may not have it yet; some kinds are never in a cache."""
        return now - self.at <= RECENT_SECONDS


class Observer:
    """Observes jobs; it remembers only what would come out the same again."""

    def __init__(self, caches: Caches, api: Reader, settings: Settings) -> None:
        """Read from `caches`, and from `api` what a cache must not be trusted with."""
        self._caches, self._api, self._settings = caches, api, settings
        self._nodes, self._rivals = Nodes(caches, api), Rivals(caches)
        self._queues = Queues(caches, api, self._own, enabled=settings.kueue)
        self._snapshots = Results[Snapshot | None]()
        self._desired = DesiredJobs(caches, self._queues, settings)
        self._lock = threading.Lock()
        self._recent: dict[str, list[_Made]] = {}
        self._gone: dict[Key, set[str]] = {}  # by job, the UIDs in its status of pods that the API server has no more

    def remember(self, seen: Observed, made: list[tuple[Kind, Object]]) -> None:
        """Keep a job's objects that were created a moment ago, as the cache may not have them yet."""
        now, made_of = time.monotonic(), seen.made_of
        for kind, obj in made:
            if kind == CONFIG_MAPS and made_of is not None:  # spares reading it back
                self._snapshots.get_or_make(seen.key, obj["metadata"]["uid"], lambda: made_of)
        with self._lock:
            kept = {uid: [each for each in known if each.recent(now)] for uid, known in self._recent.items()}
            kept[seen.uid] = [*kept.get(seen.uid, []), *(_Made(now, kind, obj) for kind, obj in made)]
            self._recent = {uid: known for uid, known in kept.items() if known}

    def observe(self, job: Object, poll: Poll | None, now: float) -> Observed:
        """Observe a job, given as it is in the cache."""
        known = _without_children(job, self._settings.ttl_after_finished, now)
        if known.state.finished:
            # Nothing but its pods in the cache and its time to live decide what follows. There may be thousands of such
            # jobs, and after a failover all are looked at.
            self.forget(known.key)
            pods = tuple(read_made_pods(known.name, self._own(PODS, known.namespace, known.uid)))
            return replace(known, pods=pods, queueing=self._queues.observe(job, None))
        return self._observe_children(known, job, poll, now)

    def _observe_children(self, known: Observed, job: Object, poll: Poll | None, now: float) -> Observed:
        spec, state, kinds = job["spec"], known.state, child_kinds(self._settings)
        own = ((kind, each["metadata"]) for kind in kinds for each in self._own(kind, known.namespace, known.uid))
        children = {(kind, metadata["name"]): metadata for kind, metadata in own}
        found = children.get((CONFIG_MAPS, config_map_name(known.name, state.round or 0)))
        snapshot = self._round_snapshot(known, found) if found else None
        counts = self._desired.slice_counts(job)
        slices = state.slices if state.slices in counts else None
        desired = None if snapshot and state.phase != Phase.SUSPENDED else self._desired.take(job, slices)
        pods = tuple(read_made_pods(known.name, self._pods(known)))
        gone, silent = self._nodes.lost(pods, now)
        seen = replace(
            known,
            suspend=bool(spec.get("suspend")),
            preflight=spec.get("preflight") == "plan",
            deadline_seconds=_seconds(spec.get("deadline")),
            desired=desired if isinstance(desired, Snapshot) else None,
            problem=desired if isinstance(desired, str) else "",
            slice_counts=counts,
            snapshot=snapshot,
            foreign_snapshot=found["uid"] if found and snapshot is None else "",
            pods=pods,
            children={place: metadata["uid"] for place, metadata in children.items()},
            guard=_guard(children.get((NETWORK_POLICIES, policy_name(known.name)))),
            nodes=self._nodes.known(pods),
            pools=dict(self._nodes.pools(snapshot, state, pods)),
            gone_nodes=gone,
            silent_nodes=silent,
            poll=poll,
        )
        seen = replace(seen, queueing=self._queues.observe(job, seen.made_of))
        older_rival = self._rivals.older(job["metadata"], seen.current_pods()) if state.phase == Phase.PENDING else ""
        return replace(seen, gone_places=self._nodes.gone_places(seen), older_rival=older_rival)

    def _round_snapshot(self, known: Observed, found: Object) -> Snapshot | None:
        """Return what the round is made of, read once; None if it is not this operator's: others may write there too.

        It never changes, and the caches hold its metadata alone. The first round may not be in the status yet.
        """

        def reading() -> Snapshot | None:
            there = self._api.get(CONFIG_MAPS, known.namespace, found["name"])
            seal, data = there["metadata"].get("annotations", {}).get(SEAL_ANNOTATION, ""), there.get("data", {})
            round_, sealed = known.state.round, known.state.sealed_round
            by_older_release = round_ is not None and round_ != sealed
            is_ours = self._settings.tokens.has_sealed(seal, known.uid, round_ or 0, data) and there.get("immutable")
            return read_snapshot(data) if is_ours or by_older_release else None

        return self._snapshots.get_or_make(known.key, found["uid"], reading)

    def _pods(self, known: Observed) -> Iterator[Object]:
        cached = self._own(PODS, known.namespace, known.uid)
        yield from cached
        uids = {pod["metadata"]["uid"] for pod in cached}
        gone = self._gone.setdefault(known.key, set())
        gone.intersection_update(known.state.pods.values())
        for host, uid in known.state.pods.items():
            # Missing from the cache is not gone: a pod counts as lost only if the API server does not have it either.
            # It is asked that once, as no pod comes back: of a job that stops all may be gone but one.
            if uid in uids or uid in gone:
                continue
            found = self._uncached(known, pod_name(known.name, host, known.state.attempts[host]))
            if found is None:
                gone.add(uid)
            else:
                yield found

    def _own(self, kind: Kind, namespace: str, uid: str) -> list[Object]:
        """Return the job's objects of a kind: those of the cache, and recent ones that it has not shown yet."""
        cached = list(self._caches.by_owner(kind, namespace, uid))
        if uid not in self._recent:
            return cached
        now, shown = time.monotonic(), {obj["metadata"]["uid"] for obj in cached}
        with self._lock:
            # What the cache has shown once it leaves out only when it is gone: so it is not remembered any longer.
            made = [each for each in self._recent.get(uid, []) if each.obj["metadata"]["uid"] not in shown]
            self._recent[uid] = made
        return cached + [each.obj for each in made if each.kind == kind and each.recent(now)]

    def forget(self, key: Key) -> None:
        """Drop what is kept of a job that is gone, has finished, or is not this operator's."""
        self._snapshots.forget(key)
        self._desired.forget(key)
        self._gone.pop(key, None)

    def remembers(self, uid: str) -> bool:
        """Return whether objects that the cache does not show yet still count as existing."""
        now = time.monotonic()
        return any(each.recent(now) for each in self._recent.get(uid, []))

    def _uncached(self, known: Observed, name: str) -> Object | None:
        try:
            found = self._api.get(PODS, known.namespace, name)
        except NotFoundError:
            return None
        return found if controller_uid(found) == known.uid else None


def _without_children(job: Object, default_ttl: str | None, now: float) -> Observed:
    metadata, status = job["metadata"], job.get("status", {})
    saved = status.get("checkpoint", {})
    return Observed(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 1),
        deleting="deletionTimestamp" in metadata,
        ttl_seconds=_seconds(job["spec"].get("ttlAfterFinished") or default_ttl),
        state=read_state(status).by_clock(now),
        saved_step=saved.get("step"),
        saved_at=seconds_of(saved["time"]) if "time" in saved else None,
    )


def _guard(metadata: Object | None) -> Guard | None:
    if metadata is None:
        return None
    return Guard(metadata["uid"], frozenset(owner["uid"] for owner in metadata["ownerReferences"]))


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else Duration(text).seconds
    except ValueError:  # such a job is refused as a whole, before its first round
        return None
