"""The figures of all jobs for Prometheus, by namespace and job: from their statuses, and the last answers of hosts 0.

Only the operator that leads has them, so that each job has each series once. A job that is deleted has none. Label
values come from closed sets, because a job's author controls what answers as host 0; any other value becomes "other".
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shardwise.protocol.contract import Cause
from shardwise.protocol.rising import Rising
from shardwise.protocol.run_status import GOODPUT_CATEGORIES, RunPhase, RunSummary, goodput_share
from shardwise_operator import reasons
from shardwise_operator.decide.policies.outcome import OUTCOMES
from shardwise_operator.observe.state import Phase
from shardwise_operator.runtime.kinds import Object, field_of, seconds_of

_LABELS = ["namespace", "job"]
_OTHER = "other"
_CAUSES = frozenset({*map(str, Cause), *map(str, reasons.Lost)})
_WORDS = frozenset(value for name, value in vars(reasons).items() if name.isupper() and isinstance(value, str))
_REASONS = _WORDS | {*OUTCOMES.values(), *(word[0].upper() + word[1:] for word in (*RunPhase, *_CAUSES))}


@dataclass(frozen=True)
class _Job:
    """One job as its figures are taken: the object, and the last answer of host 0 if it is fresh."""

    object: Object
    run: RunSummary | None

    @property
    def uid(self) -> str:
        """The UID; a job that is made anew under the name has another one."""
        return str(self.object["metadata"]["uid"])

    @property
    def labels(self) -> list[str]:
        return [self.object["metadata"]["namespace"], self.object["metadata"]["name"]]

    @property
    def status(self) -> Object:
        status: Object = self.object.get("status", {})
        return status

    @property
    def phase(self) -> str:
        """The phase; a job that nobody has looked at yet is pending."""
        return str(self.status.get("phase", Phase.PENDING))

    def at(self, *path: str) -> float | None:
        """Return a number or a time (in seconds since the epoch) of the object; None if it is not there."""
        value = field_of(self.object, *path)
        if isinstance(value, str):
            return seconds_of(value)
        return float(value) if isinstance(value, int) else None


def _of_status(*path: str) -> Callable[[_Job], float | None]:
    return lambda job: job.at("status", *path)


def _of_run(figure: Callable[[RunSummary], float | str | None]) -> Callable[[_Job], float | None]:
    """Return a reader of one figure of a run that answers.

    A loss that is not finite comes as text, and counts as missing.
    """

    def read(job: _Job) -> float | None:
        value = figure(job.run) if job.run else None
        return float(value) if isinstance(value, int | float) else None

    return read


def _step(job: _Job) -> float | None:
    """Return the last completed step: by host 0, else by the status, which may be some seconds behind."""
    known = job.run.progress.step if job.run else None
    return job.at("status", "progress", "step") if known is None else float(known)


def _goodput(job: _Job) -> float | None:
    """Return the share of steps that count; after the end, the whole percents of the status."""
    share = goodput_share(job.run.goodput) if job.run else None
    if share is not None:
        return share
    written = job.status.get("goodput", "")
    return float(written.removesuffix("%")) / 100 if written.removesuffix("%").isdecimal() else None


_GAUGES: Mapping[str, tuple[str, Callable[[_Job], float | None]]] = {
    "created_timestamp_seconds": ("When the job was created.", lambda job: job.at("metadata", "creationTimestamp")),
    "start_timestamp_seconds": ("When its round began.", _of_status("startTime")),
    "run_timestamp_seconds": ("When all pods of its round first ran.", _of_status("runTime")),
    "completion_timestamp_seconds": ("When it completed or failed.", _of_status("completionTime")),
    "hosts": ("The hosts that it asks for.", _of_status("hosts", "of")),
    "hosts_ready": ("The hosts whose trainer has joined.", _of_status("hosts", "ready")),
    "step": ("The last completed step.", _step),
    "steps": ("The steps of the whole run.", _of_status("progress", "of")),
    "checkpoint_step": ("The step of the newest checkpoint.", _of_status("checkpoint", "step")),
    "checkpoint_timestamp_seconds": ("When that was complete.", _of_status("checkpoint", "time")),
    "goodput_ratio": ("The share of the wall time that went into steps that count.", _goodput),
    "loss": ("The loss of the last step, while host 0 answers.", _of_run(lambda run: run.progress.loss)),
    "held_out_loss": (
        "The loss of the last evaluation on held-out documents, while host 0 answers.",
        _of_run(lambda run: run.progress.held_out_loss),
    ),
    "tokens_per_second": (
        "The tokens that all devices train on in a second, while host 0 answers.",
        _of_run(lambda run: run.progress.tokens_per_second),
    ),
    "mfu_ratio": (
        "The share of the devices' peak that the model's sums use, while host 0 answers.",
        _of_run(lambda run: run.progress.mfu),
    ),
}


@dataclass(eq=False)
class JobMetrics(Collector):
    """The collector.

    Attributes:
        jobs: returns all jobs that the operator looks after.
        latest: returns the last status of every host 0 that has answered lately, by its job's UID.
        leads: returns whether this process leads.

    """

    jobs: Callable[[], Iterable[Object]]
    latest: Callable[[], Mapping[str, RunSummary]]
    _: KW_ONLY
    leads: Callable[[], bool]
    _rising: dict[str, Rising] = field(default_factory=dict, init=False)

    def describe(self) -> Iterator[Metric]:
        """Claim no names before there are jobs."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Return the series of now."""
        latest = self.latest()
        objects = self.jobs() if self.leads() else ()
        jobs = [_Job(each, latest.get(each["metadata"]["uid"])) for each in objects]
        yield from _words(jobs)
        self._rising = {uid: self._rising.get(uid) or Rising() for uid in (job.uid for job in jobs)}
        yield from _counts(jobs, self._rising)
        for name, (description, figure) in _GAUGES.items():
            family = GaugeMetricFamily(f"shardwise_job_{name}", description, labels=_LABELS)
            for job in jobs:
                value = figure(job)
                if value is not None:
                    family.add_metric(job.labels, value)
            yield family


def _words(jobs: Iterable[_Job]) -> Iterator[Metric]:
    """Yield phases and reasons, each as the label of a series whose value is 1."""
    info = _gauge("info", "1, with what the job asks for.", "accelerator", "topology", "slices")
    phase = _gauge("phase", "1 for the job's phase.", "phase")
    reason = _gauge("reason", "1 for the reason of the job's phase.", "reason")
    conditions = _gauge("condition", "1 for what a condition of the job says.", "condition", "status")
    for job in jobs:
        hardware = job.object["spec"]["hardware"]
        asked = [hardware["accelerator"], hardware["topology"], str(hardware.get("slices", 1))]
        info.add_metric([*job.labels, *asked], 1)
        phase.add_metric([*job.labels, job.phase], 1)
        if word := job.status.get("reason"):
            reason.add_metric([*job.labels, word if word in _REASONS else _OTHER], 1)
        for condition in job.status.get("conditions", []):
            conditions.add_metric([*job.labels, condition["type"], condition["status"]], 1)
    yield from (info, phase, reason, conditions)


def _counts(jobs: Iterable[_Job], rising: Mapping[str, Rising]) -> Iterator[Metric]:
    """Return what only grows."""
    restarts = CounterMetricFamily("shardwise_job_restarts", "Restarts by cause.", labels=[*_LABELS, "cause"])
    goodput = CounterMetricFamily(
        "shardwise_job_goodput_seconds",
        "The wall time by category, while host 0 answers.",
        labels=[*_LABELS, "category"],
    )
    for job in jobs:
        for cause, count in _known(job.status.get("restarts", {}), _CAUSES).items():
            restarts.add_metric([*job.labels, cause], count)
        if job.run:
            known = rising[job.uid].after(_known(job.run.goodput, GOODPUT_CATEGORIES))
            for category, seconds in known.items():
                goodput.add_metric([*job.labels, category], seconds)
    yield from (restarts, goodput)


def _known(values: Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
    """Return the values with those of unknown names added up."""
    known = {name: value for name, value in values.items() if name in names}
    if rest := {name: value for name, value in values.items() if name not in names}:
        known[_OTHER] = known.get(_OTHER, 0.0) + sum(rest.values())
    return known


def _gauge(name: str, description: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"shardwise_job_{name}", description, labels=[*_LABELS, *labels])
