"""One leader at a time, by a Lease object.

The leader renews the Lease every few seconds. A follower takes it if it was not renewed for its whole duration, by the
follower's own clock since it last saw a change, so clocks need not agree. The leader counts from before it sent the
renewal that succeeded, and stops earlier than a follower may start: `leads` turns false at that moment by itself, even
in a process that was stopped meanwhile, and the transport refuses writes by it. Then the process ends.
"""

import logging
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from shardwise_operator.runtime.errors import ConflictError, KubernetesError, NotFoundError
from shardwise_operator.runtime.kinds import LEASES, Object
from shardwise_operator.runtime.transport import Api

_log = logging.getLogger(__name__)

EXIT_LEASE_LOST = 1


@dataclass(frozen=True, kw_only=True)
class Timing:
    """When, in seconds.

    Attributes:
        lease: a follower may take a Lease that was not renewed for this long.
        renew: the leader stops leading when it could not renew for this long; well under `lease`.
        retry: between two renewals, and between a follower's looks.
    """

    lease: float = 15.0
    renew: float = 10.0
    retry: float = 2.0


def since_boot_seconds() -> float:
    """Return the time of a clock that is never set, and that counts on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def end_process(reason: str) -> None:
    """End the process at once, whatever the workers are doing: another one may lead by now."""
    _log.critical("ending: %s", reason)
    logging.shutdown()
    os._exit(EXIT_LEASE_LOST)


class Elector:
    """This process's part in the election."""

    def __init__(
        self,
        api: Api,
        *,
        namespace: str,
        name: str,
        identity: str,
        lost: Callable[[str], None] = end_process,
        timing: Timing = Timing(),
        clock: Callable[[], float] = since_boot_seconds,
    ) -> None:
        """Take the name of the Lease, and an `identity` for this process that no other ever has.

        `api` should be the elector's own: a busy limiter must not cost the Lease, and its time limit must be short.
        `lost` is called, in the renewing thread, when this process no longer leads.
        """
        self._api = api
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._lost = lost
        self._timing = timing
        self._clock = clock
        self._lease: Object = {}
        self._seen: tuple[str, str] = ("", "")
        self._seen_at = 0.0
        self._until = float("-inf")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def leads(self) -> bool:
        """Return whether this process certainly leads at this moment."""
        return self._clock() < self._until

    def acquire(self, stop: threading.Event) -> bool:
        """Wait until this process leads, then renew the Lease in a thread; return False if `stop` came first."""
        while not stop.is_set():
            try:
                if self._take():
                    _log.info("leading as %s", self._identity)
                    self._thread.start()
                    return True
            except KubernetesError as error:
                _log.warning("lease %s/%s: trying again: %s", self._namespace, self._name, error)
            stop.wait(self._pause_seconds())
        return False

    def release(self) -> None:
        """Stop leading, and let the next leader start at once. Call it once no worker writes any more."""
        self._ended.set()
        self._thread.join()
        if not self.leads():
            return
        self._until = float("-inf")
        try:
            self._api.replace(LEASES, self._written("", self._lease, 1))
            _log.info("released the lease")
        except KubernetesError as error:
            _log.warning("the lease was not released, the next leader waits for its end: %s", error)

    def _take(self) -> bool:
        # Taken before the request: the server may have renewed the Lease long before its answer is here.
        began = self._clock()
        try:
            lease = self._api.get(LEASES, self._namespace, self._name)
        except NotFoundError:
            named = {"metadata": {"namespace": self._namespace, "name": self._name}}
            self._holds(self._api.create(LEASES, self._written(self._identity, named)), began)
            return True
        if not self._free(lease):
            return False
        self._holds(self._api.replace(LEASES, self._written(self._identity, lease)), began)
        return True

    def _free(self, lease: Object) -> bool:
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder in ("", self._identity):  # our own: the answer to our write was lost
            return True
        seen = (lease["metadata"]["uid"], lease["metadata"]["resourceVersion"])
        # By our own clock since the last change that we saw: `renewTime` is by the leader's clock, which may differ.
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._clock()
            _log.info("following %s", holder)
        return self._clock() - self._seen_at > max(self._timing.lease, spec.get("leaseDurationSeconds") or 0)

    def _keep(self) -> None:
        while not self._ended.wait(self._pause_seconds()):
            reason = self._renew()
            if not reason and not self.leads():
                reason = f"the lease could not be renewed for {self._timing.renew:g} s"
            if reason:
                # Before `lost`, which may take a moment: from here on the transport refuses every write.
                self._until = float("-inf")
                self._lost(reason)
                return

    def _renew(self) -> str:
        """Renew the Lease; return why it is lost, or "" if it is not, or not yet."""
        began = self._clock()
        try:
            self._holds(self._api.replace(LEASES, self._written(self._identity, self._lease)), began)
        except (ConflictError, NotFoundError):
            return self._contested()
        except KubernetesError as error:
            _log.warning("the lease was not renewed: %s", error)
        return ""

    def _contested(self) -> str:
        """Find out who has changed the Lease: another process, or a renewal of ours whose answer was lost."""
        try:
            lease = self._api.get(LEASES, self._namespace, self._name)
        except NotFoundError:
            return "the lease was deleted"
        except KubernetesError as error:
            _log.warning("the lease could not be read: %s", error)
            return ""
        holder = (lease.get("spec") or {}).get("holderIdentity")
        if holder != self._identity:
            return f"the lease is held by {holder or 'nobody'}"
        # Our own renewal. When it was carried out is not known, so the time that we lead does not grow by it.
        self._lease = lease
        return ""

    def _holds(self, lease: Object, began: float) -> None:
        self._lease = lease
        self._until = began + self._timing.renew

    def _written(self, holder: str, lease: Object, duration_seconds: int | None = None) -> Object:
        """Return the Lease as it is to be written for `holder`, who is empty to release it."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = lease.get("spec") or {}
        spec = before | {
            "holderIdentity": holder,
            "leaseDurationSeconds": duration_seconds or max(1, round(self._timing.lease)),
            "renewTime": now,
        }
        if holder and holder != before.get("holderIdentity"):
            spec["acquireTime"] = now
            spec["leaseTransitions"] = before.get("leaseTransitions", -1) + 1
        return LEASES.manifest(lease["metadata"], spec=spec)

    def _pause_seconds(self) -> float:
        return self._timing.retry * random.uniform(0.8, 1.2)  # noqa: S311  spreads load, guards nothing
