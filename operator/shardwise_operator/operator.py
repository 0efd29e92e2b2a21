"""The operator as a whole: its parts, what each is given of the others, and what of them is served."""

import socket
import threading
import uuid
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass
from functools import partial

from shardwise_operator import __version__
from shardwise_operator.config import Settings
from shardwise_operator.controller import JobController
from shardwise_operator.job_metrics import JobMetrics
from shardwise_operator.observe.agents import Agents
from shardwise_operator.observe.nodes import NodeWatch
from shardwise_operator.observe.observe import Observer
from shardwise_operator.observe.poll import Poller
from shardwise_operator.page.serve import JobsPages
from shardwise_operator.render.names import OURS
from shardwise_operator.runtime.access import Certificate, TokenFile
from shardwise_operator.runtime.cache import Cache
from shardwise_operator.runtime.connection import Connection
from shardwise_operator.runtime.elector import Elector
from shardwise_operator.runtime.errors import NotFoundError
from shardwise_operator.runtime.kinds import GANGS, TRAINING_JOBS
from shardwise_operator.runtime.manager import Manager
from shardwise_operator.runtime.metrics import Metrics
from shardwise_operator.runtime.pace import Limiter
from shardwise_operator.runtime.queue import WorkQueue
from shardwise_operator.runtime.recorder import Recorder
from shardwise_operator.runtime.tracing import Tracing
from shardwise_operator.runtime.transport import Api
from shardwise_operator.runtime.web import WebServer, health_pages, metrics_pages
from shardwise_operator.write.apply import Applier
from shardwise_operator.write.catalog import Catalog
from shardwise_operator.write.requests import Requests
from shardwise_operator.write.spans import Traces

_LEASE_QPS, _LEASE_SECONDS = 5.0, 5.0
_LIST_QPS = 20.0


@dataclass(frozen=True)
class Reach:
    """The API server, and how much is asked of it.

    Attributes:
        connection: to the API server.
        qps: requests a second, over time.
        burst: requests at once.
        lease_name: the Lease of which one operator is the holder.

    """

    connection: Connection
    _: KW_ONLY
    qps: float
    burst: int
    lease_name: str


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Where the operator answers, and whom.

    Attributes:
        health_address: where /healthz and /readyz are, as host:port.
        metrics_address: where /metrics is.
        metrics_token: the token for /metrics; None, everybody may read it.
        page_address: where /jobs and /jobs.json are.
        page_token: the token for both; None, neither is there.
        certificate: of TLS for /metrics and /jobs; None for plain HTTP.

    """

    health_address: str
    metrics_address: str
    metrics_token: TokenFile | None
    page_address: str
    page_token: TokenFile | None
    certificate: Certificate | None


class Operator:
    """One operator of TrainingJobs."""

    def __init__(
        self, reach: Reach, settings: Settings, *, namespace: str, workers: int, tracing_endpoint: str
    ) -> None:
        """Build the parts.

        Args:
            reach: the API server.
            settings: what it is to do.
            namespace: the only namespace to look after; "" for all.
            workers: how many jobs are reconciled at a time.
            tracing_endpoint: the URL of a collector of spans; "" for none.

        Raises:
            SystemExit: the cluster has no gangs, and `settings` wants them.

        """
        self._namespace = namespace
        self._metrics = metrics = Metrics()
        elector = _elector(reach, metrics, settings.operator_namespace)
        self._tracing = (
            Tracing(tracing_endpoint, metrics, version=__version__, instance=elector.identity)
            if tracing_endpoint
            else None
        )
        limiter = Limiter(reach.qps, reach.burst)
        api = Api(reach.connection, metrics, limiter=limiter, may_write=elector.leads)
        lists = Api(reach.connection, metrics, limiter=Limiter(_LIST_QPS, int(_LIST_QPS)))
        if settings.gang_scheduling:
            _check_gangs(lists, namespace)
        queue, agents = WorkQueue(metrics), Agents()
        self._cache = cache = Cache()
        self._poller = Poller(agents, settings.poll_seconds, queue.add)
        self._requests = Requests(agents, queue.add)
        self._manager = Manager(lists, cache, queue, elector, metrics, workers=workers, namespace=namespace)
        self._controller = JobController(
            cache,
            api,
            settings=settings,
            observer=Observer(cache, api, settings),
            applier=Applier(api, self._requests, settings.tokens),
            poller=self._poller,
            recorder=Recorder(api, metrics, component="shardwise"),
            catalog=Catalog(cache, api, NodeWatch(cache, self._manager.watch, self._manager.unwatch)),
            traces=Traces(self._tracing.send) if self._tracing else Traces(),
        )
        metrics.registry.register(JobMetrics(self._controller.jobs, self._poller.latest, leads=elector.leads))

    def run(self, serving: Serving, stop: threading.Event) -> None:
        """Answer, and look after jobs while it holds the Lease, until `stop` is set."""
        with ExitStack() as stack:
            if self._tracing:
                stack.enter_context(self._tracing)  # first, to end last: the last passes have spans too
            self._serve(serving, stack)
            stack.enter_context(self._poller)
            stack.enter_context(self._requests)
            self._manager.run(self._controller, stop)

    def _serve(self, serving: Serving, stack: ExitStack) -> None:
        """Answer at each address until `stack` ends."""
        health = health_pages(self._manager, self._poller.stuck)
        stack.enter_context(WebServer(serving.health_address, health))
        metrics = metrics_pages(self._metrics.registry, serving.metrics_token)
        stack.enter_context(WebServer(serving.metrics_address, metrics, certificate=serving.certificate))
        if serving.page_token:
            listed = partial(self._cache.synced, TRAINING_JOBS)
            page = JobsPages(self._controller.jobs, listed, token=serving.page_token, namespace=self._namespace)
            certificate = serving.certificate
            stack.enter_context(WebServer(serving.page_address, page.pages, forms=page.forms, certificate=certificate))


def _check_gangs(api: Api, namespace: str) -> None:
    """End the process if the API server knows no gangs: jobs would wait for them for ever."""
    try:
        next(api.pages(GANGS, namespace, labels=OURS, metadata_alone=True))
    except NotFoundError as error:
        raise SystemExit(
            f"--gang-scheduling (gangScheduling in the chart): given a cluster without {GANGS.api_version}, "
            "expected Kubernetes 1.35 with the feature gates GenericWorkload and GangScheduling"
        ) from error


def _elector(reach: Reach, metrics: Metrics, namespace: str) -> Elector:
    """Build the elector, with a rate and a time limit of its own: a busy operator must not lose its Lease."""
    limiter = Limiter(_LEASE_QPS, int(_LEASE_QPS))
    api = Api(reach.connection, metrics, limiter=limiter, read_seconds=_LEASE_SECONDS)
    identity = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    return Elector(api, namespace=namespace, name=reach.lease_name, identity=identity)
