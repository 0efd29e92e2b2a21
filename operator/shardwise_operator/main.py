"""The command `shardwise-operator`: read its options, and run the operator until SIGTERM or a lost Lease."""

from pathlib import Path
from typing import Annotated

import typer

from shardwise.job.quantity import Duration
from shardwise.protocol.errors import JobError
from shardwise_operator import __version__
from shardwise_operator.config import Settings, read_key
from shardwise_operator.logs import LogFormat, LogLevel, write_logs
from shardwise_operator.observe.pod_defaults import PodDefaults, read_pod_defaults
from shardwise_operator.operator import Operator, Reach, Serving
from shardwise_operator.runtime.access import Certificate, TokenFile
from shardwise_operator.runtime.connection import connect
from shardwise_operator.runtime.manager import stop_on_signals
from shardwise_operator.runtime.tracing import checked_endpoint

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
    serving = Serving(
        health_address=health_address,
        metrics_address=metrics_address,
        metrics_token=TokenFile(metrics_token) if metrics_token else None,
        page_address=page_address,
        page_token=TokenFile(page_token) if page_token else None,
        certificate=Certificate(tls) if tls else None,
    )
    endpoint = _checked(tracing_endpoint)
    reach = Reach(connect(kubeconfig), qps=qps, burst=burst, lease_name=lease_name)
    operator = Operator(reach, settings, namespace=namespace, workers=workers, tracing_endpoint=endpoint)
    operator.run(serving, stop)


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


def main() -> None:
    """Run the command line."""
    app(prog_name="shardwise-operator")
