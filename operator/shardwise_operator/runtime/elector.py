"""One leader at a time, by a Lease object.

The leader renews the Lease every few seconds. A follower takes it if it was not renewed for its whole duration, by the
follower's own clock since it last saw a change, so clocks need not agree. The leader counts from before it sent the
renewal that succeeded, and stops earlier than a follower may start: `leads` turns false at that moment by itself, even
in a process that was stopped meanwhile, and the transport refuses writes by it. Then the process ends.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime

from shardwise_operator.runtime.errors import ConflictError, KubernetesError, NotFoundError
from shardwise_operator.runtime.kinds import LEASES, Object
from shardwise_operator.runtime.pace import spread
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


@dataclass
class Elector:
    """This process's part in the election.

    Attributes:
        api: the elector's own: a busy limiter must not cost the Lease, and its time limit must be short.
        namespace: that of the Lease.
        name: that of the Lease.
        identity: a name for this process that no other ever has.
        lost: is called, in the renewing thread, when this process no longer leads.
        timing: when to renew, and when to take over.
        clock: see `since_boot_seconds`.

    """

    api: Api
    _: KW_ONLY
    namespace: str
    name: str
    identity: str
    lost: Callable[[str], None] = end_process
    timing: Timing = Timing()
    clock: Callable[[], float] = since_boot_seconds

    def __post_init__(self) -> None:
        self._lease: Object = {}
        self._seen: tuple[str, str] = ("", "")
        self._seen_at = 0.0
        self._followed = ""
        self._until = float("-inf")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def leads(self) -> bool:
        """Return whether this process certainly leads at this moment."""
        return self.clock() < self._until

    def acquire(self, stop: threading.Event) -> bool:
        """Wait until this process leads, then renew the Lease in a thread; return False if `stop` came first."""
        while not stop.is_set():
            try:
                if self._take():
                    _log.info("leading as %s", self.identity)
                    self._thread.start()
                    return True
            except KubernetesError as error:
                _log.warning("lease %s/%s: trying again: %s", self.namespace, self.name, error)
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
            self.api.replace(LEASES, self._written("", self._lease, 1))
            _log.info("released the lease")
        except KubernetesError as error:
            _log.warning("the lease was not released, the next leader waits for its end: %s", error)

    def _take(self) -> bool:
        # Taken before the request: the server may have renewed the Lease long before its answer is here.
        began = self.clock()
        try:
            lease = self.api.get(LEASES, self.namespace, self.name)
        except NotFoundError:
            named = {"metadata": {"namespace": self.namespace, "name": self.name}}
            return self._holds(self.api.create(LEASES, self._written(self.identity, named)), began)
        if not self._free(lease):
            return False
        return self._holds(self.api.replace(LEASES, self._written(self.identity, lease)), began)

    def _free(self, lease: Object) -> bool:
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder in ("", self.identity):  # our own: the answer to our write was lost
            return True
        seen = (lease["metadata"]["uid"], lease["metadata"]["resourceVersion"])
        # By our own clock since the last change that we saw: `renewTime` is by the leader's clock, which may differ.
        if seen != self._seen:
            self._seen, self._seen_at = seen, self.clock()
        if holder != self._followed:
            self._followed = holder
            _log.info("following %s", holder)
        return self.clock() - self._seen_at > max(self.timing.lease, spec.get("leaseDurationSeconds") or 0)

    def _keep(self) -> None:
        try:
            reason = self._kept()
        except Exception as error:  # noqa: BLE001  no other thread renews: the process may not stay as a leader
            _log.exception("the lease is renewed no more")
            reason = f"the lease is renewed no more: {error!r}"
        if reason:
            # Before `lost`, which may take a moment: from here on the transport refuses every write.
            self._until = float("-inf")
            self.lost(reason)

    def _kept(self) -> str:
        """Renew the Lease until it is released, which returns "", or lost, which returns why."""
        while not self._ended.wait(self._pause_seconds()):
            if reason := self._renew():
                return reason
            if not self.leads():
                return f"the lease could not be renewed for {self.timing.renew:g} s"
        return ""

    def _renew(self) -> str:
        """Renew the Lease; return why it is lost, or "" if it is not, or not yet."""
        began = self.clock()
        try:
            answer = self.api.replace(LEASES, self._written(self.identity, self._lease))
        except (ConflictError, NotFoundError):
            return self._contested()
        except KubernetesError as error:
            _log.warning("the lease was not renewed: %s", error)
            return ""
        self._holds(answer, began)
        return ""

    def _contested(self) -> str:
        """Find out who has changed the Lease: another process, or a renewal of ours whose answer was lost."""
        try:
            lease = self.api.get(LEASES, self.namespace, self.name)
        except NotFoundError:
            return "the lease was deleted"
        except KubernetesError as error:
            _log.warning("the lease could not be read: %s", error)
            return ""
        holder = (lease.get("spec") or {}).get("holderIdentity")
        if holder != self.identity:
            return f"the lease is held by {holder or 'nobody'}"
        # Our own renewal. When it was carried out is not known, so the time that we lead does not grow by it.
        self._lease = lease
        return ""

    def _holds(self, answer: Object, began: float) -> bool:
        """Take the answer to a write, and return whether it is our Lease: a proxy between may answer as well."""
        about = answer.get("metadata")
        place = (about.get("namespace"), about.get("name")) if isinstance(about, dict) else None
        if place != (self.namespace, self.name):  # whether it was written the next renewal shows
            _log.warning("the lease was not renewed: the answer is no Lease")
            return False
        self._lease = answer
        self._until = began + self.timing.renew
        return True

    def _written(self, holder: str, lease: Object, duration_seconds: int | None = None) -> Object:
        """Return the Lease as it is to be written for `holder`, who is empty to release it."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = lease.get("spec") or {}
        spec = before | {
            "holderIdentity": holder,
            "leaseDurationSeconds": duration_seconds or max(1, round(self.timing.lease)),
            "renewTime": now,
        }
        if holder and holder != before.get("holderIdentity"):
            spec["acquireTime"] = now
            spec["leaseTransitions"] = before.get("leaseTransitions", -1) + 1
        return LEASES.manifest(lease["metadata"], spec=spec)

    def _pause_seconds(self) -> float:
        return self.timing.retry * spread(0.8, 1.2)
