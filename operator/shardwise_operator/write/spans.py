"""The life of a job as a trace: one span of the whole job, and a part of it for each phase.

They follow from a status that was written and what was told before, as the events of `milestones.py` do. Their
identifiers follow from the job's UID alone, so a span that two operators send, one after the other, is the same span.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from uuid import UUID

from shardwise_operator.observe.state import FINISHED, Phase
from shardwise_operator.runtime.kinds import Object, seconds_of
from shardwise_operator.runtime.queue import Key
from shardwise_operator.runtime.tracing import Span

ROOT = "TrainingJob"
# What ended so short a time before this process first saw the job may not be sent yet: the operator before this one may
# have been killed between its write and the sending.
_AGAIN_SECONDS = 600.0
_MOST_LETTERS = 1024  # of a failure's message, which has the end of a log in it

_Attributes = dict[str, str | int | float]


def to_nobody(_spans: Iterable[Span]) -> None:
    """Take spans that nobody has asked for."""


@dataclass
class Traces:
    """Sends the spans of every job, each once in the life of this process.

    Attributes:
        send: takes spans, and waits for nothing.
        clock: in seconds since the epoch.

    """

    send: Callable[[Iterable[Span]], None] = to_nobody
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._told: dict[Key, tuple[str, int]] = {}  # the job's UID, and how many of its phases were over

    def tell(self, key: Key, job: Object, status: Mapping[str, Any]) -> None:
        """Send what has ended of a job, given a status of it that is written."""
        uid, count = job["metadata"]["uid"], ended_count(status)
        known_uid, known = self._told.get(key, ("", 0))
        if known_uid != uid:
            recent = self.clock() - _AGAIN_SECONDS
            self.send(span for span in ended(job, {}, status) if span.end >= recent)
        elif count > known:
            self.send(_ended(job, known, status))
        else:
            return
        self._told[key] = (uid, count)

    def forget(self, key: Key) -> None:
        """Drop what is kept of a job that is gone, or is not this operator's."""
        self._told.pop(key, None)


def ended(job: Object, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Span]:
    """Yield the spans that have ended between two statuses of a job, in the order of their ends."""
    return _ended(job, ended_count(before), after)


def ended_count(status: Mapping[str, Any]) -> int:
    """Return how many phases of the job are over; Complete and Failed are so at once."""
    records = status.get("phases")
    if not records:
        return 0
    last = records[-1]
    return int(last["number"]) + (last["name"] in FINISHED)


def trace_id(uid: str) -> int:
    """Return the trace of a job: its UID as a number, so that whoever knows one finds the other."""
    return UUID(uid).int


def _ended(job: Object, known: int, status: Mapping[str, Any]) -> Iterator[Span]:
    """Yield the spans of the phases from number `known` on that are over."""
    for record in status.get("phases", ()):
        if record["number"] < known:
            continue
        if record["name"] in FINISHED:
            yield _whole(job, status, record)
        elif "end" in record:
            yield _part(job, status, record)


def _whole(job: Object, status: Mapping[str, Any], last: Mapping[str, Any]) -> Span:
    """Return the span of a job that is over: from its creation to the moment of the record `last`."""
    uid, failed = job["metadata"]["uid"], last["name"] == Phase.FAILED
    message = status.get("message") or status.get("reason") or "failed"
    end = seconds_of(last["start"])
    return Span(
        trace_id=trace_id(uid),
        span_id=_span_id(uid, ROOT),
        parent_id=None,
        name=ROOT,
        start=min(end, seconds_of(job["metadata"]["creationTimestamp"])),
        end=end,
        attributes={**_common(job, status), **_outcome(status, last)},
        error=message[:_MOST_LETTERS] if failed else None,
    )


def _part(job: Object, status: Mapping[str, Any], record: Mapping[str, Any]) -> Span:
    uid = job["metadata"]["uid"]
    known: Mapping[str, str | int | None] = {
        "shardwise.job.phase.name": record["name"],
        "shardwise.job.phase.number": record["number"],
        "shardwise.job.restart.cause": record.get("cause"),
        "shardwise.job.progress.step": record.get("step"),
    }
    return Span(
        trace_id=trace_id(uid),
        span_id=_span_id(uid, str(record["number"])),
        parent_id=_span_id(uid, ROOT),
        name=record["name"],
        start=seconds_of(record["start"]),
        end=seconds_of(record["end"]),
        attributes={**_common(job, status), **_without_none(known)},
    )


def _common(job: Object, status: Mapping[str, Any]) -> _Attributes:
    """Return what every span of a job has."""
    metadata, hardware = job["metadata"], job["spec"]["hardware"]
    return {
        "k8s.namespace.name": metadata["namespace"],
        "shardwise.job.name": metadata["name"],
        "shardwise.job.uid": metadata["uid"],
        "shardwise.job.hardware.accelerator": hardware["accelerator"],
        "shardwise.job.hardware.topology": hardware["topology"],
        "shardwise.job.hardware.slices": hardware.get("slices", 1),
        "shardwise.job.hardware.hosts": status.get("hosts", {}).get("of", 0),
    }


def _outcome(status: Mapping[str, Any], last: Mapping[str, Any]) -> _Attributes:
    """Return what is known of a job that is over."""
    reason, progress = status.get("reason"), status.get("progress", {})
    goodput = status.get("goodput", "").removesuffix("%")
    known: Mapping[str, str | int | float | None] = {
        "shardwise.job.phase.name": last["name"],
        "shardwise.job.reason": reason,
        "shardwise.job.restart.count": status.get("restartCount"),
        "shardwise.job.progress.step": progress.get("step"),
        "shardwise.job.progress.steps": progress.get("of"),
        "shardwise.job.checkpoint.step": status.get("checkpoint", {}).get("step"),
        "shardwise.job.goodput.ratio": int(goodput) / 100 if goodput.isdecimal() else None,
        "error.type": reason if last["name"] == Phase.FAILED else None,
    }
    return _without_none(known)


def _without_none(known: Mapping[str, str | int | float | None]) -> _Attributes:
    return {name: value for name, value in known.items() if value is not None}


def _span_id(uid: str, of: str) -> int:
    """Return a number of 64 bits that is not 0, which would be no identifier."""
    return int.from_bytes(sha256(f"{uid}/{of}".encode()).digest()[:8], "big") or 1
