"""How a run stands, as `GET /status` says it in JSON, and `GET /metrics` for Prometheus.

Called by the leader, which makes a new status at every look; the server hands out the last one.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shardwise.launcher.report import Report

_PROGRESS = {"loss": "loss", "tokensPerSecond": "tokens_per_second", "mfu": "mfu", "gradNorm": "grad_norm"}


class RunPhase(StrEnum):
    """What the run as a whole is doing."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    STALLED = "stalled"
    RECOVERING = "recovering"
    STOPPING = "stopping"
    DONE = "done"


def host_status(report: Report) -> dict[str, Any]:
    """One host's line of the status."""
    progress = report.progress
    return {
        "host": report.host,
        "agentPid": report.agent_pid,
        "trainerPid": report.trainer_pid,
        "phase": report.phase if report.trainer_pid else None,
        "step": progress.step if progress else 0,
        "stepSeconds": progress.step_seconds if progress else 0.0,
        "ownSeconds": progress.own_seconds if progress and progress.measured else None,
        "ageSeconds": round(report.age_seconds, 3),
        "state": report.process_state,
        "standby": report.standby,
        "phases": {name: round(seconds, 4) for name, seconds in progress.seconds.items()} if progress else {},
    }


def metrics(status: Mapping[str, Any]) -> bytes:
    """The status in Prometheus' text format. Label values are hosts, causes and categories: there are few of each."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Status(status))
    return generate_latest(registry)


class _Status(Collector):
    def __init__(self, status: Mapping[str, Any]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """The metrics of one status."""
        status, job = self._status, {"job": self._status["name"]}
        yield _gauge("phase", "1 for the run's phase.", [({**job, "phase": status["phase"]}, 1)])
        yield _gauge(
            "incarnation", "The start of the run's processes that is running, from 0.", [(job, status["incarnation"])]
        )
        yield _gauge("ray_epoch", "The Ray epoch, from 1.", [(job, status["epoch"])])
        progress = status["progress"]
        yield _gauge("step", "The last completed step.", [(job, progress.get("step"))])
        yield _gauge("steps", "The steps of the whole run.", [(job, progress.get("of"))])
        for key, name in _PROGRESS.items():
            yield _gauge(name, f"{key} of the last step.", [(job, progress.get(key))])
        age = (status["checkpoint"] or {}).get("ageSeconds")
        yield _gauge("checkpoint_age_seconds", "The time since the newest checkpoint was complete.", [(job, age)])
        failed = (status["failedSaves"] or {"inARow": 0})["inARow"]
        yield _gauge("failed_saves", "Saves that have failed since the newest checkpoint.", [(job, failed)])
        yield _counter("restarts", "Restarts by cause.", "cause", job, status["restarts"])
        yield _counter("goodput_seconds", "The wall time by category.", "category", job, status["goodput"])
        hosts = [({**job, "host": str(host["host"])}, host) for host in status["hosts"]]
        yield _gauge(
            "host_up", "1 for a host with a trainer.", [(to, int(host["trainerPid"] is not None)) for to, host in hosts]
        )
        yield _gauge("host_step", "The last completed step of a host.", [(to, host["step"]) for to, host in hosts])
        yield _gauge("host_step_seconds", "The last step's seconds.", [(to, host["stepSeconds"]) for to, host in hosts])
        yield _gauge(
            "host_own_seconds",
            "A fixed piece of work on the host's own devices, in seconds.",
            [(to, host["ownSeconds"]) for to, host in hosts],
        )


def _gauge(name: str, words: str, samples: list[tuple[dict[str, str], float | None]]) -> Metric:
    names = list(samples[0][0]) if samples else []
    family = GaugeMetricFamily(f"shardwise_{name}", words, labels=names)
    for labels, value in samples:
        if value is not None:
            family.add_metric(list(labels.values()), value)
    return family


def _counter(name: str, words: str, label: str, job: dict[str, str], values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(f"shardwise_{name}", words, labels=[*job, label])
    for key, value in values.items():
        family.add_metric([*job.values(), key], value)
    return family
