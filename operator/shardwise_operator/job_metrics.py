"""The figures of all jobs for Prometheus: the last status of every host 0, by namespace and job.

A job that is gone, or has not answered lately, has no lines.
"""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shardwise.protocol.run_status import RunProgress, RunSummary
from shardwise_operator.runtime.queue import Key

_LABELS = ["namespace", "job"]
_PROGRESS: dict[str, tuple[str, Callable[[RunProgress], float | str | None]]] = {
    "step": ("The last completed step.", lambda run: run.step),
    "steps": ("The steps of the whole run.", lambda run: run.of),
    "loss": ("The loss of the last step.", lambda run: run.loss),
    "tokens_per_second": ("Tokens per second of the whole job.", lambda run: run.tokens_per_second),
    "mfu": ("The share of the devices' peak that the model's sums use.", lambda run: run.mfu),
}


class JobMetrics(Collector):
    """The collector."""

    def __init__(self, latest: Callable[[], Mapping[Key, RunSummary]]) -> None:
        """`latest` returns the last status of every job."""
        self._latest = latest

    def describe(self) -> Iterator[Metric]:
        """Claim no names before there are jobs."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Return the lines of now."""
        latest = self._latest()
        phase = GaugeMetricFamily("shardwise_job_phase", "1 for the run's phase.", labels=[*_LABELS, "phase"])
        restarts = CounterMetricFamily("shardwise_job_restarts", "Restarts by cause.", labels=[*_LABELS, "cause"])
        goodput = CounterMetricFamily(
            "shardwise_job_goodput_seconds", "The wall time by category.", labels=[*_LABELS, "category"]
        )
        for key, status in latest.items():
            phase.add_metric([*key, status.phase], 1)
            _add(restarts, key, status.restarts)
            _add(goodput, key, status.goodput)
        yield from (phase, restarts, goodput)
        for name, (description, figure) in _PROGRESS.items():
            family = GaugeMetricFamily(f"shardwise_job_{name}", description, labels=_LABELS)
            for key, status in latest.items():
                value = figure(status.progress)
                if isinstance(value, int | float):
                    family.add_metric(list(key), value)
            yield family


def _add(family: CounterMetricFamily, key: Key, values: Mapping[str, float]) -> None:
    for label, value in values.items():
        family.add_metric([*key, label], value)
