"""What the jobs say of themselves, for Prometheus: the last answer of every host 0, by namespace and job.

Registered by `main.py`. A job that is gone, or has not answered lately, has no lines.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shardwise_operator.poll import Key

_LABELS = ["namespace", "job"]
_PROGRESS = {
    "step": ("shardwise_job_step", "The last completed step."),
    "of": ("shardwise_job_steps", "The steps of the whole run."),
    "loss": ("shardwise_job_loss", "The loss of the last step."),
    "tokensPerSecond": ("shardwise_job_tokens_per_second", "Tokens per second of the whole job."),
    "mfu": ("shardwise_job_mfu", "The share of the devices' peak that the model's sums use."),
}


class JobMetrics(Collector):
    """The collector."""

    def __init__(self, latest: Callable[[], Mapping[Key, Mapping[str, Any]]]) -> None:
        """`latest` returns the last answer of every job."""
        self._latest = latest

    def describe(self) -> Iterator[Metric]:
        """No names are claimed before there are jobs."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """The lines of now."""
        latest = self._latest()
        phase = GaugeMetricFamily("shardwise_job_phase", "1 for the run's phase.", labels=[*_LABELS, "phase"])
        restarts = CounterMetricFamily("shardwise_job_restarts", "Restarts by cause.", labels=[*_LABELS, "cause"])
        goodput = CounterMetricFamily(
            "shardwise_job_goodput_seconds", "The wall time by category.", labels=[*_LABELS, "category"]
        )
        for key, status in latest.items():
            phase.add_metric([*key, status["phase"]], 1)
            _add(restarts, key, status.get("restarts", {}))
            _add(goodput, key, status.get("goodput", {}))
        yield from (phase, restarts, goodput)
        for name, (metric, words) in _PROGRESS.items():
            family = GaugeMetricFamily(metric, words, labels=_LABELS)
            for key, status in latest.items():
                value = status.get("progress", {}).get(name)
                if isinstance(value, int | float):
                    family.add_metric(list(key), value)
            yield family


def _add(family: CounterMetricFamily, key: Key, values: Mapping[str, float]) -> None:
    for label, value in values.items():
        family.add_metric([*key, label], value)
