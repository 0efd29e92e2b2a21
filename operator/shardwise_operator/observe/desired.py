"""A job as its spec asks for it now, with its class: what a next round is made of, and what slices it may have."""

from collections.abc import Mapping
from typing import Any

from shardwise.job.fewer_slices import on_slices, slice_counts
from shardwise.protocol.errors import JobError
from shardwise_operator.config import Settings
from shardwise_operator.observe.caches import Caches
from shardwise_operator.observe.queueing import Queues
from shardwise_operator.observe.results import Results
from shardwise_operator.observe.snapshot import Snapshot, take_snapshot
from shardwise_operator.runtime.kinds import ACCELERATOR_CLASSES, Object
from shardwise_operator.runtime.queue import Key


class DesiredJobs:
    """Makes snapshots of jobs, and keeps each as long as it would come out the same again."""

    def __init__(self, caches: Caches, queues: Queues, settings: Settings) -> None:
        """Read the classes from `caches`; ask `queues` whether somebody would admit a job that names one."""
        self._caches, self._queues, self._settings = caches, queues, settings
        self._whole, self._fewer = Results[Snapshot | str](), Results[Snapshot | str]()
        self._counts = Results[tuple[int, ...]]()

    def take(self, job: Object, slices: int | None) -> Snapshot | str:
        """Return the job with its class, on so many slices or all, or why the two do not go together."""
        whole = self._whole.get_or_make(_key(job), self._known(job), lambda: self._made(job))
        if slices is None or isinstance(whole, str):
            return whole
        fewer = {**job, "spec": on_slices(job["spec"], whole.job, slices)}
        return self._fewer.get_or_make(_key(job), (self._known(job), slices), lambda: self._made(fewer))

    def slice_counts(self, job: Object) -> tuple[int, ...]:
        """Return the numbers of slices that the job can run on, all of them first; none if it does not go together."""
        if "minSlices" in job["spec"].get("recovery", {}) or "slices" in job.get("status", {}):
            whole = self.take(job, None)
            if isinstance(whole, str):
                return ()
            return self._counts.get_or_make(_key(job), self._known(job), lambda: slice_counts(whole.job))
        return (job["spec"]["hardware"].get("slices", 1),)

    def forget(self, key: Key) -> None:
        """Drop what is kept of a job."""
        self._whole.forget(key)
        self._fewer.forget(key)
        self._counts.forget(key)

    def _known(self, job: Object) -> tuple[Any, ...]:
        """Return what a snapshot depends on."""
        classes = self._classes()
        machine = classes.get(job["spec"]["hardware"]["accelerator"])
        version = machine["metadata"]["resourceVersion"] if machine else tuple(sorted(classes))
        metadata = job["metadata"]
        # A label changes without a new generation of the spec.
        labels = tuple(sorted(metadata.get("labels", {}).items()))
        return metadata["uid"], metadata.get("generation"), labels, version

    def _made(self, job: Object) -> Snapshot | str:
        settings = self._settings
        try:
            self._queues.check(job)
            return take_snapshot(job, self._classes(), image=settings.trainer_image, pod_defaults=settings.pod_defaults)
        except JobError as error:
            return str(error)

    def _classes(self) -> Mapping[str, Object]:
        return {each["metadata"]["name"]: each for each in self._caches.list(ACCELERATOR_CLASSES)}


def _key(job: Object) -> Key:
    return job["metadata"]["namespace"], job["metadata"]["name"]
