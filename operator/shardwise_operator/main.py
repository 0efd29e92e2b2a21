"""The command `shardwise-operator`: build the parts, and run them until SIGTERM or a lost Lease."""

import socket
import uuid
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from shardwise.job.quantity import Duration
from shardwise.protocol.errors import JobError
from shardwise_operator import __version__
from shardwise_operator.config import Settings, read_key
from shardwise_operator.controller import JobController
from shardwise_operator.job_metrics import JobMetrics
from shardwise_operator.logs import LogFormat, LogLevel, write_logs
from shardwise_operator.observe.agents import Agents
from shardwise_operator.observe.nodes import NodeWatch
from shardwise_operator.observe.observe import Observer
from shardwise_operator.observe.pod_defaults import PodDefaults, read_pod_defaults
from shardwise_operator.observe.poll import Poller
from shardwise_operator.page.serve import JobsPages
from shardwise_operator.render.names import OURS
from shardwise_operator.runtime.access import Certificate, TokenFile
from shardwise_operator.runtime.cache import Cache
from shardwise_operator.runtime.connection import Connection, connect
from shardwise_operator.runtime.elector import Elector
from shardwise_operator.runtime.errors import NotFoundError
from shardwise_operator.runtime.kinds import GANGS, TRAINING_JOBS
from shardwise_operator.runtime.manager import Manager, stop_on_signals
from shardwise_operator.runtime.metrics import Metrics
from shardwise_operator.runtime.pace import Limiter
from shardwise_operator.runtime.queue import WorkQueue
from shardwise_operator.runtime.recorder import Recorder
from shardwise_operator.runtime.tracing import Tracing, checked_endpoint
from shardwise_operator.runtime.transport import Api
from shardwise_operator.runtime.web import WebServer, health_pages, metrics_pages
from shardwise_operator.write.apply import Applier
from shardwise_operator.write.catalog import Catalog
from shardwise_operator.write.requests import Requests
from shardwise_operator.write.spans import Traces

_LEASE_QPS, _LEASE_SECONDS = 5.0, 5.0
_LIST_QPS = 20.0

app = typer.Typer(
    name="shardwise-operator",
    help="Keep the pods of TrainingJobs alive, and report their status.",
    epilog="Example: shardwise-operator run --trainer-image localhost/trainer:dev --key-file key",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"shardwise-operator {__version__}")


@app.command()
def run(  # noqa: PLR0913  the options of the command
    *,
    trainer_image: Annotated[str, typer.Option(help="The image of jobs if neither they nor their class name one.")],
    key_file: Annotated[Path, typer.Option(help="The operator's key: at least 32 random bytes.")],
    namespace: Annotated[str, typer.Option(help="Look after this namespace only; empty, all of them.")] = "",
    managed_by: Annotated[str, typer.Option(help="Look after jobs with this spec.managedBy; empty, without one.")] = "",
    workers: Annotated[int, typer.Option(min=1, max=64, help="Jobs that are reconciled at a time.")] = 4,
    poll_seconds: Annotated[float, typer.Option(min=0.1, max=300, help="Seconds between two polls of a job.")] = 2,
    job_network_policies: Annotated[bool, typer.Option(help="Give each job a NetworkPolicy of its own.")] = True,
    kueue: Annotated[bool, typer.Option(help="Let jobs wait in the queues of Kueue, which must be there.")] = False,
    kueue_priority_boost: Annotated[
        bool, typer.Option(help="Raise a job's priority in its queue with the age of its newest checkpoint.")
    ] = False,
    gang_scheduling: Annotated[
        bool, typer.Option(help="Have the scheduler place a job's pods all at once or not at all.")
    ] = False,
    pod_defaults: Annotated[str, typer.Option(help="JSON: what the pods of every job have unless it says so.")] = "{}",
    ttl_after_finished: Annotated[
        str, typer.Option(help="How long a finished job is kept that does not say so, such as 7d; empty, for good.")
    ] = "",
    qps: Annotated[float, typer.Option(min=1, help="Requests to the API server a second, over time.")] = 300,
    burst: Annotated[int, typer.Option(min=1, help="Requests to the API server at once.")] = 600,
    metrics_address: Annotated[str, typer.Option(help="Where /metrics is served, as host:port.")] = ":8080",
    metrics_token: Annotated[Path | None, typer.Option(help="The token for /metrics; left out, none.")] = None,
    page_address: Annotated[str, typer.Option(help="Where /jobs and /jobs.json are served.")] = ":8082",
    page_token: Annotated[Path | None, typer.Option(help="The token for both; left out, neither.")] = None,
    tls: Annotated[Path | None, typer.Option(help="Folder of tls.crt and tls.key, for /metrics and /jobs.")] = None,
    tracing_endpoint: Annotated[str, typer.Option(help="The URL of a collector of spans, OTLP by HTTP.")] = "",
    health_address: Annotated[str, typer.Option(help="Where /healthz and /readyz are served.")] = ":8081",
    lease_namespace: Annotated[str, typer.Option(help="The operator's own namespace.")] = "shardwise-system",
    lease_name: Annotated[str, typer.Option(help="The lease of which one operator is the holder.")] = "shardwise",
    kubeconfig: Annotated[str, typer.Option(help="How to reach the cluster; empty, as the pod that this is.")] = "",
    log_level: Annotated[LogLevel, typer.Option(help="The least of what is logged.")] = LogLevel.INFO,
    log_format: Annotated[LogFormat, typer.Option(help="JSON objects, or text for people.")] = LogFormat.JSON,
) -> None:
    """Run until SIGTERM, or until another operator holds the lease."""
    write_logs(log_level, log_format)
    stop = stop_on_signals()
    settings = Settings(
        trainer_image=trainer_image,
        operator_namespace=lease_namespace,
        managed_by=managed_by,
        poll_seconds=poll_seconds,
        tokens=read_key(key_file),
        pod_defaults=_pod_defaults(pod_defaults),
        ttl_after_finished=_duration(ttl_after_finished),
        job_network_policies=job_network_policies,
        kueue=kueue,
        kueue_priority_boost=kueue_priority_boost,
        gang_scheduling=gang_scheduling,
    )
    certificate = Certificate(tls) if tls else None
    token_of_metrics = TokenFile(metrics_token) if metrics_token else None
    token_of_page = TokenFile(page_token) if page_token else None
    checked = _checked(tracing_endpoint)
    connection, metrics = connect(kubeconfig), Metrics()
    elector = _elector(connection, metrics, lease_namespace, lease_name)
    tracing = Tracing(checked, metrics, version=__version__, instance=elector.identity) if checked else None
    api = Api(connection, metrics, limiter=Limiter(qps, burst), may_write=elector.leads)
    lists = Api(connection, metrics, limiter=Limiter(_LIST_QPS, int(_LIST_QPS)))
    if gang_scheduling:
        _check_gangs(lists, namespace)
    cache, queue, agents = Cache(), WorkQueue(metrics), Agents()
    poller, requests = Poller(agents, poll_seconds, queue.add), Requests(agents, queue.add)
    manager = Manager(lists, cache, queue, elector, metrics, workers=workers, namespace=namespace)
    controller = JobController(
        cache,
        api,
        settings=settings,
        observer=Observer(cache, api, settings),
        applier=Applier(api, requests, settings.tokens),
        poller=poller,
        recorder=Recorder(api, metrics, component="shardwise"),
        catalog=Catalog(cache, api, NodeWatch(cache, manager.watch)),
        traces=Traces(tracing.send) if tracing else Traces(),
    )
    metrics.registry.register(JobMetrics(controller.jobs, poller.latest, leads=elector.leads))
    with ExitStack() as stack:
        if tracing:
            stack.enter_context(tracing)  # first, to end last: the last passes have spans too
        stack.enter_context(WebServer(health_address, health_pages(manager, poller.stuck)))
        pages = metrics_pages(metrics.registry, token_of_metrics)
        stack.enter_context(WebServer(metrics_address, pages, certificate=certificate))
        if token_of_page:
            listed = partial(cache.synced, TRAINING_JOBS)
            page = JobsPages(controller.jobs, listed, token=token_of_page, namespace=namespace)
            server = WebServer(page_address, page.pages, forms=page.forms, certificate=certificate)
            stack.enter_context(server)
        stack.enter_context(poller)
        stack.enter_context(requests)
        manager.run(controller, stop)


def _checked(tracing_endpoint: str) -> str:
    """Return the endpoint, "" without one; end the process if it is none."""
    try:
        return checked_endpoint(tracing_endpoint) if tracing_endpoint else ""
    except ValueError as error:
        raise SystemExit(f"--tracing-endpoint (tracing.endpoint in the chart): {error}") from error


def _pod_defaults(text: str) -> PodDefaults:
    """Return the defaults of pods; end the process if they are none."""
    try:
        return read_pod_defaults(text)
    except JobError as error:
        raise SystemExit(f"--pod-defaults (trainingPods in the chart): {error}") from error


def _duration(ttl_after_finished: str) -> str | None:
    """Return the duration, None without one; end the process if it is none."""
    try:
        return str(Duration(ttl_after_finished)) if ttl_after_finished else None
    except ValueError as error:
        raise SystemExit(f"--ttl-after-finished (ttlAfterFinished in the chart): {error}") from error


def _check_gangs(api: Api, namespace: str) -> None:
    """End the process if the API server knows no gangs: jobs would wait for them for ever."""
    try:
        next(api.pages(GANGS, namespace, labels=OURS, metadata_alone=True))
    except NotFoundError as error:
        raise SystemExit(
            f"--gang-scheduling (gangScheduling in the chart): given a cluster without {GANGS.api_version}, "
            "expected Kubernetes 1.35 with the feature gates GenericWorkload and GangScheduling"
        ) from error


def _elector(connection: Connection, metrics: Metrics, namespace: str, name: str) -> Elector:
    """Build the elector, with a rate and a time limit of its own: a busy operator must not lose its Lease."""
    limiter = Limiter(_LEASE_QPS, int(_LEASE_QPS))
    api = Api(connection, metrics, limiter=limiter, read_seconds=_LEASE_SECONDS)
    identity = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    return Elector(api, namespace=namespace, name=name, identity=identity)


def main() -> None:
    """Run the command line."""
    app(prog_name="shardwise-operator")
