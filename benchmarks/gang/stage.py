"""Gangs of many hosts on this machine, a leader and a crowd; and a few hosts of real Ray. Called by `__main__.py`."""

import asyncio
import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
from benchmarks.gang import leader
from benchmarks.gang.crowd import STEP_SECONDS, Gang
from benchmarks.turns import ROOT, WorkerError

from shardwise.launcher.agent.client import NoLeaderError, request
from shardwise.launcher.agent.config import AgentConfig
from shardwise.launcher.ray import rpc_server
from shardwise.launcher.ray.node import RAY_VARIABLE, RayNode, RayPlace, node_part
from shardwise.launcher.ray.session import RaySession
from shardwise.launcher.system import processes
from shardwise.launcher.system.ports import free_port
from shardwise.protocol.contract import EVENTS, LOGS
from shardwise.protocol.requests import Done, Request

WITHIN_SECONDS = 300.0
LEARNT_SECONDS, STEADY_SECONDS = 10.0, 20.0
_ADDRESS = "127.0.0.1"
_JOB = """
apiVersion: shardwise.dev/v1alpha1
kind: TrainingJob
metadata: {name: gang}
spec:
  hardware: {accelerator: gpu, topology: %dx1}
  training:
    model: {preset: tiny, seqLen: 128}
    data: {train: [{name: text, paths: [README.md]}], tokenizer: byte}
    mesh: {fsdp: false}
    batch: {sequences: 1024}
    optimizer: {name: adamw, learningRate: 3e-4}
    steps: 1000000
"""


def measure(hosts: int) -> dict[str, float]:
    """One gang, from the crowd's first word to its steps: see `page.py` for what the figures are."""
    with tempfile.TemporaryDirectory(prefix="swg-") as folder:
        made = _Gang(Path(folder), hosts)
        with made.leader() as agent, made.crowd() as crowd:
            started_at = _line(crowd)["startedAt"]
            made.until_it_steps()
            ordered, opened = (made.at(event) - started_at for event in ("attempt", "session"))
            time.sleep(LEARNT_SECONDS)  # what is usual has been learnt
            made.figures(agent)
            _told(crowd)
            both = (agent, psutil.Process(crowd.pid))
            before, began = [_cpu_seconds(one) for one in both], time.monotonic()
            time.sleep(STEADY_SECONDS)
            seconds = time.monotonic() - began
            cores = [(_cpu_seconds(one) - earlier) / seconds for one, earlier in zip(both, before, strict=True)]
            told, looks, status = _told(crowd), made.figures(agent), made.ask("/status")
            return {
                "hosts": hosts,
                "ray_seconds": opened,
                "membership_seconds": ordered,
                **{f"{name}_seconds": statistics.median(looks[name]) for name in looks},
                **{f"{name}_most_seconds": max(looks[name]) for name in looks},
                "polled_seconds": told["longest"],
                "polls_per_second": told["answered"] / seconds,
                "cores": cores[0],
                "crowd_cores": cores[1],
                "status_bytes": len(json.dumps(status)),
                "resident_bytes": agent.memory_info().rss,
                "threads": agent.num_threads(),
                "stalls": made.count("stalled"),
            }


class _Gang:
    """Its files, and its two processes, each with a core to itself."""

    def __init__(self, folder: Path, hosts: int) -> None:
        self._scratch, self._directory = folder, folder / "run"
        (self._directory / LOGS).mkdir(parents=True)
        (self._directory / "fake.json").write_text(json.dumps({"steps": 1_000_000, "stepSeconds": STEP_SECONDS}))
        (folder / "job.yaml").write_text(_JOB % hosts)
        (folder / "gang-token").write_text(secrets.token_hex(16))
        (folder / "status-token").write_text(secrets.token_hex(16))
        self._config = AgentConfig(
            run="gang",
            host=0,
            num_hosts=hosts,
            job_file=folder / "job.yaml",
            directory=self._directory,
            scratch=folder,
            local=folder / "local",
            listen=f"{_ADDRESS}:{free_port(_ADDRESS)}",
            address=_ADDRESS,
            gang_token_file=folder / "gang-token",
            status_token_file=folder / "status-token",
            started_at=time.time(),
            fork=False,
            step=None,
            trainer_command=leader.trainer_command(),
        )

    @contextmanager
    def leader(self) -> Iterator[psutil.Process]:
        """The leader, from when it answers."""
        with self._process("benchmarks.gang.leader", str(self._scratch), core=0) as process:
            assert process.stdin is not None
            process.stdin.write(self._config.model_dump_json().encode() + b"\n")
            process.stdin.flush()
            self._until(lambda: process.poll() is not None or self._answers(), "the leader to answer")
            if process.poll() is not None:
                raise WorkerError(f"the leader has ended:\n{self._log.read_text()[-4000:]}")
            yield psutil.Process(process.pid)

    @contextmanager
    def crowd(self) -> Iterator["subprocess.Popen[bytes]"]:
        """All other hosts."""
        config = self._config
        gang = Gang(
            run=config.run,
            num_hosts=config.num_hosts,
            token=config.tokens.gang,
            directory=str(config.directory),
            scratch=str(config.scratch),
        )
        with self._process("benchmarks.gang.crowd", json.dumps(asdict(gang)), core=1) as process:
            yield process

    def ask(self, path: str) -> dict[str, Any]:
        """What the leader answers at a path."""
        return request(self._config.listen, self._config.tokens.status, "GET", path)

    def until_it_steps(self) -> None:
        """Wait for the first step."""
        self._until(lambda: self._answers() and self.ask("/status")["phase"] == "running", "the first step")

    def figures(self, agent: psutil.Process) -> dict[str, list[float]]:
        """How long the leader's looks took since the last time."""
        path = self._scratch / leader.FIGURES
        path.unlink(missing_ok=True)
        agent.send_signal(signal.SIGUSR1)
        self._until(path.exists, "the leader's figures")
        read: dict[str, list[float]] = json.loads(path.read_text())
        return read

    def at(self, event: str) -> float:
        """When something first happened, in seconds since the epoch."""
        return next(float(one["time"]) for one in self._events() if one["event"] == event)

    def count(self, event: str) -> int:
        """How often something has happened."""
        return sum(one["event"] == event for one in self._events())

    def _events(self) -> list[dict[str, Any]]:
        lines = (self._directory / LOGS / EVENTS).read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def _answers(self) -> bool:
        try:
            self.ask("/status")
        except NoLeaderError:
            return False
        return True

    def _until(self, condition: Any, what: str) -> None:
        deadline = time.monotonic() + WITHIN_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise WorkerError(f"waited {WITHIN_SECONDS:g} s for {what}:\n{self._log.read_text()[-4000:]}")
            time.sleep(0.05)

    @property
    def _log(self) -> Path:
        return self._scratch / "log.txt"

    @contextmanager
    def _process(self, module: str, argument: str, *, core: int) -> Iterator["subprocess.Popen[bytes]"]:
        cores = sorted(os.sched_getaffinity(0))
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, argument, str(cores[core % len(cores)])],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def _cpu_seconds(process: psutil.Process) -> float:
    spent = process.cpu_times()
    return spent.user + spent.system


def _told(crowd: "subprocess.Popen[bytes]") -> dict[str, float]:
    """What the crowd has counted since the last time."""
    assert crowd.stdin is not None
    crowd.stdin.write(b"\n")
    crowd.stdin.flush()
    return _line(crowd)


def _line(crowd: "subprocess.Popen[bytes]") -> dict[str, float]:
    assert crowd.stdout is not None
    read: dict[str, float] = json.loads(crowd.stdout.readline())
    return read


def ray(hosts: int) -> dict[str, float]:
    """Real Ray on so many hosts of this machine: seconds until all have joined, and the memory of a host."""
    with tempfile.TemporaryDirectory(prefix="swr-") as folder:
        return asyncio.run(_ray(Path(folder), hosts))


async def _ray(scratch: Path, hosts: int) -> dict[str, float]:
    (scratch / "token").write_text(secrets.token_hex(16))
    async with AsyncExitStack() as stack:
        for host in range(hosts):
            server = await rpc_server.serve(scratch / f"h{host}.sock", _nothing)
            stack.callback(server.close)
        places = [
            RayPlace(
                directory=scratch / "run", host=host, address=_ADDRESS, scratch=scratch, token_file=scratch / "token"
            )
            for host in range(hosts)
        ]
        began = time.monotonic()
        session = await RaySession.open(places[0], number=1, num_hosts=hosts)
        stack.push_async_callback(session.close)
        headed = time.monotonic()
        for host, place in enumerate(places):
            node = await RayNode.join(place, session=1, address=session.address, socket=scratch / f"h{host}.sock")
            stack.push_async_callback(node.close)
        await session.all_joined(WITHIN_SECONDS)
        joined = time.monotonic()
        marks = processes.mark(scratch / "run", 0) | {RAY_VARIABLE: "head-1"}
        nodes = [_memory(processes.mark(place.directory, place.host) | _part(place)) for place in places]
        return {
            "hosts": hosts,
            "head_seconds": headed - began,
            "joined_seconds": joined - began,
            "head_bytes": _memory(marks),
            "host_bytes": statistics.median(nodes),
        }


def _part(place: RayPlace) -> dict[str, str]:
    return {RAY_VARIABLE: node_part(place.host, 1)}


async def _nothing(_request: Request) -> Done:
    return Done()


def _memory(marks: dict[str, str]) -> int:
    """The processes that carry these marks: what is theirs alone, and their share of what they have in common."""
    return sum(psutil.Process(one.pid).memory_full_info().pss for one in processes.carrying(marks))
