"""The operator's own metrics, for Prometheus. Labels are verbs, kinds and results, of which there are few each."""

import threading
import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """The registry, and the metrics of the runtime in it.

    Attributes:
        registry: the registry, in which others may register more.
        depth: keys that wait for a worker now.
        adds: keys that came to wait, each once until a worker takes it.
        retries: keys that wait longer since their pass failed.
        queued: seconds from due to taken.
        passes: reconcile passes by result: done, again (it asked to be called again), outdated (what it
            decided on had changed), failed.
        pass_seconds: their time.
        relists: whole lists by kind, the first included.
        cached: objects held by kind.
        leader: 1 while this process leads.
        answered_at: by thread, when its last request to the API server was over, in monotonic seconds.
        events: Kubernetes events by what became of them: sent, dropped (too many), failed.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.depth = Gauge("workqueue_depth", "Keys that wait for a worker.", registry=registry)
        self.adds = Counter("workqueue_adds", "Keys that came to wait.", registry=registry)
        self.retries = Counter("workqueue_retries", "Keys put back because their pass failed.", registry=registry)
        self.queued = Histogram(
            "workqueue_queue_duration_seconds", "From due to taken.", buckets=_SECONDS, registry=registry
        )
        self.passes = Counter("shardwise_operator_reconciles", "Passes by result.", ["result"], registry=registry)
        self.pass_seconds = Histogram(
            "shardwise_operator_reconcile_seconds", "Time of a pass.", buckets=_SECONDS, registry=registry
        )
        self.relists = Counter("shardwise_operator_lists", "Whole lists by kind.", ["kind"], registry=registry)
        self.cached = Gauge("shardwise_operator_cached_objects", "Objects held by kind.", ["kind"], registry=registry)
        self.leader = Gauge("shardwise_operator_leader", "1 while this process leads.", registry=registry)
        self.events = Counter(
            "shardwise_operator_events", "Kubernetes events by what became of them.", ["result"], registry=registry
        )
        self.answered_at: dict[int, float] = {}
        self._requests = Counter(
            "shardwise_operator_api_requests",
            "Requests to the API server.",
            ["verb", "kind", "status"],
            registry=registry,
        )
        self._request_seconds = Histogram(
            "shardwise_operator_api_request_seconds",
            "Time to the answer of the API server.",
            ["verb"],
            buckets=_SECONDS,
            registry=registry,
        )

    def request(self, verb: str, kind: str, status: str, seconds: float) -> None:
        """Count one request to the API server; `status` is the HTTP status, or "unreachable"."""
        self.answered_at[threading.get_ident()] = time.monotonic()
        self._requests.labels(verb, kind, status).inc()
        self._request_seconds.labels(verb).observe(seconds)
