"""`shardwise run` on this machine: one agent per host, each a process of its own, replaced when it dies.

It does what a cluster does elsewhere: it knows hosts, not trainers, and the agents know it only as the end of a pipe.
All processes and scratch files of the run end with it, whatever the end.
"""

import asyncio
import json
import os
import secrets
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from shardwise.job.load import dump
from shardwise.job.spec import TrainingJob
from shardwise.job.topology import num_hosts
from shardwise.launcher.agent.client import NoLeaderError, request
from shardwise.launcher.agent.config import GANG_TOKEN, JOB_COPY, AgentConfig, Tokens
from shardwise.launcher.agent.standby import remove_standby_logs
from shardwise.launcher.job_file import keep_job
from shardwise.launcher.machine import ADDRESS
from shardwise.launcher.output import Output, show_status, tell_unshown
from shardwise.launcher.ray.node import longest_socket
from shardwise.launcher.scratch import note_owner, remove_scratch_of, scratch_folder
from shardwise.launcher.short_lives import why_given_up
from shardwise.launcher.system import processes
from shardwise.launcher.system.log_bound import bounded
from shardwise.launcher.system.ports import free_port
from shardwise.launcher.system.tasks import cancel
from shardwise.protocol.contract import LOGS, STATUS, STATUS_TOKEN, ExitCode
from shardwise.protocol.files import replace_file
from shardwise.protocol.leader_record import LeaderRecord
from shardwise.protocol.takeover import hold

AGENT = processes.own_module("shardwise.launcher.agent_main")
_LOOK_SECONDS = 0.1
_LOOK_AT_AGENT_SECONDS = 0.5
_END_SECONDS = 15.0
_SHORT_LIFE_SECONDS = 5.0
_MAX_SHORT_LIVES = 8
STOPPED_SECONDS = 10.0
_STOPPING = "stopping, which saves first; Ctrl-C once more ends it without that save"
_CUT_SHORT = "ended by a second Ctrl-C, without the save; the same command goes on from the last checkpoint, if any"


def run(job: TrainingJob, directory: Path, *, fork: bool, step: int | None, console: Console, errors: Console) -> int:
    """Train a job on as many hosts as it asks for, or go on with the run that is in the directory.

    Args:
        job: checked and resolved.
        directory: the run directory; made if needed.
        fork: go on from the newest checkpoint as a new run.
        step: start from the checkpoint of this step.
        console: where a person looks.
        errors: where a person reads what went wrong.

    Returns:
        The run's exit code (`ExitCode`).

    Raises:
        RunDirectoryError: the directory is in use, is another job's, or cannot be written.
        UsageError: the path of the temporary folder is too long, and /tmp takes nothing.

    """
    with hold(directory):
        directory = directory.resolve()
        keep_job(directory, job)
        processes.become_subreaper()
        processes.end_marked(directory, None)
        remove_scratch_of(directory, LeaderRecord.read(directory))
        with scratch_folder(longest_socket(num_hosts(job.spec.hardware))) as scratch:
            note_owner(directory, scratch)
            command = _Command(
                job=job, directory=directory, scratch=scratch, console=console, errors=errors, fork=fork, step=step
            )
            return asyncio.run(command.run())


@dataclass(kw_only=True)
class _Command:
    """The life of one `shardwise run`."""

    job: TrainingJob
    directory: Path
    scratch: Path
    console: Console
    errors: Console
    fork: bool
    step: int | None

    def __post_init__(self) -> None:
        """Start nothing yet."""
        self._run = secrets.token_hex(8)
        self._started_at, self._started_monotonic = time.time(), time.monotonic()
        self._leader = f"{ADDRESS}:{free_port(ADDRESS)}"
        self._tokens = Tokens(gang=secrets.token_urlsafe(32), status=secrets.token_urlsafe(32))
        self._agents: dict[int, asyncio.subprocess.Process] = {}
        self._output = Output(self.directory, self.console, self.errors, host=0)
        self._interrupted = 0
        self._given_up: str | None = None
        self._stopping: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Keep the hosts at work until the run has ended; return its exit code."""
        self._write_files()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
            loop.add_signal_handler(signal.SIGHUP, self._stop)
        keeping = [asyncio.create_task(self._keep(host)) for host in range(num_hosts(self.job.spec.hardware))]
        showing = asyncio.create_task(show_status(self.console, self._leader, self._tokens.status))
        showing.add_done_callback(partial(tell_unshown, self.errors))
        try:
            while (code := self._code()) is None and self._given_up is None and self._interrupted < 2:
                self._output.show()
                processes.reap_orphans()
                for keeper in keeping:
                    if keeper.done():
                        keeper.result()  # raises what has ended it: a host without a keeper would be missed for ever
                await asyncio.sleep(_LOOK_SECONDS)
            if code is not None:
                await self._wait_for_agents()
        finally:
            await cancel(*keeping, showing, *([self._stopping] if self._stopping else []))
            await self._end_agents()
        self._output.end()
        if code is None:
            self.errors.print(self._given_up or _CUT_SHORT, markup=False, highlight=False, soft_wrap=True)
        return ExitCode.FAILURE if code is None else code

    def _write_files(self) -> None:
        (self.scratch / JOB_COPY).write_text(dump(self.job), encoding="utf-8")
        for name, token in ((GANG_TOKEN, self._tokens.gang), (STATUS_TOKEN, self._tokens.status)):
            file = self.scratch / name
            file.touch(mode=0o600)
            file.write_text(token, encoding="utf-8")
        where = {"url": f"http://{self._leader}", "tokenFile": str(self.scratch / STATUS_TOKEN)}
        replace_file(self.directory / LOGS / STATUS, json.dumps(where) + "\n", durable=False)

    async def _keep(self, host: int) -> None:
        """Keep an agent on this host, a new one whenever it dies, until the run is over."""
        short_lives = 0
        while True:
            began = time.monotonic()
            try:
                agent = await self._start_agent(host)
            except OSError as error:
                self._given_up = f"the agent of host {host} cannot be started: {error}"
                return
            async with bounded(self._agent_log(host)):
                await _end_of(agent)
            if self._code() is not None:
                return
            short_lives = short_lives + 1 if time.monotonic() - began < _SHORT_LIFE_SECONDS else 0
            if short_lives == _MAX_SHORT_LIVES:
                self._given_up = why_given_up(host, short_lives, agent.returncode, self._agent_log(host))
            await asyncio.sleep(max(0, short_lives - 1) * _LOOK_SECONDS)

    async def _start_agent(self, host: int) -> asyncio.subprocess.Process:
        config = AgentConfig(
            run=self._run,
            host=host,
            num_hosts=num_hosts(self.job.spec.hardware),
            job_file=self.scratch / JOB_COPY,
            directory=self.directory,
            scratch=self.scratch,
            local=self.scratch / f"local-{host}",
            listen=self._leader if host == 0 else f"{ADDRESS}:0",
            address=ADDRESS,
            gang_token_file=self.scratch / GANG_TOKEN,
            status_token_file=self.scratch / STATUS_TOKEN,
            started_at=self._started_at,
            fork=self.fork,
            step=self.step,
            one_machine=True,
            started_monotonic=self._started_monotonic,
        )
        with self._agent_log(host).open("ab") as log:
            agent = await processes.start(
                *AGENT,
                environment={**os.environ, **processes.mark(self.directory, host)},
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        assert agent.stdin is not None
        agent.stdin.write(f"{config.model_dump_json()}\n".encode())
        self._agents[host] = agent
        return agent

    def _agent_log(self, host: int) -> Path:
        return self.directory / LOGS / f"agent-{host}.log"

    def _code(self) -> int | None:
        """Return the run's exit code; None until it has ended."""
        return LeaderRecord.code_of(self.directory, self._run)

    def _interrupt(self) -> None:
        self._interrupted += 1
        if self._interrupted == 1:
            self.console.print(_STOPPING, markup=False, highlight=False, soft_wrap=True)
        self._stop()

    def _stop(self) -> None:
        self._stopping = self._stopping or asyncio.create_task(self._ask_stop())

    async def _ask_stop(self) -> None:
        """Ask for a stop until a leader takes the request."""
        while True:
            with suppress(NoLeaderError):
                await asyncio.to_thread(request, self._leader, self._tokens.status, "POST", "/stop")
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def _wait_for_agents(self) -> None:
        """Give the agents the time to end by themselves."""
        waits = [asyncio.create_task(agent.wait()) for agent in self._agents.values()]
        await asyncio.wait(waits, timeout=_END_SECONDS)

    async def _end_agents(self) -> None:
        """Close the agents' input, which ends them; then kill what is left."""
        for agent in self._agents.values():
            assert agent.stdin is not None
            agent.stdin.close()
        await self._wait_for_agents()
        await asyncio.to_thread(processes.end_marked, self.directory, None)
        processes.reap_orphans()
        for host in range(num_hosts(self.job.spec.hardware)):
            remove_standby_logs(self.directory, host)
        (self.directory / LOGS / STATUS).unlink(missing_ok=True)


async def _end_of(agent: asyncio.subprocess.Process) -> None:
    """Wait for an agent's end. Kill one that is stopped for long: no other process would notice a stopped leader."""
    stopped_at: float | None = None
    while agent.returncode is None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_AT_AGENT_SECONDS):
                await agent.wait()
        now = time.monotonic()
        stopped_at = (stopped_at or now) if processes.is_stopped(agent.pid) else None
        if stopped_at and now - stopped_at >= STOPPED_SECONDS:
            agent.kill()
