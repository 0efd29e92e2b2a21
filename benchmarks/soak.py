"""`make soak`: what restarts, saves and jobs leave behind, round by round; writes docs/images/soak.png.

    restarts  one run on two hosts whose trainer is killed each time: the command, its agents, and their logs; the
              trainers are the tests' stand-ins, which are new processes each time anyhow
    saves     one run of `shardwise run` that saves each step: its trainer, and the run directory
    jobs      create, run, delete, on a real API server with a stand-in kubelet: the operator, and the objects

Measured are memory, file descriptors, threads and listening ports of the processes that live on, bytes on the disk,
and objects of the cluster. `tests/test_soak.py` asserts a few of its restarts.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import psutil
import typer
import yaml
from benchmarks.command import serve
from tests.cluster.api_server import ApiServer
from tests.cluster.client import Client
from tests.cluster.commands import ClusterError, wait
from tests.launcher.conftest import Run
from tests.operator.building import manifest
from tests.operator.live import live_operator
from tests.operator.operating import Place

from shardwise.protocol.contract import CHECKPOINTS, LOGS, checkpoint_steps

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "soak.png"
OBJECTS = ("pods", "configmaps", "secrets", "networkpolicies", "trainingjobs")
_SAVING = {
    "model.preset": "tiny",
    "model.layers": 1,
    "model.embed": 32,
    "model.heads": 1,
    "model.seqLen": 32,
    "batch.sequences": 8,
    "mesh": "{tensor: 1, fsdp: false}",
    "checkpoint.everySteps": 1,
}
_LOOKS, _LOOK_SECONDS = 100, 0.01  # a poll of a busy machine takes longer than a fifth of a second


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What some processes hold after a round, and what is on the disk or in the cluster."""

    rss_bytes: int
    descriptors: int
    threads: int
    ports: int
    disk_bytes: int = 0
    objects: int = 0


def restarts(number: int) -> Iterator[Sample]:
    """After each of so many kills of a trainer: the command and the agents of the run, as soon as it steps again."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder))
        run.start(
            hosts=2,
            recovery="restarts: {failure: 100000}, backoff: 1ms",
            steps=1_000_000,
            stepSeconds=0.02,
            saveEvery=1,
        )
        try:
            step, before = 0, set[int]()
            for attempt in range(number + 1):
                # Past a new checkpoint, or the wait before each restart would double.
                status = run.until(partial(_steps, attempt, step + 2, before))
                step = min(host["step"] for host in status["hosts"])
                before = {host["trainerPid"] for host in status["hosts"]}
                pids = [run.command.pid, *(host["agentPid"] for host in status["hosts"])]
                yield _sample(pids, disk_bytes=_disk_bytes(run.directory / LOGS))
                os.kill(status["hosts"][attempt % 2]["trainerPid"], signal.SIGKILL)
            run.command.send_signal(signal.SIGTERM)
            run.end()
        finally:
            run.close()


def saves(number: int) -> Iterator[Sample]:
    """At each tenth of so many saved steps: the trainer."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "run"
        job = ROOT / "tests" / "job" / "golden" / "quickstart.yaml"
        settings = {"hardware.topology": "1x1", **{f"training.{name}": value for name, value in _SAVING.items()}}
        words = [f"--set={name}={value}" for name, value in {**settings, "training.steps": number}.items()]
        program = Path(sys.executable).with_name("shardwise")
        command = [str(program), "run", str(job), "--dir", str(directory), *words]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        last = 0
        while process.poll() is None:
            newest = max(checkpoint_steps(each.name for each in (directory / CHECKPOINTS).glob("*")), default=0)
            if newest >= last + 10:
                last = newest
                with suppress(psutil.Error):  # it has just come to its end
                    yield _sample([_trainer(process.pid)], disk_bytes=_disk_bytes(directory))
            time.sleep(0.02)
        assert process.returncode == 0


def jobs(number: int) -> Iterator[Sample]:
    """After each of so many jobs that were made, ran and were deleted: the operator, and what the API server holds."""
    with tempfile.TemporaryDirectory() as folder, ApiServer() as server:
        _install(server.client)
        with live_operator(server.client, Path(folder)) as operator:
            place = Place(server.client, operator.namespace)
            every = place.path("configmaps", "kube-root-ca.crt")
            wait("what each namespace has", lambda: server.client.answers(every))
            own = _objects(place)
            for _ in range(number):
                place.apply(manifest())
                place.until_pods("job-0-0-0", "job-0-1-0")
                place.run("job-0-0-0", "job-0-1-0")
                place.until_phase("Starting")
                place.delete()
                # The garbage collector learns of a new kind of owner within half a minute.
                wait("its pods to be told to go", lambda: all(_is_going(pod) for pod in place.pods().values()))
                for pod in place.pods():
                    place.remove(pod)
                wait("its end", lambda: _objects(place) == own)
                operator.check()
                yield _sample([operator.process.pid], objects=_objects(place))


def picture(series: dict[str, Sequence[Sample]], path: Path) -> None:
    """A row for each kind of round; each figure relative to that after the first tenth of the rounds."""
    import matplotlib as mpl  # noqa: PLC0415  half a second

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415  as above

    figure, places = plt.subplots(1, len(series), figsize=(4.5 * len(series), 3.2), layout="constrained")
    for axes, (name, samples) in zip(places, series.items(), strict=True):
        for field in ("rss_bytes", "descriptors", "threads", "ports", "disk_bytes", "objects"):
            values = [getattr(sample, field) for sample in samples]
            base = values[len(values) // 10]
            if base:
                last = f"{values[-1] / 2**20:.1f} MiB" if field.endswith("bytes") else str(values[-1])
                label = f"{field.removesuffix('_bytes')}: {last}"
                axes.plot([value / base for value in values], label=label, linewidth=1.2)
        axes.set(title=name, xlabel="round")
        axes.set_ylim(bottom=0, top=1.1 * axes.get_ylim()[1])
        axes.legend(fontsize=7)
    places[0].set_ylabel("relative to a tenth of the rounds")
    figure.savefig(path, dpi=90, metadata={"Software": None})


def _install(client: Client) -> None:
    """The types and the class; the soak is of jobs that are right, so the policy has no part in it."""
    client.kubectl("apply", "--server-side", "--filename", ROOT / "charts" / "shardwise" / "crds")
    wait("the types", lambda: client.answers("/apis/shardwise.dev/v1alpha1/acceleratorclasses"))
    client.kubectl("apply", "--server-side", "--filename", ROOT / "charts" / "shardwise" / "files" / "classes")


def _objects(place: Place) -> int:
    listed = place.client.kubectl("get", ",".join(OBJECTS), "--namespace", place.namespace, "--output=name")
    return len(listed.split())


def _is_going(pod: dict[str, dict[str, object]]) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _steps(attempt: int, step: int, before: Collection[int], status: dict[str, object]) -> bool:
    """Return whether all trainers of an attempt step; what a host said last may be of those `before`."""
    hosts = status["hosts"]
    assert isinstance(hosts, list)
    # The next trainer is to be one that stands by, on a busy machine too: an agent waits for the end of such a one by a
    # descriptor, and of one that it starts anew by a thread.
    return status["attempt"] == attempt and all(
        host["trainerPid"] not in (None, *before) and host["standby"] and (host["step"] or 0) >= step for host in hosts
    )


def _trainer(launcher: int) -> int:
    """The largest process below the launcher, which is the trainer."""
    below = psutil.Process(launcher).children(recursive=True)
    return max(below, key=lambda process: process.memory_info().rss).pid


def _sample(pids: Sequence[int], **more: int) -> Sample:
    processes = [psutil.Process(pid) for pid in pids]
    descriptors, threads = [], []
    for _ in range(_LOOKS):
        descriptors.append([each.num_fds() for each in processes])
        threads.append([each.num_threads() for each in processes])
        time.sleep(_LOOK_SECONDS)
    listening = [one for each in processes for one in each.net_connections() if one.status == psutil.CONN_LISTEN]
    return Sample(
        rss_bytes=sum(each.memory_info().rss for each in processes),
        # A poll has a thread and connections for a moment, in one process or another; what leaks is always there.
        descriptors=sum(map(min, zip(*descriptors, strict=True))),
        threads=sum(map(min, zip(*threads, strict=True))),
        ports=len(listening),
        **more,
    )


def _disk_bytes(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):  # a checkpoint that is being removed
            total += path.lstat().st_blocks * 512
    return total


_ROUNDS: dict[str, Callable[[int], Iterator[Sample]]] = {"restarts": restarts, "saves": saves, "jobs": jobs}


def soak(
    *,
    number_of_restarts: Annotated[
        int, typer.Option("--restarts", min=2, help="How often the trainer of a run on two hosts is killed.")
    ] = 200,
    number_of_saves: Annotated[
        int, typer.Option("--saves", min=2, help="Checkpoints of a run that saves each step.")
    ] = 100,
    number_of_jobs: Annotated[
        int, typer.Option("--jobs", min=2, help="Jobs that are made, run and deleted, one after the other.")
    ] = 50,
) -> None:
    """Measure what restarts, saves and jobs leave behind, round by round, and draw it; a quarter of an hour."""
    asked = {"restarts": number_of_restarts, "saves": number_of_saves, "jobs": number_of_jobs}
    series: dict[str, Sequence[Sample]] = {}
    for name, measure in _ROUNDS.items():
        began, samples = time.monotonic(), list[Sample]()
        for sample in measure(asked[name]):
            samples.append(sample)
            print(f"{name} {len(samples)}: {sample}", flush=True)
        print(f"{name}: {time.monotonic() - began:.0f} s")
        series[name] = samples
    picture(series, PICTURE)
    print(yaml.safe_dump({name: {"first": vars(each[0]), "last": vars(each[-1])} for name, each in series.items()}))


if __name__ == "__main__":
    serve(soak, example="make soak ARGS='--jobs 20'", error=ClusterError)
