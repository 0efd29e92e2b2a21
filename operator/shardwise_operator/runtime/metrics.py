"""The operator's own metrics, for Prometheus. Labels are verbs, kinds and results, of which there are few each."""

import threading
import time
from functools import partial

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
        spans: spans of traces by what became of them: sent, dropped (too many wait), failed.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, buckets=_SECONDS, registry=self.registry)
        self.depth = gauge("workqueue_depth", "Keys that wait for a worker.")
        self.adds = counter("workqueue_adds", "Keys that came to wait.")
        self.retries = counter("workqueue_retries", "Keys put back because their pass failed.")
        self.queued = histogram("workqueue_queue_duration_seconds", "From due to taken.")
        self.passes = counter("shardwise_operator_reconciles", "Passes by result.", ["result"])
        self.pass_seconds = histogram("shardwise_operator_reconcile_seconds", "Time of a pass.")
        self.relists = counter("shardwise_operator_lists", "Whole lists by kind.", ["kind"])
        self.cached = gauge("shardwise_operator_cached_objects", "Objects held by kind.", ["kind"])
        self.leader = gauge("shardwise_operator_leader", "1 while this process leads.")
        self.events = counter("shardwise_operator_events", "Kubernetes events by what became of them.", ["result"])
        self.spans = counter("shardwise_operator_spans", "Spans of traces by what became of them.", ["result"])
        self.answered_at: dict[int, float] = {}
        self._requests = counter(
            "shardwise_operator_api_requests", "Requests to the API server.", ["verb", "kind", "status"]
        )
        self._request_seconds = histogram(
            "shardwise_operator_api_request_seconds", "Time to the answer of the API server.", ["verb"]
        )

    def request(self, verb: str, kind: str, status: str, seconds: float) -> None:
        """Count one request to the API server; `status` is the HTTP status, or "unreachable"."""
        self.answered_at[threading.get_ident()] = time.monotonic()
        self._requests.labels(verb, kind, status).inc()
        self._request_seconds.labels(verb).observe(seconds)
