"""Know the newest status of each job, and when to write it: pods come up in bursts, and each write costs every watcher.

The newest status may not be in the cache yet, or not even be written: one that only adds what can be observed again
waits for more changes, and the passes meanwhile go on from it. If this process ends, no more is lost than that.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Protocol

from shardwise_operator.observe.caches import Caches
from shardwise_operator.observe.state import Phase
from shardwise_operator.runtime.kinds import TRAINING_JOBS, Kind, Object
from shardwise_operator.runtime.queue import Key

# Fields that are only for readers, or can be observed again. Decisions go by all other fields, so those are written at
# once: a loss must be charged in the API server before anything follows from the charge.
_CAN_WAIT = (
    *("phase", "phases", "reason", "message", "conditions", "hosts", "observedGeneration"),
    *("progress", "checkpoint", "failedSaves", "goodput", "image", "pods", "runTime"),
)
_CALM_SECONDS = 2.0
# If many jobs start together, each is written less often while its pods come up. Starting counts as such a detail:
# Running follows soon. Any other change of phase is never slowed down.
_MAX_DETAILS_PER_SECOND = 20.0

_log = logging.getLogger(__name__)


class Writer(Protocol):
    """The request to the API server."""

    def replace_status(self, kind: Kind, obj: Object) -> Object:
        """Write a status; ConflictError if the object has another version."""


@dataclass(frozen=True)
class _Held:
    """A status that waits to be written, and `stored`, which the API server has meanwhile."""

    uid: str
    stored: Object
    status: Object


@dataclass
class StatusWrites:
    """The statuses of all jobs for which this process is ahead of its cache.

    Attributes:
        cache: has the jobs.
        api: writes.
        on_written: is called after each write, with the job, the status before and the new one.
        clock: in seconds.

    """

    cache: Caches
    api: Writer
    on_written: Callable[[Object, Object, Object], None]
    _: KW_ONLY
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._written: dict[Key, Object] = {}
        self._held: dict[Key, _Held] = {}
        self._calm_since: dict[Key, float] = {}

    def newest(self, key: Key) -> Object | None:
        """Return the job with its newest status; None if it is gone."""
        job, held = self._newest_written(key), self._held.get(key)
        if job is None or held is None:
            return job
        if held.uid == job["metadata"]["uid"] and held.stored == job.get("status", {}):
            return {**job, "status": held.status}
        # Another job has the name by now, or someone else has written the status: what waits was decided on neither.
        del self._held[key]
        return job

    def keep(self, key: Key, job: Object, status: Object, *, at_once: bool) -> float:
        """Make this the newest status of the job, which is as `newest` returned it, and write it once it is due.

        Returns:
            In how many seconds it is due; 0.0 if it is written.

        Raises:
            KubernetesError: it cannot be written.

        """
        held = self._held.get(key)
        # While one is held, `job` has that one; what the API server has is the one before.
        stored = held.stored if held else job.get("status", {})
        seconds = 0.0 if at_once or status == stored else self._calm_seconds(key, stored, status)
        if seconds > 0.0:
            self._held[key] = _Held(job["metadata"]["uid"], stored, status)
            return seconds
        if status != stored:
            self._write(key, job, stored, status)
        self._held.pop(key, None)
        return 0.0

    def wait(self, key: Key) -> None:
        """Let the next status of the job wait, because more changes follow in a moment."""
        self._calm_since[key] = self.clock()

    def forget(self, key: Key) -> None:
        """Drop what is kept of a job that is gone, or is not this operator's."""
        for known in (self._written, self._held, self._calm_since):
            known.pop(key, None)

    def _newest_written(self, key: Key) -> Object | None:
        cached, written = self.cache.get(TRAINING_JOBS, *key), self._written.get(key)
        if cached is None or written is None or _version(cached) >= _version(written):
            self._written.pop(key, None)  # the cache has caught up with our write, or is past it
            return cached
        return written if written["metadata"]["uid"] == cached["metadata"]["uid"] else cached

    def _calm_seconds(self, key: Key, stored: Object, status: Object) -> float:
        """Return for how long a status can still wait for more changes."""
        changed = {field for field in stored.keys() | status.keys() if stored.get(field) != status.get(field)}
        if not changed <= set(_CAN_WAIT) or ("phase" in changed and _all_ready(status)):
            return 0.0
        calm = _CALM_SECONDS
        if "phase" not in changed or status.get("phase") == Phase.STARTING:
            calm = max(calm, len(self._held) / _MAX_DETAILS_PER_SECOND)
        return self._calm_since.get(key, float("-inf")) + calm - self.clock()

    def _write(self, key: Key, job: Object, stored: Object, status: Object) -> None:
        self._written[key] = self.api.replace_status(TRAINING_JOBS, {**job, "status": status})
        self.wait(key)
        self.on_written(job, stored, status)
        if (status.get("phase"), status.get("reason")) != (stored.get("phase"), stored.get("reason")):
            _log.info("%s/%s: %s: %s", *key, status.get("phase"), status.get("reason"))


def _all_ready(status: Object) -> bool:
    """Return whether every host is ready, so that there is nothing more to wait for."""
    hosts = status.get("hosts", {})
    return status.get("phase") == Phase.RUNNING and hosts.get("ready") == hosts.get("of")


def _version(job: Object) -> int:
    """Return the resourceVersion as a number: Kubernetes promises that those of one kind can be compared."""
    return int(job["metadata"]["resourceVersion"])
