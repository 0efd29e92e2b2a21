"""Read the jobs, as the cache has them, into a `JobsDocument`: nothing is asked of anybody.

A status is written by the operator alone, but maybe by one of another release: what cannot be read is not known.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from shardwise.protocol import eta
from shardwise.protocol.text import writable
from shardwise_operator import reasons
from shardwise_operator.observe.hosts import LEADER
from shardwise_operator.observe.state import FINISHED, Phase
from shardwise_operator.observe.workload import QUEUE_LABEL
from shardwise_operator.page.jobs_document import JobRow, JobsDocument
from shardwise_operator.render.names import pod_name
from shardwise_operator.runtime.kinds import Object, field_of, seconds_of

MOST_JOBS = 2000
_MOST_TEXT = 500  # of a message; `kubectl describe` has the rest
_AT_REST = (*FINISHED, Phase.SUSPENDED)


def read_jobs(jobs: Iterable[Object], *, namespace: str, now: float) -> JobsDocument:
    """Return the document of these jobs; of too many the newest, and those that are not at rest before others."""
    rows = sorted((_row(job) for job in jobs), key=lambda row: (row.phase in _AT_REST, -row.created))
    kept = sorted(rows[:MOST_JOBS], key=lambda row: (row.namespace, row.name))
    return JobsDocument(made_at=now, namespace=namespace, jobs=kept, left_out=len(rows) - len(kept))


@dataclass(frozen=True)
class _Fields:
    """An object of JSON, whose fields are read by path: None where there is none of this type."""

    content: Any

    def number(self, *path: str) -> int | None:
        value = field_of(self.content, *path)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def text(self, *path: str) -> str:
        value = field_of(self.content, *path)
        return writable(value[:_MOST_TEXT]) if isinstance(value, str) else ""

    def time(self, *path: str) -> float | None:
        try:
            return seconds_of(self.text(*path))
        except (ValueError, OverflowError):
            return None

    def figure(self, *path: str) -> float | None:
        """Return a finite number that is written as text, maybe in percent."""
        written = self.text(*path)
        try:
            value = float(written.removesuffix("%")) / (100 if written.endswith("%") else 1)
        except ValueError:
            return None
        return value if abs(value) < float("inf") else None

    def counts(self, *path: str) -> dict[str, int]:
        value = field_of(self.content, *path)
        named = {writable(str(name)): name for name in value} if isinstance(value, dict) else {}
        return {written: count for written, name in named.items() if (count := self.number(*path, name))}

    def condition(self, kind: str) -> "_Fields":
        """Return the condition of this type in the status of a job; one without fields if there is none."""
        found = field_of(self.content, "status", "conditions")
        conditions = found if isinstance(found, list) else []
        return _Fields(next((each for each in conditions if field_of(each, "type") == kind), None))


def _row(job: Object) -> JobRow:
    read, status = _Fields(job), _Fields(job.get("status"))
    phase = status.text("phase") or str(Phase.PENDING)
    steps = phase == Phase.RUNNING  # at other times the figures of its pace are old ones
    return JobRow(
        namespace=job["metadata"]["namespace"],
        name=job["metadata"]["name"],
        created=read.time("metadata", "creationTimestamp") or 0.0,
        phase=phase,
        reason=status.text("reason"),
        message=status.text("message"),
        since=_since(read, status, phase),
        accelerator=read.text("spec", "hardware", "accelerator"),
        topology=read.text("spec", "hardware", "topology"),
        slices=read.number("spec", "hardware", "slices") or 1,
        queue=_queue(read),
        notice=_notice(read),
        step=status.number("progress", "step"),
        num_steps=status.number("progress", "of"),
        loss=status.text("progress", "loss"),
        tokens_per_second=status.figure("progress", "tokensPerSecond") if steps else None,
        mfu=status.figure("progress", "mfu") if steps else None,
        eta_seconds=eta.seconds_in(status.text("progress", "eta")) if steps else None,
        observed_at=status.time("progress", "observedAt"),
        slowest_host=status.text("progress", "slowestHost") if steps else "",
        checkpoint_step=status.number("checkpoint", "step"),
        checkpoint_at=status.time("checkpoint", "time"),
        restarts=status.counts("restarts"),
        goodput=status.figure("goodput"),
        hosts_ready=status.number("hosts", "ready") or 0,
        hosts=status.number("hosts", "of") or 0,
        pod="" if phase in _AT_REST else _first_pod(job, status),
        directory=read.text("spec", "pod", "directory"),
    )


def _since(read: _Fields, status: _Fields, phase: str) -> float | None:
    """Return when a job came into its phase; of the status of an older release, by what it has in place of phases."""
    phases = field_of(status.content, "phases")
    last = _Fields(phases[-1]) if isinstance(phases, list) and phases else _Fields(None)
    if last.text("name") == phase and (began := last.time("start")) is not None:
        return began
    if phase in FINISHED and (ended := status.time("completionTime")) is not None:
        return ended
    kind = reasons.SUSPENDED if phase == Phase.SUSPENDED else reasons.READY
    changed = read.condition(kind).time("lastTransitionTime")
    return read.time("metadata", "creationTimestamp") if changed is None else changed


def _queue(read: _Fields) -> str:
    own = read.text("metadata", "labels", QUEUE_LABEL)
    return own or read.text("spec", "pod", "template", "metadata", "labels", QUEUE_LABEL)


def _notice(read: _Fields) -> str:
    condition = read.condition(reasons.NOTICE_TOO_SHORT)
    return condition.text("message") if condition.text("status") == reasons.TRUE else ""


def _first_pod(job: Object, status: _Fields) -> str:
    """Return the name of host 0's pod, if there is one."""
    attempt = status.number("attempts", LEADER)
    there = attempt is not None and status.text("pods", LEADER)
    return pod_name(job["metadata"]["name"], LEADER, attempt) if there and attempt is not None else ""
