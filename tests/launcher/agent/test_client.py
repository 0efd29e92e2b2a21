"""shardwise.launcher.agent.client: a follower believes its leader alone, and gives itself away to nobody."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from shardwise.launcher.agent.client import LeaderClient, NoLeaderError, poll, request
from shardwise.launcher.agent.config import Tokens
from shardwise.launcher.agent.server import Server
from shardwise.launcher.system.ports import free_port
from shardwise.protocol.contract import LOGS
from shardwise.protocol.leader_address import LeaderAddress
from shardwise.protocol.poll import SIGNATURE, Poll, PollAnswer, answer_signature, poll_signature
from shardwise.protocol.run_status import RunStatus

TOKENS = Tokens(gang="gang-secret", status="status-secret")
DONE = b'{"done": 0}'
POLL = Poll(run="run-0", host=3, agent_id="three", address="127.0.0.1")
ANSWER = PollAnswer(leader_id="one", ray_session=1, ray_address="", over=None, may_go=True, superseded=False, done=None)


class StatusPublisher:
    """The board of a run whose followers are of the round "run-0"."""

    def status(self) -> RunStatus:
        """Is not asked."""
        raise AssertionError

    def metrics(self) -> bytes:
        """Nothing."""
        return b""

    def page(self) -> bytes:
        """Nothing."""
        return b""

    def request(self, action: str) -> None:
        """Is not asked."""
        raise AssertionError(action)

    def polled(self, poll: Poll) -> PollAnswer | None:
        """The same to each, but to another round nothing."""
        return ANSWER if poll.run == "run-0" else None


@contextmanager
def stranger(body: bytes, status: int = 200, signature: str = "") -> Iterator[tuple[str, list[str]]]:
    """Another pod at the leader's address, which gives this answer; its address, and what it was told."""
    told: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(f"{self.headers}{self.rfile.read(int(self.headers['Content-Length'])).decode()}")
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header(SIGNATURE, signature)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name is the standard library's
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_leader_is_believed() -> None:
    """Who has the gang's token is heard and answers; another round's follower, or another token, is refused."""
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    with Server(address, TOKENS, lambda: True, StatusPublisher()):
        assert poll(address, TOKENS.gang, POLL) == ANSWER
        with pytest.raises(NoLeaderError, match="another leader"):
            poll(address, TOKENS.gang, POLL.model_copy(update={"run": "run-1"}))
        with pytest.raises(NoLeaderError, match="token"):
            poll(address, TOKENS.status, POLL)
        with pytest.raises(NoLeaderError, match="there are"):
            request(address, TOKENS.status, "POST", "/elsewhere")


@pytest.mark.parametrize("signature", ["", "0" * 64, "\u00ff"])
def test_a_stranger_ends_no_run(signature: str) -> None:
    """A pod that has the address of a lost host 0 cannot say that the run is done, and is told no token."""
    with stranger(DONE, signature=signature) as (address, told), pytest.raises(NoLeaderError, match="else"):
        poll(address, TOKENS.gang, POLL)

    assert len(told) == 1
    assert TOKENS.gang not in told[0]


def test_an_answer_answers_one_poll() -> None:
    """What the leader said to an earlier poll is not said to this one."""
    earlier = answer_signature(TOKENS.gang, poll_signature(TOKENS.gang, b'{"host": 1}'), DONE)
    with stranger(DONE, signature=earlier) as (address, _), pytest.raises(NoLeaderError, match="somebody else"):
        poll(address, TOKENS.gang, POLL)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        *((200, b"[]"), (500, b"[1]"), (200, b"no JSON"), (404, b"{}"), (200, b"\xff\xfe"), (200, b"")),
        *((200, b"[" * 3_000), (200, b'{"a":' * 3_000), (200, b" " * (17 << 20)), (200, b"9" * 5000)),
    ],
)
def test_what_is_no_answer(status: int, body: bytes) -> None:
    """Whatever listens there, the follower goes on looking for its leader."""
    with stranger(body, status) as (address, _), pytest.raises(NoLeaderError):
        poll(address, TOKENS.gang, POLL)


def test_an_answer_that_drips_is_none() -> None:
    """Each byte comes in time, the answer never does: the follower asks again, elsewhere if need be."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_drip, args=(server,), daemon=True).start()
        with pytest.raises(NoLeaderError, match="no whole answer within 2 s"):
            poll(f"127.0.0.1:{server.getsockname()[1]}", TOKENS.gang, POLL)


def _drip(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection, suppress(OSError):
        while True:
            connection.sendall(b"H")
            time.sleep(0.2)


def test_hundreds_of_followers_that_come_at_once_find_a_place() -> None:
    """They have all connected before the first is served: who found no place would try again a second later.

    They are fewer than the server holds at once: making room for more takes half of what a poll waits, and is tested
    with the server.
    """
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    server = Server(address, TOKENS, lambda: True, StatusPublisher())
    where = ("127.0.0.1", int(address.rsplit(":", 1)[1]))
    connected: list[socket.socket] = []
    try:
        connected.extend(socket.create_connection(where, timeout=0.5) for _ in range(200))
        with server:
            assert poll(address, TOKENS.gang, POLL) == ANSWER
    finally:
        for connection in connected:
            connection.close()


def test_the_run_directory_says_who_leads(tmp_path: Path) -> None:
    """A follower asks who its round's file names, and looks again once that one does not answer."""
    (tmp_path / LOGS).mkdir()
    first, second = (f"127.0.0.1:{free_port('127.0.0.1')}" for _ in range(2))
    leader = LeaderClient(tmp_path, "run-0", TOKENS.gang)
    with pytest.raises(NoLeaderError, match="does not say who leads"):
        leader.poll(POLL)
    LeaderAddress(run="run-before", agent_id="old", address=first).write(tmp_path)
    with pytest.raises(NoLeaderError, match="who led before"):
        leader.poll(POLL)
    LeaderAddress(run="run-0", agent_id="one", address=first).write(tmp_path)
    with Server(first, TOKENS, lambda: True, StatusPublisher()):
        assert leader.poll(POLL) == ANSWER
        LeaderAddress(run="run-0", agent_id="two", address=second).write(tmp_path)
        assert leader.poll(POLL) == ANSWER
    with Server(second, TOKENS, lambda: True, StatusPublisher()):
        with pytest.raises(NoLeaderError):
            leader.poll(POLL)
        assert leader.poll(POLL) == ANSWER


@pytest.mark.parametrize(
    "text", ["", "an agent's id", "[]", '{"run": "run-0"}', '{"run": 1, "agent_id": "", "address": ""}', "[" * 9_999]
)
def test_what_is_no_word(tmp_path: Path, text: str) -> None:
    """A file of an earlier release, or a broken one, names nobody, and whoever looks goes on looking."""
    (tmp_path / LOGS).mkdir()
    (tmp_path / LOGS / "leader").write_text(text)
    with pytest.raises(NoLeaderError, match="does not say who leads"):
        LeaderClient(tmp_path, "run-0", TOKENS.gang).poll(POLL)


@pytest.mark.parametrize("address", ["", "nowhere", "host:port", "127.0.0.1:99999999"])
def test_an_address_that_is_none(tmp_path: Path, address: str) -> None:
    """Whoever may write to the volume can keep a host waiting, and nothing worse."""
    (tmp_path / LOGS).mkdir()
    LeaderAddress(run="run-0", agent_id="one", address=address).write(tmp_path)
    with pytest.raises(NoLeaderError):
        LeaderClient(tmp_path, "run-0", TOKENS.gang).poll(POLL)
