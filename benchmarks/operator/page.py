"""The tables on the operator, from the figures of `__main__.py`. It measures nothing."""

from collections.abc import Mapping
from typing import Any

from benchmarks import notes
from benchmarks.operator.beside import ONE_POLICY, OURS
from benchmarks.pages import Table

_METHOD = """
`make bench-operator` (`benchmarks/operator/`) measures it: N jobs of 4 hosts of class cpu-sim in one namespace of the
bare test cluster, on N nodes that KWOK plays. Running: the last pod, by a watch of the API server. Core-seconds are the
CPU time of the processes from the first create until then; the control plane is API server, etcd, controller manager,
scheduler, KWOK, CoreDNS and kube-proxy. Read the core-seconds first: seconds depend on what else the machine does, and
the load below says how much that was here.
"""
_BESIDE = """
measures it, in turns in shuffled order on one cluster. All pods have the spec of ours, on six nodes for ten jobs. What
each process takes with nothing there is measured before each turn, once it falls no more, and taken off. Times:
core-seconds of control plane and operator over those of the pods alone in the same round. JobSet's operator is compiled
from its module and asked about each JobSet and each pod by webhook, as in its chart; both operators are processes
beside the control plane. A TrainingJob's pods are as those of the others but for their names, labels and what hangs on
them.
"""
_POLLING = """
Polling is real: the address of every KWOK pod is routed to this machine, where one listener answers `/status` as a run
does that has joined, and that takes a step a second once all jobs run: so no write of progress is counted as one of a
start. It wants a bearer token of 64 hexadecimal digits, but cannot know the job's.
"""
_BOUNDS = """
What bounds it: a start is seven objects and two or three writes of the status, and each of those costs the API server
about three times what a ConfigMap's does, since it holds the whole job against the schema of the CRD again. The leases
of 1,000 nodes alone keep half a core of the control plane busy, measured with nothing else there: about a third of the
core-seconds of 1,000 jobs. They come by the second and not by the job. What this cluster flatters: etcd does not wait
for the disk, everything shares one network namespace, no kubelet pulls an image, and host 0 says that it runs as soon
as it is asked, which saves a write of the status.
"""

_ONE_POLICY = """
One NetworkPolicy: none is made for a job (`networkPolicy.jobs: false` in the chart, `--one-policy` here), as where a
namespace has one for all of its jobs.
"""
_NAMES = {False: OURS, True: ONE_POLICY}


def tables(results: Mapping[str, Any]) -> list[Table]:
    """The tables; `results` has all runs that were kept, by name."""
    runs = sorted(results.values(), key=lambda run: (run["jobs"], run.get("one_policy", False)))
    return [_start(runs), _costs(runs)]


def beside(results: Mapping[str, Any]) -> Table:
    """The table of the same pods made in several ways, from the figures of `beside.py`."""
    rows = [
        [
            name,
            *(f"{_spread(figures[key])}" for key in ("seconds", "core_seconds", "operator_core_seconds")),
            f"{figures['peak_mib']['high']:.0f}" if figures["peak_mib"]["high"] else "-",
            _spread(results["times"][name], ".2f"),
        ]
        for name, figures in results["ways"].items()
    ]
    return Table(
        title=f"Operator: {results['jobs']:,} jobs x {results['hosts']} hosts beside the same pods made otherwise",
        columns=[
            "",
            "all pods Running s",
            "control plane core-s",
            "operator core-s",
            "operator peak MiB",
            "times the pods alone",
        ],
        rows=rows,
        notes=[
            f'`make bench-operator ARGS="{_words(results)}"` {notes.paragraph(_BESIDE)}',
            f"Rounds: {results['rounds']}. Taken off: {_idle(results)} cores. The first round: {_measured(results)}",
        ],
    )


def _words(results: Mapping[str, Any]) -> str:
    return f"--beside {results['rounds']} --jobs {results['jobs']}"


def _idle(results: Mapping[str, Any]) -> str:
    idle = [figures["idle_cores"] for figures in results["ways"].values()]
    return f"{min(each['low'] for each in idle):.2f} to {max(each['high'] for each in idle):.2f}"


def _spread(spread: Mapping[str, float], form: str = ".1f") -> str:
    return f"{spread['median']:{form}} ({spread['low']:{form}} - {spread['high']:{form}})"


def _start(runs: list[Mapping[str, Any]]) -> Table:
    rows = [_row(_NAMES[run.get("one_policy", False)], run["jobs"], _figures(run)) for run in runs]
    columns = ["", "jobs", "all pods Running s", "control plane core-s", "operator core-s", "operator peak MiB"]
    return Table(
        title="Operator: from the first job created until all run",
        columns=columns,
        rows=rows,
        notes=[*map(notes.paragraph, (_METHOD, _POLLING, _BOUNDS))],
    )


def _figures(run: Mapping[str, Any]) -> tuple[float, float, float, float]:
    cpu = run["pods_cpu_seconds"]
    others = sum(seconds for name, seconds in cpu.items() if name != "operator")
    return run["pods_running_seconds"], others, cpu["operator"], run["peak_resident_bytes"] / 2**20


def _row(name: str, jobs: int, figures: tuple[float | None, ...]) -> list[str]:
    seconds, cluster, operator, mebibytes = figures
    shown = [_number(seconds, ".1f"), _number(cluster, ".1f"), _number(operator, ".1f"), _number(mebibytes, ".0f")]
    return [name, f"{jobs:,}", *shown]


def _costs(runs: list[Mapping[str, Any]]) -> Table:
    rows = [
        ["all jobs say Running, s", *(f"{run['jobs_running_seconds']:.1f}" for run in runs)],
        ["a pass, p50 ms", *(f"{1e3 * run['pass_seconds']['p50']:.0f}" for run in runs)],
        ["a pass, p99 ms", *(f"{1e3 * run['pass_seconds']['p99']:.0f}" for run in runs)],
        ["passes a job", *(f"{run['passes'] / run['jobs']:.1f}" for run in runs)],
        ["operator's CPU a job, ms", *(f"{1e3 * run['cpu_seconds']['operator'] / run['jobs']:.0f}" for run in runs)],
        ["requests a job", *(f"{sum(run['requests'].values()) / run['jobs']:.1f}" for run in runs)],
        *([f"- {name}", *(_share(run, name) for run in runs)] for name in runs[0]["requests"]),
        ["running: watched for, s", *(f"{run['steady_seconds']:.0f}" for run in runs)],
        ["running: writes a second", *(f"{_rate(run, 'steady_requests'):.1f}" for run in runs)],
        ["running: operator's cores", *(f"{_cores(run, 'operator'):.2f}" for run in runs)],
        ["running: API server's cores", *(f"{_cores(run, 'kube-apiserver'):.2f}" for run in runs)],
        ["before: API server's cores", *(f"{run['idle_cores']['kube-apiserver']:.2f}" for run in runs)],
    ]
    columns = ["until all say Running, then while they run", *map(_column, runs)]
    note = "Polls, watches and their answers are in the CPU; the requests leave out lists, watches and the lease."
    said = [note, notes.paragraph(_ONE_POLICY), *map(_measured, runs)]
    return Table(title="Operator: what a job costs", columns=columns, rows=rows, notes=said)


def _column(run: Mapping[str, Any]) -> str:
    return f"{run['jobs']:,} jobs" + (", one NetworkPolicy" if run.get("one_policy", False) else "")


def _share(run: Mapping[str, Any], name: str) -> str:
    return f"{run['requests'].get(name, 0) / run['jobs']:.1f}"


def _rate(run: Mapping[str, Any], name: str) -> float:
    return float(sum(run[name].values()) / run["steady_seconds"])


def _cores(run: Mapping[str, Any], name: str) -> float:
    return float(run["steady_cpu_seconds"][name] / run["steady_seconds"])


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _measured(run: Mapping[str, Any]) -> str:
    machine = run["machine"]
    return (
        f"{run['jobs']:,} jobs on {machine['date']}: {machine['cores']} cores ({machine['processor']}), "
        f"{machine['memory_gib']:.0f} GiB, load at the start {machine['load']:.1f}; Python {machine['python']}."
    )
