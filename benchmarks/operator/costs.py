"""What the jobs cost: CPU and memory of processes, and what the operator counts of itself."""

import os
import re
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from prometheus_client.parser import text_string_to_metric_families

METRICS_ADDRESS = "127.0.0.1:18480"
CONTROL_PLANE = (
    "kube-apiserver",
    "etcd",
    "kube-controller-manager",
    "kube-scheduler",
    "kwok",
    "coredns",
    "kube-proxy",
)
_K = TypeVar("_K", str, float)
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Reading:
    """The counters of one moment; the difference of two is what happened between them.

    Attributes:
        cpu_seconds: by process, since it started.
        requests: of the operator to the API server, by verb and kind; watches and leases left out.
        passes: of the operator, by the longest time in seconds that each bucket holds, cumulative.
    """

    cpu_seconds: Counter[str] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)
    passes: Counter[float] = field(default_factory=Counter)

    def __sub__(self, earlier: "Reading") -> "Reading":
        return Reading(
            difference(self.cpu_seconds, earlier.cpu_seconds),
            difference(self.requests, earlier.requests),
            difference(self.passes, earlier.passes),
        )

    def pass_seconds(self, share: float) -> float:
        """The time of a pass that `share` of them do not exceed, even within a bucket as Prometheus has it."""
        wanted, below, least = share * max(self.passes.values(), default=0.0), 0.0, 0.0
        for most in sorted(self.passes):
            if self.passes[most] >= wanted > below:
                return least + (most - least) * (wanted - below) / (self.passes[most] - below)
            below, least = self.passes[most], most
        return least


def read(pids: dict[str, int]) -> Reading:
    """The counters now; `pids` has the processes, the operator's among them."""
    reading = Reading(cpu(pids))
    for family in text_string_to_metric_families(metrics()):
        for sample in family.samples:
            if sample.name == "shardwise_operator_api_requests_total" and sample.labels["verb"] not in (
                "watch",
                "list",
            ):
                if sample.labels["kind"] != "leases":
                    reading.requests[f"{sample.labels['verb']} {sample.labels['kind']}"] += int(sample.value)
            elif sample.name == "shardwise_operator_reconcile_seconds_bucket":
                reading.passes[float(sample.labels["le"])] = int(sample.value)
    return reading


def cpu(pids: dict[str, int]) -> Counter[str]:
    """The CPU seconds of processes since they started."""
    return Counter({name: cpu_seconds(pid) for name, pid in pids.items()})


def metrics() -> str:
    """The operator's `/metrics`; OSError where it does not answer."""
    with urllib.request.urlopen(f"http://{METRICS_ADDRESS}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def cpu_seconds(pid: int) -> float:
    """User and system time of a process since it started."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def resident_bytes(pid: int, field: str = "VmRSS") -> int:
    """Memory of a process: VmRSS is now, VmHWM the most so far."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    return int(found[1]) * 1024 if found else 0


def difference(later: Counter[_K], earlier: Counter[_K]) -> Counter[_K]:
    """What was counted between two readings; nothing of it is left out for being none, as Counter's own minus does."""
    return Counter({key: later[key] - earlier[key] for key in later})
