"""What a server of texts tells Prometheus of itself."""

from collections import Counter

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shardwise.cli.server.engine import Engine


class Metrics(Collector):
    """The metrics of one server: of its answers as they were counted, of its engine as it is when it is asked."""

    def __init__(self, engine: Engine) -> None:
        """Count from nothing."""
        self._engine = engine
        self._answers = Counter[int]()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def answered(self, status: int) -> None:
        """Count a request."""
        self._answers[status] += 1

    def page(self) -> bytes:
        """Return all of them, in Prometheus' form."""
        return generate_latest(self._registry)

    def collect(self) -> list[Metric]:
        """Return them."""
        engine = self._engine
        answers = CounterMetricFamily("shardwise_serve_requests", "Requests, by status.", labels=["code"])
        for status, count in sorted(self._answers.items()):
            answers.add_metric([str(status)], count)
        return [
            answers,
            CounterMetricFamily("shardwise_serve_generated_tokens", "Tokens made.", value=engine.num_tokens),
            GaugeMetricFamily("shardwise_serve_texts", "Texts in the making.", value=engine.num_live),
            GaugeMetricFamily("shardwise_serve_texts_waiting", "Texts without a row.", value=engine.num_waiting),
        ]
