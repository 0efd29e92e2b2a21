"""The status of a run for Prometheus, as the leader serves it at `/metrics`."""

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shardwise.protocol.run_status import RunStatus


def metrics(status: RunStatus) -> bytes:
    """Return the status in Prometheus' text format. Labels are hosts, causes and categories: there are few of each."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RunMetrics(status))
    return generate_latest(registry)


class RunMetrics(Collector):
    """The metrics of one status."""

    def __init__(self, status: RunStatus) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of one status."""
        status, job = self._status, {"job": self._status.name}
        yield _gauge("phase", "1 for the run's phase.", [({**job, "phase": status.phase}, 1)])
        yield _gauge("attempt", "The start of the run's processes that is running, from 0.", [(job, status.attempt)])
        yield _gauge("ray_session", "The Ray session, from 1.", [(job, status.ray_session)])
        progress = status.progress
        yield _gauge("step", "The last completed step.", [(job, progress.step)])
        yield _gauge("steps", "The steps of the whole run.", [(job, progress.of)])
        for key, name, value in (
            ("loss", "loss", progress.loss),
            ("tokensPerSecond", "tokens_per_second", progress.tokens_per_second),
            ("mfu", "mfu_ratio", progress.mfu),
            ("gradNorm", "grad_norm", progress.grad_norm),
        ):
            yield _gauge(name, f"{key} of the last step.", [(job, _number(value))])
        held_out = [(job, _number(progress.held_out_loss))]
        yield _gauge("held_out_loss", "The loss of the last evaluation on held-out documents.", held_out)
        age = status.checkpoint.age_seconds if status.checkpoint else None
        yield _gauge("checkpoint_age_seconds", "The time since the newest checkpoint was complete.", [(job, age)])
        failed = status.failed_saves.in_a_row if status.failed_saves else 0
        yield _gauge("failed_saves", "Saves that have failed since the newest checkpoint.", [(job, failed)])
        local = [(job, status.local_step)]
        yield _gauge("local_checkpoint_step", "The step of the local checkpoint that the hosts hold.", local)
        yield _counter("restarts", "Restarts by cause.", "cause", job, status.restarts)
        yield _counter("goodput_seconds", "The wall time by category.", "category", job, status.goodput)
        hosts = [({**job, "host": str(host.host)}, host) for host in status.hosts]
        up = [(labels, int(host.trainer_pid is not None)) for labels, host in hosts]
        yield _gauge("host_up", "1 for a host with a trainer.", up)
        step = [(labels, host.step) for labels, host in hosts]
        yield _gauge("host_step", "The last completed step of a host.", step)
        step_seconds = [(labels, host.step_seconds) for labels, host in hosts]
        yield _gauge("host_step_seconds", "The last step's seconds.", step_seconds)
        own_seconds = [(labels, host.own_seconds) for labels, host in hosts]
        yield _gauge("host_own_seconds", "A fixed piece of work on the host's own devices, in seconds.", own_seconds)


def _number(value: float | str | None) -> float | None:
    return value if isinstance(value, float) else None


def _gauge(name: str, description: str, samples: Sequence[tuple[dict[str, str], float | None]]) -> Metric:
    names = list(samples[0][0]) if samples else []
    family = GaugeMetricFamily(f"shardwise_{name}", description, labels=names)
    for labels, value in samples:
        if value is not None:
            family.add_metric(list(labels.values()), value)
    return family


def _counter(name: str, description: str, label: str, job: dict[str, str], values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(f"shardwise_{name}", description, labels=[*job, label])
    for key, value in values.items():
        family.add_metric([*job.values(), key], value)
    return family
