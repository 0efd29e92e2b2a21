"""Host 0 asked over HTTP: only a status is believed, every answer is bounded, and silence is an error."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from shardwise.protocol.contract import Phase, Progress
from shardwise.protocol.job_status import MAX_HOSTS
from shardwise.protocol.report import Report
from shardwise.protocol.run_status import HostStatus, RunProgress, RunSummary
from shardwise_operator.observe.agents import AgentError, Agents, Target

TARGET = Target(pod="uid", address="127.0.0.1", tokens=("secret",))
STATUS = {"phase": "running"}


class _Agent(ThreadingHTTPServer):
    """Answers as the test says, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer, self.code = json.dumps(STATUS).encode(), 200
        self.asked: list[str] = []
        self.refused: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    server: _Agent

    def _handle(self) -> None:
        given = self.headers["Authorization"]
        self.server.asked.append(f"{self.command} {self.path} {given}")
        self.send_response(401 if given in self.server.refused else self.server.code)
        self.send_header("Content-Length", str(len(self.server.answer)))
        self.end_headers()
        self.wfile.write(self.server.answer)

    do_GET = do_POST = _handle  # noqa: N815  the standard library's names

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  as above
        """Say nothing."""


@pytest.fixture
def agent() -> Iterator[_Agent]:
    """Return an agent that listens."""
    with _Agent() as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def agents(agent: _Agent) -> Agents:
    """Return a client of it."""
    return Agents(port=int(agent.server_address[1]))


def test_status_and_stop(agent: _Agent, agents: Agents) -> None:
    """Each request carries the job's token."""
    assert agents.status(TARGET) == RunSummary(phase="running")
    agents.stop(TARGET)

    assert agent.asked == ["GET /status Bearer secret", "POST /stop Bearer secret"]


def test_a_job_of_the_key_before_is_reached(agent: _Agent, agents: Agents) -> None:
    """A job keeps its Secret when the operator gets another key: the token of the key before it is tried too."""
    rotated = Target(pod="uid", address="127.0.0.1", tokens=("new", "old"))
    agent.refused = ["Bearer new"]
    assert agents.status(rotated) == RunSummary(phase="running")
    agents.stop(rotated)

    assert [asked.split()[-1] for asked in agent.asked] == ["new", "old", "new", "old"]
    agent.asked, agent.code = [], 503
    agent.refused = []
    with pytest.raises(AgentError, match="HTTP 503"):
        agents.status(rotated)
    assert [asked.split()[-1] for asked in agent.asked] == ["new"]


def test_a_job_of_neither_key_is_said(agent: _Agent, agents: Agents) -> None:
    """Both tokens are refused: the job says so, as Unreachable."""
    agent.code = 401
    with pytest.raises(AgentError, match="HTTP 401"):
        agents.status(Target(pod="uid", address="127.0.0.1", tokens=("new", "old")))


@pytest.mark.parametrize(
    "answer",
    [
        b"no json",
        b"[]",
        b"{}",
        b'{"phase": 3}',
        b'{"phase": ""}',
        b'{"phase": "' + b"x" * (4 << 20) + b'"}',
        b"[" * (1 << 19),
        b'{"phase": "running", "restarts": [1]}',
        b'{"phase": "running", "progress": {"step": 1e400}}',
        b'{"phase": "running", "checkpoint": {"step": 2147483648}}',
        b'{"phase": "running", "progress": {"stepSeconds": -1}}',
    ],
)
def test_what_is_no_status_is_not_believed(agent: _Agent, agents: Agents, answer: bytes) -> None:
    """Whoever has the address may answer; neither its shape nor its length is trusted."""
    agent.answer = answer

    with pytest.raises(AgentError, match=r"127\.0\.0\.1"):
        agents.status(TARGET)


@pytest.mark.parametrize("code", [302, 401, 503])
def test_a_refusal_is_an_error(agent: _Agent, agents: Agents, code: int) -> None:
    """A redirection is not followed: the token would go with it."""
    agent.code = code

    with pytest.raises(AgentError, match=str(code)):
        agents.stop(TARGET)


def test_silence_is_an_error(agent: _Agent) -> None:
    """Nobody listens there."""
    port = int(agent.server_address[1])
    nobody = Target(pod="uid", address="127.0.0.2", tokens=("secret",))

    with pytest.raises(AgentError, match=r"127\.0\.0\.2"):
        Agents(port=port).status(nobody)


def test_what_a_newer_release_says_is_left_out(agent: _Agent, agents: Agents) -> None:
    """A field that is not known harms nothing; a long text is cut."""
    said = {"phase": "running", "reason": "x" * 5000, "weather": [], "progress": {"step": 3, "mood": 1}}
    agent.answer = json.dumps(said).encode()

    assert agents.status(TARGET) == RunSummary(phase="running", reason="x" * 4096, progress=RunProgress(step=3))


def test_the_status_of_the_largest_gang_is_read(agent: _Agent, agents: Agents) -> None:
    """It has a line for each host, with all that a host can say."""
    seconds = dict.fromkeys([*Phase, "wait", "imports", "interpreter"], 12345.6789)
    progress = Progress(
        attempt=9,
        rank=MAX_HOSTS,
        phase=Phase.EVALUATE,
        step=1_000_000,
        dispatched=1_000_000,
        step_seconds=12.345678901234567,
        monotonic_seconds=1e6,
        pid=2**22,
        seconds=seconds,
        own_seconds=0.012345678901234567,
        measured=99,
    )
    report = Report(
        version=1,
        host=MAX_HOSTS,
        agent_id="0" * 16,
        agent_pid=2**22,
        trainer_pid=2**22,
        attempt=9,
        progress=progress,
        age_seconds=12345.678,
        resting_seconds=0.0,
        process_state="R",
        exit=None,
        standby=False,
        stop_asked=False,
    )
    agent.answer = json.dumps(STATUS | {"hosts": [HostStatus.of(report).model_dump(mode="json")] * MAX_HOSTS}).encode()

    assert len(agent.answer) > 1 << 20
    assert agents.status(TARGET) == RunSummary(phase="running")


def test_a_dripping_answer_is_bounded_as_a_whole() -> None:
    """Each packet comes in time; all of them never do."""
    dripped: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_drip, args=(server, dripped), daemon=True).start()

        with pytest.raises(AgentError, match="no whole answer within 2 s"):
            Agents(port=int(server.getsockname()[1])).status(TARGET)

    assert len(dripped) < 20  # in 4 s, and on a busy machine fewer


def _drip(server: socket.socket, dripped: list[float]) -> None:
    connection, _ = server.accept()
    with connection, contextlib.suppress(OSError):
        while True:
            connection.sendall(b"H")
            dripped.append(time.monotonic())
            time.sleep(0.2)
