"""One pass over one job: observe, decide, apply, one status write, and the events and spans after it.

Level-triggered: a pass reads all that it needs, and nothing in memory is needed after a restart. Here is also what the
operator watches, and to which job each object belongs. The catalogue of classes has a key of its own.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field

from shardwise.protocol.pods import JOB_LABEL
from shardwise_operator.config import Settings
from shardwise_operator.decide.decide import decide
from shardwise_operator.decide.plan import Event, Plan, soonest
from shardwise_operator.observe.agents import Target
from shardwise_operator.observe.observe import RECENT_SECONDS, Observer, child_kinds
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.pod import trimmed
from shardwise_operator.observe.poll import Poller
from shardwise_operator.observe.state import Phase
from shardwise_operator.observe.workload import kept_of_workload
from shardwise_operator.reasons import INVALID
from shardwise_operator.render.names import OURS
from shardwise_operator.runtime.cache import Cache
from shardwise_operator.runtime.kinds import (
    ACCELERATOR_CATALOGS,
    ACCELERATOR_CLASSES,
    PODS,
    RESOURCE_FLAVORS,
    TRAINING_JOBS,
    WORKLOADS,
    Object,
)
from shardwise_operator.runtime.manager import Watch
from shardwise_operator.runtime.queue import Key
from shardwise_operator.runtime.recorder import Recorder
from shardwise_operator.runtime.transport import Api
from shardwise_operator.write.apply import Applier
from shardwise_operator.write.catalog import CATALOG_KEY, Catalog
from shardwise_operator.write.milestones import milestones
from shardwise_operator.write.spans import Traces
from shardwise_operator.write.status import compose
from shardwise_operator.write.status_writes import StatusWrites

_NOT_POLLED = (Phase.PENDING, Phase.SUSPENDED, Phase.COMPLETE, Phase.FAILED)
_RETRY_REFUSED_SECONDS = 15.0


@dataclass
class JobController:
    """The controller of TrainingJobs, from its parts, for the manager to run."""

    cache: Cache
    api: Api
    _: KW_ONLY
    settings: Settings
    observer: Observer
    applier: Applier
    poller: Poller
    recorder: Recorder
    catalog: Catalog
    traces: Traces = field(default_factory=Traces)

    def __post_init__(self) -> None:
        self._statuses = StatusWrites(self.cache, self.api, self._written)

    @property
    def watches(self) -> Sequence[Watch]:
        """The jobs, the classes and the objects of jobs; the nodes of the classes follow once a class is known."""
        return [
            Watch(kind=TRAINING_JOBS, keys=lambda job: [_key(job)]),
            Watch(kind=ACCELERATOR_CLASSES, keys=self._jobs_of_class),
            Watch(kind=ACCELERATOR_CATALOGS, keys=lambda _: [CATALOG_KEY]),
            Watch(kind=PODS, keys=_job_of, labels=OURS, keep=trimmed),
            *(Watch(kind=kind, keys=_job_of, labels=OURS, metadata_alone=True) for kind in child_kinds(self.settings)),
            *(self._queue_watches() if self.settings.kueue else ()),
        ]

    def reconcile(self, key: Key) -> float | None:
        """Bring one job nearer to its spec. Return in how many seconds it needs another pass, None for never."""
        if key == CATALOG_KEY:
            return self.catalog.reconcile()
        job = self._statuses.newest(key)
        if job is None or not self._looks_after(job):
            for part in (self.poller, self._statuses, self.applier, self.observer, self.traces):
                part.forget(key)
            return None
        self._tell_what_is_written(key)
        now = time.time()
        seen = self.observer.observe(job, self.poller.published(key, job["metadata"]["uid"]), now)
        plan = decide(seen, self.settings, now)
        outcome = self.applier.apply(seen, plan)
        if outcome.made:
            self.observer.remember(seen, outcome.made)
        status = compose(seen, plan, outcome, job.get("status", {}), now)
        self._follow(key, seen, plan)
        requeue_after_seconds = _RETRY_REFUSED_SECONDS if outcome.reason else plan.requeue_after_seconds
        # What was just created counts as there before the cache shows it, and may be deleted before it ever does.
        if self.observer.remembers(seen.uid):
            requeue_after_seconds = soonest([requeue_after_seconds or None, RECENT_SECONDS])
        # Events come after the status that they belong to: if that cannot be written, the pass raises and is repeated.
        events = (*plan.events, *outcome.events)
        due_seconds = self._statuses.keep(key, job, status, at_once=bool(events))
        self._record(job, events)
        return soonest([requeue_after_seconds, due_seconds or None])

    def jobs(self) -> list[Object]:
        """Return all jobs that the operator looks after, as the cache has them."""
        return [job for job in self.cache.list(TRAINING_JOBS) if self._looks_after(job)]

    def _queue_watches(self) -> Iterator[Watch]:
        """Yield watches of Workloads and flavors; a flavor triggers no pass: it exists before it is assigned."""
        yield Watch(kind=WORKLOADS, keys=_job_of, labels=OURS, keep=kept_of_workload)
        yield Watch(kind=RESOURCE_FLAVORS, keys=lambda _: [])

    def _looks_after(self, job: Object) -> bool:
        return str(job["spec"].get("managedBy", "")) == self.settings.managed_by

    def _tell_what_is_written(self, key: Key) -> None:
        """Send the spans of what another operator has written, or this one without having heard of it."""
        if cached := self.cache.get(TRAINING_JOBS, *key):
            self.traces.tell(key, cached, cached.get("status", {}))

    def _written(self, job: Object, before: Object, after: Object) -> None:
        self._record(job, milestones(before, after))
        self.traces.tell(_key(job), job, after)

    def _record(self, job: Object, events: Iterable[Event]) -> None:
        for event in events:
            self.recorder.record(job, event.type, event.reason, event.message)

    def _follow(self, key: Key, seen: Observed, plan: Plan) -> None:
        """Have host 0 polled as long as it may answer.

        The status waits for host 0's first answer, so that both go into one write.
        """
        leader = seen.leader
        if plan.state.phase in _NOT_POLLED or leader is None or leader.address is None:
            self.poller.forget(key)
            return
        if seen.poll is None:
            self._statuses.wait(key)
        tokens = self.settings.tokens.statuses(seen.uid)
        self.poller.follow(key, seen.uid, Target(pod=leader.uid, address=leader.address, tokens=tokens))

    def _jobs_of_class(self, accelerator: Object) -> Iterator[Key]:
        """Yield the keys of the catalogue and of the jobs that the class may have kept from starting."""
        yield CATALOG_KEY
        for job in self.cache.list(TRAINING_JOBS):
            named = job["spec"]["hardware"]["accelerator"] == accelerator["metadata"]["name"]
            if named and job.get("status", {}).get("reason") == INVALID:
                yield _key(job)


def _key(job: Object) -> Key:
    return job["metadata"]["namespace"], job["metadata"]["name"]


def _job_of(made: Object) -> Iterator[Key]:
    labels = made["metadata"].get("labels", {})
    if JOB_LABEL in labels:
        yield made["metadata"]["namespace"], labels[JOB_LABEL]
