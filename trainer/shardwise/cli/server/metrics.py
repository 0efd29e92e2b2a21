"""What a server of texts tells Prometheus of itself."""

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shardwise.cli.server.engine import Engine


class Metrics:
    """The metrics of one server."""

    def __init__(self, engine: Engine) -> None:
        """Count from nothing."""
        self._registry = CollectorRegistry()
        self._answers = Counter("shardwise_serve_requests", "Requests, by status.", ["code"], registry=self._registry)
        self._registry.register(_OfEngine(engine))

    def answered(self, status: int) -> None:
        """Count a request."""
        self._answers.labels(str(status)).inc()

    def page(self) -> bytes:
        """Return all of them, in Prometheus' form."""
        return generate_latest(self._registry)


class _OfEngine(Collector):
    """The figures of an engine, as it has them when it is asked."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> list[Metric]:
        """Return them."""
        engine = self._engine
        return [
            CounterMetricFamily("shardwise_serve_generated_tokens", "Tokens made.", value=engine.num_tokens),
            GaugeMetricFamily("shardwise_serve_texts", "Texts in the making.", value=engine.num_live),
            GaugeMetricFamily("shardwise_serve_texts_waiting", "Texts without a row.", value=engine.num_waiting),
        ]
