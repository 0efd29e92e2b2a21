"""One pass over one job: observe, decide, apply, one status write, and the events after it.

Level-triggered: a pass reads all that it needs, and nothing in memory is needed after a restart. Here is also what the
operator watches, and to which job each object belongs. The catalogue of classes has a key of its own.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from shardwise.protocol.pods import JOB_LABEL
from shardwise_operator.config import Settings
from shardwise_operator.decide.decide import decide
from shardwise_operator.decide.plan import Plan
from shardwise_operator.observe.agents import Target
from shardwise_operator.observe.observe import CHILDREN, RECENT_SECONDS, Observer
from shardwise_operator.observe.observed import LEADER, Observed
from shardwise_operator.observe.pod import trimmed
from shardwise_operator.observe.poll import Poller
from shardwise_operator.observe.state import Phase
from shardwise_operator.reasons import INVALID
from shardwise_operator.render.names import OURS
from shardwise_operator.runtime.cache import Cache
from shardwise_operator.runtime.kinds import (
    ACCELERATOR_CATALOGS,
    ACCELERATOR_CLASSES,
    PODS,
    TRAINING_JOBS,
    Kind,
    Object,
)
from shardwise_operator.runtime.manager import Watch
from shardwise_operator.runtime.queue import Key
from shardwise_operator.runtime.recorder import Recorder
from shardwise_operator.runtime.transport import Api
from shardwise_operator.write.apply import Applier
from shardwise_operator.write.catalog import CATALOG_KEY, Catalog
from shardwise_operator.write.milestones import milestones
from shardwise_operator.write.status import compose
from shardwise_operator.write.status_writes import StatusWrites

_NOT_POLLED = (Phase.PENDING, Phase.SUSPENDED, Phase.COMPLETE, Phase.FAILED)
_RETRY_REFUSED_SECONDS = 15.0


class JobController:
    """The controller of TrainingJobs, for the manager to run."""

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
        """Take the parts; the manager starts the watches."""
        self._cache, self._settings = cache, settings
        self._observer, self._applier = observer, applier
        self._poller, self._recorder, self._catalog = poller, recorder, catalog
        self._statuses = StatusWrites(cache, api, self._written)

    @property
    def watches(self) -> Sequence[Watch]:
        """The jobs, the classes and the objects of jobs; the nodes of the classes follow once a class is known."""
        made = [
            Watch(kind=kind, keys=_job_of, labels=OURS, keep=keep, metadata_alone=keep is _metadata_alone)
            for kind, keep in _MADE.items()
        ]
        return [
            Watch(kind=TRAINING_JOBS, keys=lambda job: [_key(job)]),
            Watch(kind=ACCELERATOR_CLASSES, keys=self._jobs_of_class),
            Watch(kind=ACCELERATOR_CATALOGS, keys=lambda _: [CATALOG_KEY]),
            *made,
        ]

    def reconcile(self, key: Key) -> float | None:
        """Bring one job nearer to its spec. Return in how many seconds it needs another pass, None for never."""
        if key == CATALOG_KEY:
            self._catalog.reconcile()
            return None
        job = self._statuses.newest(key)
        if job is None or not self._ours(job):
            self._poller.forget(key)
            self._statuses.forget(key)
            self._applier.forget(key)
            self._observer.forget(key)
            return None
        now = time.time()
        seen = self._observer.observe(job, self._poller.published(key), now)
        plan = decide(seen, self._settings, now)
        outcome = self._applier.apply(seen, plan)
        if outcome.made:
            self._observer.remember(seen, outcome.made)
        status = compose(seen, plan, outcome, job.get("status", {}), now)
        self._follow(key, seen, plan)
        again_seconds = _RETRY_REFUSED_SECONDS if outcome.reason else plan.again_seconds
        # What was just created counts as there before the cache shows it, and may be deleted before it ever does.
        if self._observer.remembers(seen.uid):
            again_seconds = min(RECENT_SECONDS, again_seconds or RECENT_SECONDS)
        # Events come after the status that they belong to: if that cannot be written, the pass raises and is repeated.
        events = (*plan.events, *outcome.events)
        due_seconds = self._statuses.keep(key, job, status, at_once=bool(events))
        for event in events:
            self._recorder.record(job, event.type, event.reason, event.message)
        if due_seconds > 0.0:
            return due_seconds if again_seconds is None else min(due_seconds, again_seconds)
        return again_seconds

    def _written(self, job: Object, before: Object, after: Object) -> None:
        for event in milestones(before, after):
            self._recorder.record(job, event.type, event.reason, event.message)

    def _follow(self, key: Key, seen: Observed, plan: Plan) -> None:
        """Have host 0 polled as long as it may answer; a status waits for its first answer, to be one write with it."""
        leader = seen.current(LEADER)
        if plan.state.phase in _NOT_POLLED or leader is None or not leader.address or not leader.running:
            self._poller.forget(key)
            return
        if seen.poll is None:
            self._statuses.wait(key)
        token = self._settings.tokens.status(seen.uid)
        self._poller.follow(key, Target(pod=leader.uid, address=leader.address, token=token))

    def _ours(self, job: Object) -> bool:
        return bool(job["spec"].get("managedBy", "") == self._settings.managed_by)

    def _jobs_of_class(self, accelerator: Object) -> Iterator[Key]:
        """Yield the keys of the catalogue and of the jobs that the class may have kept from starting."""
        yield CATALOG_KEY
        for job in self._cache.list(TRAINING_JOBS):
            named = job["spec"]["hardware"]["accelerator"] == accelerator["metadata"]["name"]
            if named and job.get("status", {}).get("reason") == INVALID:
                yield _key(job)


def _metadata_alone(made: Object) -> Object:
    """Keep only the metadata: that the object exists, and who owns it."""
    return {"metadata": made["metadata"]}


_MADE: Mapping[Kind, Callable[[Object], Object]] = {
    **dict.fromkeys(CHILDREN, _metadata_alone),
    PODS: trimmed,
}


def _key(job: Object) -> Key:
    return job["metadata"]["namespace"], job["metadata"]["name"]


def _job_of(made: Object) -> Iterator[Key]:
    labels = made["metadata"].get("labels", {})
    if JOB_LABEL in labels:
        yield made["metadata"]["namespace"], labels[JOB_LABEL]
