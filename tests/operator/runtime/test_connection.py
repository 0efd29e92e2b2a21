"""Connections are kept, given up when the server has closed them, and never used by two at a time."""

import json
import socket
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress

import pytest

from shardwise_operator.runtime.connection import BROKEN, Answer, Connection
from shardwise_operator.runtime.errors import UnreachableError
from shardwise_operator.runtime.login import Login

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Server:
    """Answers every request with what `answers` has next, b"" for no answer and the end of the connection."""

    def __init__(self, *answers: bytes) -> None:
        self.answers, self.asked, self.num_connections = list(answers), list[bytes](), 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        """Listen no more."""
        self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.num_connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(ConnectionError):  # a client may end with an answer unread
            while request := connection.recv(1 << 16):
                self.asked.append(request)
                answer = self.answers.pop(0) if self.answers else _ANSWER
                if not answer:
                    return
                connection.sendall(answer)
                if b"Content-Length: 9" in answer:
                    return


@pytest.fixture
def server() -> Iterator[Server]:
    """Return a server that answers `{}`."""
    server = Server()
    yield server
    server.close()


def _get(connection: Connection, path: str = "/") -> bytes:
    return connection.send("GET", path, query={}, body=None, content_type="", read_seconds=5).data


def test_a_connection_is_kept(server: Server) -> None:
    """Requests one after another are sent over one, each with the token of its time."""
    words = iter(("one", "two", "three"))
    connection = Connection(Login(url=f"{server.url}/prefix", authorization=lambda: next(words)))

    assert [_get(connection, "/path") for _ in range(3)] == [b"{}"] * 3
    assert server.num_connections == 1
    assert all(asked.startswith(b"GET /prefix/path HTTP/1.1") for asked in server.asked)
    assert [b"Authorization: two" in asked for asked in server.asked] == [False, True, False]


_ENDS_WHILE_THREADS_ASK = """
import sys, threading
from shardwise_operator.runtime.connection import Connection
from shardwise_operator.runtime.login import Login

connection = Connection(Login(url=sys.argv[1]))
each_has_asked = threading.Barrier(13)

def ask():
    first = True
    while True:
        connection.send("GET", "/", query={}, body=None, content_type="", read_seconds=5).data
        if first:
            each_has_asked.wait()
        first = False

for _ in range(12):
    threading.Thread(target=ask, daemon=True).start()
each_has_asked.wait()
"""


def test_a_process_ends_in_peace_while_its_threads_ask(server: Server) -> None:
    """Idle connections are closed at its end, which others take and give back meanwhile, and it says nothing."""
    for _ in range(20):
        ended = subprocess.run(
            [sys.executable, "-c", _ENDS_WHILE_THREADS_ASK, server.url], capture_output=True, text=True, check=True
        )
        assert not ended.stderr


def test_a_proxy_leads_to_the_server(server: Server) -> None:
    """It is asked for a tunnel, in which all else is as without it."""
    server.answers[:] = [b"HTTP/1.1 200 OK\r\n\r\n"]
    connection = Connection(Login(url="http://10.0.0.1:81", authorization=lambda: "word", proxy=server.url))

    assert _get(connection, "/path") == b"{}"
    assert server.asked[0].startswith(b"CONNECT 10.0.0.1:81 HTTP/1")
    assert b"Authorization" not in server.asked[0]
    assert server.asked[1].startswith(b"GET /path HTTP/1.1\r\nHost: 10.0.0.1:81\r\n")


def test_a_proxy_is_told_who_asks(server: Server) -> None:
    """By the user and the password in its address, which nothing else is told, and no log."""
    server.answers[:] = [b"HTTP/1.1 200 OK\r\n\r\n"]
    proxy = server.url.replace("http://", "http://ann:s%40me@")
    connection = Connection(Login(url="http://10.0.0.1:81", proxy=proxy))

    assert _get(connection, "/path") == b"{}"
    assert b"Proxy-Authorization: Basic " + b64encode(b"ann:s@me") in server.asked[0]
    assert b"Proxy" not in server.asked[1]
    with pytest.raises(ValueError, match=r"^the proxy https://proxy:3128: expected one as in") as refused:
        Connection(Login(url="http://10.0.0.1:81", proxy="https://ann:secret@proxy:3128"))
    assert "secret" not in str(refused.value)


def test_who_waits_has_a_connection_of_his_own(server: Server) -> None:
    """A stream that is still read, and threads at a time: none reads another's answer."""
    connection = Connection(Login(url=server.url))
    read = connection.send("GET", "/", query={}, body=None, content_type="", read_seconds=5, stream=True)
    assert _get(connection) == b"{}"
    assert server.num_connections == 2
    read.close()

    threads = [threading.Thread(target=lambda: [_get(connection) for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(server.asked) == 82
    assert server.num_connections <= 6


def test_a_connection_that_the_server_has_closed_is_not_used_again(server: Server) -> None:
    """A request on it would fail without having been sent; nobody is to see that."""
    server.answers[:] = [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n" + json.dumps({"a": 1, "b": 2})[:9].encode()]
    connection = Connection(Login(url=server.url))
    _get(connection)
    idle = connection._idle[0]
    while not idle.dropped():  # the end of the connection is on its way
        pass

    assert _get(connection) == b"{}"
    assert server.num_connections == 2


@pytest.mark.parametrize(
    "answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"], ids=str
)
def test_half_an_answer_is_none(server: Server, answer: bytes) -> None:
    """The connection is not used again, and who asked is told that the request may have been carried out."""
    server.answers[:] = [answer]
    connection = Connection(Login(url=server.url))

    with pytest.raises(UnreachableError, match=f"GET / at {server.url}"):
        _get(connection)
    assert _get(connection) == b"{}"
    assert server.num_connections == 2


def test_a_stream_ends_when_it_is_shut(server: Server) -> None:
    """From another thread, while nothing comes; and a whole one gives its connection back."""
    chunk = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"
    server.answers[:] = [chunk + b"0\r\n\r\n", chunk]
    connection = Connection(Login(url=server.url))

    def opened() -> Answer:
        return connection.send("GET", "/", query={}, body=None, content_type="", read_seconds=60, stream=True)

    assert list(opened().chunks()) == [b"{}"]
    answer = opened()
    chunks = answer.chunks()
    assert server.num_connections == 1
    assert next(chunks) == b"{}"
    shutting = threading.Timer(0.1, answer.shut)
    shutting.start()
    with pytest.raises(BROKEN):
        next(chunks)
    shutting.join()
    answer.close()

    assert _get(connection) == b"{}"
    assert server.num_connections == 2
