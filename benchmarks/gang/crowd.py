"""All hosts of a gang but the leader's, played by one process.

Each polls the leader as a follower does, and answers it as an agent does whose trainer takes a step a second. Started
by `stage.py` with its words as one line of JSON; for each line on its standard input it prints the polls that were
answered since the last, and the longest time that any one host waited for its next answer. It speaks to `leader.py`
over a unix socket as Ray's driver does (`shardwise.launcher.ray.driver`).
"""

import asyncio
import json
import os
import secrets
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gang.leader import CROWD_SOCKET

from shardwise.launcher.agent.client import poll_seconds
from shardwise.launcher.agent.config import socket_of
from shardwise.launcher.ray import rpc
from shardwise.protocol.contract import Phase, Progress
from shardwise.protocol.leader_address import LeaderAddress
from shardwise.protocol.poll import POLL_PATH, SIGNATURE, Poll, PollAnswer, answer_signature, poll_signature
from shardwise.protocol.report import Report

STEP_SECONDS = 1.0
_LINE_LIMIT_BYTES = 16 << 20
_BEFORE_STEPS = (Phase.START, Phase.JOIN, Phase.DATA, Phase.INIT, Phase.COMPILE)


@dataclass(frozen=True, kw_only=True)
class Gang:
    """What the hosts are told when they start."""

    run: str
    num_hosts: int
    token: str
    directory: str
    scratch: str


class StandIn:
    """One host: its agent, and a trainer that does nothing but step."""

    def __init__(self, host: int) -> None:
        self.host, self.agent_id = host, secrets.token_hex(8)
        self.answered_at: float | None = None
        self._attempt: int | None = None
        self._ordered_at = 0.0
        self._idle = _report(host, self.agent_id, None)
        self._running = _report(host, self.agent_id, _progress(host))

    def poll(self, gang: Gang, leader: LeaderAddress) -> Poll:
        """Return what the host sends to the leader."""
        return Poll(
            run=gang.run,
            host=self.host,
            agent_id=self.agent_id,
            address=f"127.0.{self.host // 250}.{1 + self.host % 250}",
            sees=leader.agent_id,
            nonce=secrets.token_hex(16),
        )

    async def answer(self, request: str) -> dict[str, Any]:
        """What its agent answers."""
        asked = json.loads(request)
        match asked["op"]:
            case "start":
                self._attempt, self._ordered_at = asked["orders"]["attempt"], time.monotonic()
                return {}
            case "watch":
                version, until = self._version()
                if version == asked["after"]:
                    await asyncio.sleep(min(asked["seconds"], until))
                return self._report()
            case "end":
                self._attempt = None
                return {"agentId": self.agent_id, "exit": None}
            case "stacks":
                return {"text": ""}
            case _:
                return {}

    def _version(self) -> tuple[int, float]:
        """A number for each step, and how long it still holds: all hosts step together."""
        steps, into = divmod(time.monotonic(), STEP_SECONDS)
        return (0, STEP_SECONDS) if self._attempt is None else (1 + int(steps), STEP_SECONDS - into)

    def _report(self) -> dict[str, Any]:
        """What has changed since the orders, in what was made of them: the crowd has no core to spare."""
        now = time.monotonic()
        passed = int(now / STEP_SECONDS) - int(self._ordered_at / STEP_SECONDS)
        step = max(0, passed - len(_BEFORE_STEPS))
        changed = {"version": self._version()[0], "ageSeconds": now % STEP_SECONDS}
        if self._attempt is None:
            return self._idle | changed
        progress = self._running["progress"] | {
            "phase": _BEFORE_STEPS[passed] if passed < len(_BEFORE_STEPS) else Phase.STEP,
            "step": step,
            "dispatched": step + 1,
            "stepSeconds": STEP_SECONDS if step else 0.0,
            "monotonicSeconds": now,
        }
        return self._running | changed | {"attempt": self._attempt, "progress": progress}


def _report(host: int, agent_id: str, progress: Progress | None) -> dict[str, Any]:
    return Report(
        version=0,
        host=host,
        agent_id=agent_id,
        agent_pid=1,
        trainer_pid=progress.pid if progress else None,
        attempt=progress.attempt if progress else None,
        progress=progress,
        age_seconds=0.0,
        resting_seconds=0.0,
        process_state="R" if progress else "",
        exit=None,
        standby=True,
        stop_asked=False,
    ).model_dump(mode="json")


def _progress(host: int) -> Progress:
    return Progress(
        attempt=0,
        rank=host,
        phase=Phase.START,
        step=0,
        dispatched=0,
        step_seconds=0.0,
        monotonic_seconds=0.0,
        pid=1000 + host,
        seconds={**dict.fromkeys(_BEFORE_STEPS, 1.0), Phase.STEP: 1.0, "wait": 0.01},
    )


class Crowd:
    """All of them, and the wire to the leader."""

    def __init__(self, gang: Gang) -> None:
        self._gang = gang
        self._hosts = {host: StandIn(host) for host in range(1, gang.num_hosts)}
        self._session, self._wire = 0, asyncio.Event()
        self._out: asyncio.StreamWriter | None = None
        self._answered, self._longest = 0, 0.0

    async def run(self) -> None:
        """Play until the standard input ends."""
        await asyncio.start_unix_server(
            self._connected, Path(self._gang.scratch) / CROWD_SOCKET, limit=_LINE_LIMIT_BYTES
        )
        following = [asyncio.create_task(self._follow(host)) for host in self._hosts.values()]
        words = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(words), sys.stdin)
        print(json.dumps({"startedAt": time.time()}), flush=True)
        while await words.readline():
            print(json.dumps({"answered": self._answered, "longest": self._longest_wait()}), flush=True)
            self._answered, self._longest = 0, 0.0
        for task in following:
            task.cancel()

    def _longest_wait(self) -> float:
        """Also of those that wait now."""
        now = time.monotonic()
        return max(self._longest, *(now - (host.answered_at or 0.0) for host in self._hosts.values()))

    async def _follow(self, host: StandIn) -> None:
        """The loop of `shardwise.launcher.agent.follower`, with a connection for each poll as there."""
        session: int | None = None
        while True:
            try:
                leader = LeaderAddress.read(Path(self._gang.directory))
                async with asyncio.timeout(2.0):
                    answer = await self._poll(leader.address, host.poll(self._gang, leader))
            except (OSError, TimeoutError, ValueError):
                answer = None
            if answer:
                now = time.monotonic()
                if host.answered_at is not None:
                    self._longest = max(self._longest, now - host.answered_at)
                host.answered_at = now
                self._answered += 1
                if answer.ray_address and answer.ray_session != session:
                    session = answer.ray_session
                    await self._wire.wait()
                    self._say(joined=host.host)
            await asyncio.sleep(poll_seconds(self._gang.num_hosts))

    async def _poll(self, where: str, message: Poll) -> PollAnswer:
        body = message.model_dump_json().encode()
        signature = poll_signature(self._gang.token, body)
        address, port = where.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(address, int(port))
        try:
            writer.write(
                f"POST {POLL_PATH} HTTP/1.1\r\nHost: {where}\r\nAccept-Encoding: identity\r\n"
                f"{SIGNATURE}: {signature}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            headers = dict(line.split(": ", 1) for line in head.splitlines()[1:] if line)
            answer = await reader.readexactly(int(headers["Content-Length"]))
        finally:
            writer.close()
        if headers.get(SIGNATURE) != answer_signature(self._gang.token, signature, answer):
            raise ValueError(head)
        return PollAnswer.model_validate_json(answer)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A new session: the leader asks over this wire from now on."""
        self._out = writer
        self._wire.set()
        self._say(joined=0)
        tasks = set()
        while line := await reader.readline():
            task = asyncio.create_task(self._ask(**json.loads(line)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _ask(self, *, id: int, host: int, request: str, timeout: float) -> None:  # noqa: A002, ASYNC109
        if host:
            answer = json.dumps(await self._hosts[host].answer(request))
        else:
            answer = await asyncio.wait_for(rpc.ask(socket_of(Path(self._gang.scratch), 0), request), timeout)
        self._say(id=id, answer=answer)

    def _say(self, **message: Any) -> None:
        assert self._out is not None
        self._out.write(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    os.sched_setaffinity(0, {int(sys.argv[2])})
    asyncio.run(Crowd(Gang(**json.loads(sys.argv[1]))).run())
