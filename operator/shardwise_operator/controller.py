"""One pass over one job: observe, decide, apply, one status write, and the events after it.

Level-triggered: a pass reads all that it needs, and nothing in memory is needed after a restart. What is to be watched,
and which job each object belongs to, is said here too. The catalogue of classes is a key of its own.
"""

import logging
import time
from collections.abc import Iterator, Sequence

from shardwise.job.pods import JOB_LABEL
from shardwise_operator.agents import Target
from shardwise_operator.apply import Applier
from shardwise_operator.catalog import CATALOG_KEY, Catalog
from shardwise_operator.config import Settings
from shardwise_operator.decide import decide
from shardwise_operator.observe import CHILDREN, RECENT_SECONDS, Observer
from shardwise_operator.observed import LEADER, Observed
from shardwise_operator.plan import Plan
from shardwise_operator.poll import Key, Poller
from shardwise_operator.render.names import OURS
from shardwise_operator.runtime.cache import Cache
from shardwise_operator.runtime.kinds import ACCELERATOR_CLASSES, PODS, TRAINING_JOBS, Object
from shardwise_operator.runtime.manager import Watch
from shardwise_operator.runtime.recorder import Recorder
from shardwise_operator.runtime.transport import Api
from shardwise_operator.state import Phase
from shardwise_operator.status import compose
from shardwise_operator.words import INVALID

_NOTHING_TO_ASK = (Phase.PENDING, Phase.SUSPENDED, Phase.COMPLETE, Phase.FAILED)
_REFUSED_AGAIN_SECONDS = 15.0
# What of a status is for its readers alone, or can be found again; all else is decided by, and written at once.
_CAN_WAIT = (
    *("phase", "reason", "message", "conditions", "hosts", "observedGeneration"),
    *("progress", "checkpoint", "goodput", "image"),
)
_CALM_SECONDS = 2.0

_log = logging.getLogger(__name__)


class JobController:
    """What the manager runs."""

    def __init__(
        self,
        cache: Cache,
        api: Api,
        *,
        settings: Settings,
        observer: Observer,
        applier: Applier,
        poller: Poller,
        recorder: Recorder,
        catalog: Catalog,
    ) -> None:
        """Take the parts; nothing is watched yet."""
        self._cache, self._api, self._settings = cache, api, settings
        self._observer, self._applier = observer, applier
        self._poller, self._recorder, self._catalog = poller, recorder, catalog
        self._written: dict[Key, Object] = {}
        self._calm_since: dict[Key, float] = {}

    @property
    def watches(self) -> Sequence[Watch]:
        """The jobs, the classes, and what the operator makes; the classes' nodes follow when the classes are known."""
        made = [Watch(kind=kind, keys=_job_of, labels=OURS) for kind in (PODS, *CHILDREN)]
        return [
            Watch(kind=TRAINING_JOBS, keys=lambda job: [_key(job)]),
            Watch(kind=ACCELERATOR_CLASSES, keys=self._concerned),
            *made,
        ]

    def reconcile(self, key: Key) -> float | None:
        """Bring one job nearer to what its owner asked for."""
        if key == CATALOG_KEY:
            self._catalog.reconcile()
            return None
        job = self._newest(key)
        if job is None or not self._ours(job):
            self._poller.forget(key)
            self._calm_since.pop(key, None)
            return None
        now = time.time()
        seen = self._observer.observe(job, self._poller.published(key), now)
        plan = decide(seen, self._settings, now)
        outcome = self._applier.apply(seen, plan)
        if outcome.made:
            self._observer.remember(seen, outcome.made)
        status = compose(seen, plan, outcome, job.get("status", {}), now)
        self._follow(key, seen, plan)
        again_seconds = _REFUSED_AGAIN_SECONDS if outcome.reason else plan.again_seconds
        if self._observer.remembers(seen.uid):
            again_seconds = min(RECENT_SECONDS, again_seconds or RECENT_SECONDS)
        if status != job.get("status", {}):
            calm_seconds = self._calm_seconds(key, plan, job.get("status", {}), status)
            if calm_seconds > 0.0:
                return calm_seconds if again_seconds is None else min(calm_seconds, again_seconds)
            job = self._write(key, job, status)
        for event in (*plan.events, *outcome.events):
            self._recorder.record(job, event.type, event.reason, event.message)
        return again_seconds

    def _calm_seconds(self, key: Key, plan: Plan, old: Object, new: Object) -> float:
        """How long a status can wait for more of its kind: pods come up in bursts, and each write costs everyone."""
        changed = {field for field in old.keys() | new.keys() if old.get(field) != new.get(field)}
        if plan.events or not changed <= set(_CAN_WAIT):
            return 0.0
        return self._calm_since.get(key, -_CALM_SECONDS) + _CALM_SECONDS - time.monotonic()

    def _write(self, key: Key, job: Object, status: Object) -> Object:
        written = self._api.replace_status(TRAINING_JOBS, {**job, "status": status})
        self._written[key], self._calm_since[key] = written, time.monotonic()
        old = job.get("status", {})
        if (status.get("phase"), status.get("reason")) != (old.get("phase"), old.get("reason")):
            _log.info("%s/%s: %s: %s", *key, status.get("phase"), status.get("reason"))
        return written

    def _newest(self, key: Key) -> Object | None:
        """The job as the cache has it, or as this process wrote it since; None where it is gone."""
        cached, written = self._cache.get(TRAINING_JOBS, *key), self._written.get(key)
        if cached is None or written is None or _version(cached) >= _version(written):
            self._written.pop(key, None)
            return cached
        return written if written["metadata"]["uid"] == cached["metadata"]["uid"] else cached

    def _follow(self, key: Key, seen: Observed, plan: Plan) -> None:
        """Have host 0 asked while there is one that may answer; its first word often comes before the status is due."""
        leader = seen.current(LEADER)
        if plan.state.phase in _NOTHING_TO_ASK or leader is None or not leader.address or not leader.running:
            self._poller.forget(key)
            return
        if seen.poll is None:
            self._calm_since[key] = time.monotonic()
        token = self._settings.tokens.status(seen.uid)
        self._poller.follow(key, Target(pod=leader.uid, address=leader.address, token=token))

    def _ours(self, job: Object) -> bool:
        return bool(job["spec"].get("managedBy", "") == self._settings.managed_by)

    def _concerned(self, accelerator: Object) -> Iterator[Key]:
        """The catalogue, and the jobs that a class may have kept from starting."""
        yield CATALOG_KEY
        for job in self._cache.list(TRAINING_JOBS):
            named = job["spec"]["hardware"]["accelerator"] == accelerator["metadata"]["name"]
            if named and job.get("status", {}).get("reason") == INVALID:
                yield _key(job)


def _key(job: Object) -> Key:
    return job["metadata"]["namespace"], job["metadata"]["name"]


def _version(job: Object) -> int:
    """Kubernetes promises that the versions of one kind are numbers that grow."""
    return int(job["metadata"]["resourceVersion"])


def _job_of(made: Object) -> Iterator[Key]:
    labels = made["metadata"].get("labels", {})
    if JOB_LABEL in labels:
        yield made["metadata"]["namespace"], labels[JOB_LABEL]
