"""Which status of a job is its newest, and when one is written: pods come up in bursts, and each write costs everyone.

Called by `controller.py`. The newest may not be in the cache yet, and not even written: one that only adds what can be
found again waits for more of its kind, and the passes meanwhile go on from it. It is lost with this process alone.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from shardwise_operator.poll import Key
from shardwise_operator.runtime.kinds import TRAINING_JOBS, Kind, Object
from shardwise_operator.state import Phase
from shardwise_operator.views import Caches

# What of a status is for its readers alone, or can be found again; all else is decided by, and written at once.
_CAN_WAIT = (
    *("phase", "reason", "message", "conditions", "hosts", "observedGeneration"),
    *("progress", "checkpoint", "goodput", "image", "pods", "runTime"),
)
_CALM_SECONDS = 2.0
# Of many jobs that start together each says more rarely how its pods come up, and that they are up, which soon is told
# by that they train; any other phase is said as soon as ever.
_MOST_DETAILS_PER_SECOND = 20.0

_log = logging.getLogger(__name__)


class Writer(Protocol):
    """What is asked of the API server."""

    def replace_status(self, kind: Kind, obj: Object) -> Object:
        """Write a status; ConflictError where the object has another version."""


@dataclass(frozen=True)
class _Held:
    """A status that waits, and the one that the API server has meanwhile."""

    uid: str
    told: Object
    status: Object


class StatusWrites:
    """The statuses of all jobs, as far as this process is ahead of its cache."""

    def __init__(
        self,
        cache: Caches,
        api: Writer,
        written: Callable[[Object, Object, Object], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is written yet; of each write `written` is told the job, its status before and the one since."""
        self._cache, self._api, self._tell, self._clock = cache, api, written, clock
        self._written: dict[Key, Object] = {}
        self._held: dict[Key, _Held] = {}
        self._calm_since: dict[Key, float] = {}

    def newest(self, key: Key) -> Object | None:
        """The job with its newest status; None where it is gone."""
        job, held = self._newest_written(key), self._held.get(key)
        if job is None or held is None:
            return job
        if held.uid == job["metadata"]["uid"] and held.told == job.get("status", {}):
            return {**job, "status": held.status}
        del self._held[key]
        return job

    def keep(self, key: Key, job: Object, status: Object, *, at_once: bool) -> float:
        """Have the job, as `newest` gave it, say this from now on, and write it when it is due.

        Returns:
            In how many seconds it is due; 0.0 where it is written.

        Raises:
            KubernetesError: it cannot be written.

        """
        held = self._held.get(key)
        told = held.told if held else job.get("status", {})
        seconds = 0.0 if at_once or status == told else self._calm_seconds(key, told, status)
        if seconds > 0.0:
            self._held[key] = _Held(job["metadata"]["uid"], told, status)
            return seconds
        if status != told:
            self._write(key, job, told, status)
        self._held.pop(key, None)
        return 0.0

    def wait(self, key: Key) -> None:
        """There will be more to say in a moment."""
        self._calm_since[key] = self._clock()

    def forget(self, key: Key) -> None:
        """The job is gone, or another's."""
        for known in (self._written, self._held, self._calm_since):
            known.pop(key, None)

    def _newest_written(self, key: Key) -> Object | None:
        cached, written = self._cache.get(TRAINING_JOBS, *key), self._written.get(key)
        if cached is None or written is None or _version(cached) >= _version(written):
            self._written.pop(key, None)
            return cached
        return written if written["metadata"]["uid"] == cached["metadata"]["uid"] else cached

    def _calm_seconds(self, key: Key, told: Object, status: Object) -> float:
        """How long a status can wait for more of its kind."""
        changed = {field for field in told.keys() | status.keys() if told.get(field) != status.get(field)}
        if not changed <= set(_CAN_WAIT) or ("phase" in changed and _all_run(status)):
            return 0.0
        calm = _CALM_SECONDS
        if "phase" not in changed or status.get("phase") == Phase.STARTING:
            calm = max(calm, len(self._held) / _MOST_DETAILS_PER_SECOND)
        return self._calm_since.get(key, float("-inf")) + calm - self._clock()

    def _write(self, key: Key, job: Object, told: Object, status: Object) -> None:
        self._written[key] = self._api.replace_status(TRAINING_JOBS, {**job, "status": status})
        self.wait(key)
        self._tell(job, told, status)
        if (status.get("phase"), status.get("reason")) != (told.get("phase"), told.get("reason")):
            _log.info("%s/%s: %s: %s", *key, status.get("phase"), status.get("reason"))


def _all_run(status: Object) -> bool:
    """Whether there is nothing more to wait for."""
    hosts = status.get("hosts", {})
    return status.get("phase") == Phase.RUNNING and hosts.get("ready") == hosts.get("of")


def _version(job: Object) -> int:
    """Kubernetes promises that the versions of one kind are numbers that grow."""
    return int(job["metadata"]["resourceVersion"])
