"""shardwise.launcher.agent.server: what anybody may send to an agent. Without a token it costs little."""

import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shardwise.launcher.agent import server as served
from shardwise.launcher.agent.config import Tokens
from shardwise.launcher.agent.server import Server
from shardwise.launcher.system.ports import free_port
from shardwise.protocol.errors import RunDirectoryError
from shardwise.protocol.poll import SIGNATURE, Poll, PollAnswer, poll_signature
from shardwise.protocol.run_status import RunStatus

TOKENS = Tokens(gang="gang-secret", status="status-secret")
SECONDS = 300.0  # before a test gives up; nothing is measured with it
STATUS = RunStatus(phase="running", name="secret", ray_session=0, hosts=())
PAGE = b"<!doctype html>a running page"
ALLOWED = {"Authorization": f"Bearer {TOKENS.status}"}


class StatusPublisher:
    """Keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def status(self) -> RunStatus:
        """A secret."""
        return STATUS

    def metrics(self) -> bytes:
        """Another."""
        return b"shardwise_step 3\n"

    def page(self) -> bytes:
        """One more."""
        return PAGE

    def request(self, action: str) -> None:
        """Take it."""
        self.asked.append(action)

    def polled(self, poll: Poll) -> PollAnswer | None:
        """Is not reached without the gang's token."""
        raise AssertionError(poll)


@pytest.fixture(scope="module")
def publisher() -> StatusPublisher:
    """Return what the requests reach."""
    return StatusPublisher()


@pytest.fixture(scope="module")
def address(publisher: StatusPublisher) -> Iterator[tuple[str, int]]:
    """Return where an agent of host 0 listens."""
    port = free_port("127.0.0.1")
    with Server(f"127.0.0.1:{port}", TOKENS, lambda: True, publisher):
        yield "127.0.0.1", port


@pytest.fixture(autouse=True)
def well(address: tuple[str, int], capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Whatever was sent: the agent says nothing of it, for its output is the run's, and answers the next one."""
    yield
    assert _ask(address, "GET", "/status", ALLOWED) == (200, STATUS.model_dump_json().encode())
    assert capfd.readouterr() == ("", "")


def _ask(
    address: tuple[str, int], method: str, path: str, headers: dict[str, str], body: bytes | None = None
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*address, timeout=SECONDS)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _send(address: tuple[str, int], content: bytes) -> bytes:
    """What comes back to these very bytes, after which nothing more is sent."""
    with socket.create_connection(address, timeout=SECONDS) as connection:
        with suppress(OSError):  # it may have heard enough
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)
        received = b""
        with suppress(ConnectionError):
            while chunk := connection.recv(1 << 16):
                received += chunk
        return received


_LINES = st.sampled_from(
    [
        *(b"GET /status HTTP/1.1", b"POST /save HTTP/1.1", b"POST /stop HTTP/1.1", b"GET /metrics HTTP/1.0"),
        *(b"POST /poll HTTP/1.1", b"GET /status", b"GET //status HTTP/1.1", b"GET http://x/status HTTP/1.1"),
        *(b"GET /../status HTTP/1.1", b"GET /status%00 HTTP/1.1", b"PUT /save HTTP/1.1", b"OPTIONS * HTTP/1.1"),
        *(b"GET /page HTTP/1.1", b"POST /page HTTP/1.1"),
        *(b"GET /status HTTP/9.9", b"GET /status HTTP/1.1 x", b"\xff\xfe /save HTTP/1.1", b"GET /" + b"a" * 70_000),
        *(b"PRI * HTTP/2.0", b"\x16\x03\x01\x02\x00\x01", b"", b" ", b"POST  /save  HTTP/1.1"),
    ]
)
_HEADERS = st.sampled_from(
    [
        *(b"Content-Length: -1", b"Content-Length: 99999999999", b"Content-Length: 5", b"Content-Length: 1e3"),
        *(b"Content-Length: " + b"1" * 5000, "Content-Length: ٣".encode(), b"Content-Length: +3", b"Content-Length: "),
        *(b"Content-Length: 3\r\nContent-Length: 70000", b"Transfer-Encoding: chunked", b"Expect: 100-continue"),
        *(b"Authorization: Bearer ", b"Authorization: Bearer status-secre", b"Authorization: Basic c3RhdHVz"),
        *(b"Authorization: \xff\x00", b"Authorization: Bearer gang-secret", b"Shardwise-Signature: " + b"0" * 64),
        *(b"Authorization: " + b"x" * 60_000, b"X: y\r\n" * 150, b"no colon", b"\x00: \x00", b"Connection: keep-alive"),
    ]
)
_REQUEST = st.builds(
    lambda line, headers, body: b"\r\n".join([line, *headers, b"", b""]) + body,
    _LINES,
    st.lists(_HEADERS, max_size=3),
    st.one_of(st.binary(max_size=20), st.sampled_from([b"0\r\n\r\n", b"{}" * 9, b"[" * 5000])),
)


@given(st.one_of(_REQUEST, st.binary(max_size=40)))
@example(b"POST /save HTTP/1.1\r\nContent-Length: " + b"1" * 5000 + b"\r\n\r\n")
@example(b"POST /poll HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_is_heard_without_the_token(address: tuple[str, int], publisher: StatusPublisher, sent: bytes) -> None:
    """However the request is written, it is told no status, and its wish is not passed on."""
    answer = _send(address, sent)

    assert b"running" not in answer
    assert b"shardwise_step" not in answer
    assert publisher.asked == []
    assert b" 20" not in answer.partition(b"\r\n")[0]


def test_page_is_for_those_who_have_the_token(address: tuple[str, int]) -> None:
    """With the token in its header a request gets the page; a browser, which has none to send, gets a form."""
    assert _ask(address, "GET", "/page", ALLOWED) == (200, PAGE)
    status, said = _ask(address, "GET", "/page", {})
    assert (status, b'<form method="post" action="/page">' in said) == (401, True)
    status, said = _ask(address, "GET", "/page", {"Authorization": f"Bearer {TOKENS.gang}"})
    assert (status, b"error" in said) == (401, True)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (f"token={TOKENS.status}".encode(), 200),
        (f"token=+{TOKENS.status}%0A".encode(), 200),
        (f"token={TOKENS.gang}".encode(), 401),
        (f"x={TOKENS.status}".encode(), 401),
        (f"token=x&token={TOKENS.status}".encode(), 401),
        (b"token=%ff%00", 401),
        (b"token=\xff", 401),
        (b"a=&" * 15_000, 401),
        (b"", 401),
    ],
)
def test_form_is_answered_with_the_page(address: tuple[str, int], body: bytes, status: int) -> None:
    """The token that the form posts gets the page, which nothing may keep or frame; all else gets the form."""
    connection = http.client.HTTPConnection(*address, timeout=SECONDS)
    connection.request("POST", "/page", body, {"Content-Type": "application/x-www-form-urlencoded"})
    answer = connection.getresponse()
    said = answer.read()
    connection.close()
    assert (answer.status, said == PAGE) == (status, status == http.HTTPStatus.OK)
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert not answer.headers["Set-Cookie"]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (
            OSError(5, "Input/output error", "/runs/a/metrics.jsonl"),
            "[Errno 5] Input/output error: '/runs/a/metrics.jsonl'",
        ),
        (RunDirectoryError("/runs/a/job.yaml: expected a job\nand more"), "/runs/a/job.yaml: expected a job"),
    ],
)
def test_page_that_cannot_be_made(
    address: tuple[str, int], publisher: StatusPublisher, monkeypatch: pytest.MonkeyPatch, error: Exception, why: str
) -> None:
    """While a file cannot be read the browser is told so in one sentence; once it can be, the page is there."""

    def refused() -> bytes:
        raise error

    form = f"token={TOKENS.status}".encode()
    with monkeypatch.context() as failing:
        failing.setattr(publisher, "page", refused)
        answers = [_ask(address, "GET", "/page", ALLOWED), _ask(address, "POST", "/page", {}, form)]
    said = f"The page of the run cannot be made now ({why}); the run goes on: reload the page once that is mended.\n"
    assert answers == [(503, said.encode())] * 2
    assert _ask(address, "POST", "/page", {}, form) == (200, PAGE)


@pytest.mark.parametrize("path", ["/", "/statuses", "/save", "/status/", "/%73tatus", "/status?x", "/poll", "*"])
def test_other_paths_are_not_found(address: tuple[str, int], path: str) -> None:
    """Also with the token; what is asked with the wrong method is not done."""
    status, said = _ask(address, "GET", path, ALLOWED)

    assert status == http.HTTPStatus.NOT_FOUND
    assert json.loads(said)["error"]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "CONNECT", "get"])
def test_other_methods_are_refused(address: tuple[str, int], publisher: StatusPublisher, method: str) -> None:
    """None of them reads, or asks for anything."""
    assert _ask(address, method, "/save", ALLOWED)[0] == http.HTTPStatus.NOT_IMPLEMENTED
    assert publisher.asked == []


def test_a_body_is_nobody_s_business(address: tuple[str, int], publisher: StatusPublisher) -> None:
    """`/save` is a word: what comes with it is read to its end and left at that."""
    body = b"[" * 60_000
    head = f"POST /save HTTP/1.1\r\nAuthorization: Bearer {TOKENS.status}\r\nContent-Length: {len(body)}\r\n\r\n"

    assert _send(address, head.encode() + body).startswith(b"HTTP/1.1 202")
    assert publisher.asked == ["save"]
    publisher.asked.clear()


def _resets(connection: socket.socket) -> None:
    connection.sendall(b"POST /save HTTP/1.1\r\nContent-Length: 60000\r\n\r\n{")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def _does_not_read(connection: socket.socket) -> None:
    connection.sendall(b"GET /status HTTP/1.1\r\n\r\n" * 100)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def _goes(connection: socket.socket) -> None:
    connection.close()


@pytest.mark.parametrize("leaves", [_resets, _does_not_read, _goes])
def test_who_goes_away_leaves_nothing(address: tuple[str, int], leaves: Callable[[socket.socket], None]) -> None:
    """Neither a thread nor a word in the log."""
    before = threading.active_count()
    for _ in range(20):
        leaves(socket.create_connection(address))

    _until(lambda: threading.active_count() <= before)


def test_who_is_slow_is_not_waited_for(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that drips holds a thread for a bounded time, however steadily; others are answered meanwhile."""
    monkeypatch.setattr(served, "_CONNECTION_SECONDS", 1.0)
    before, descriptors = threading.active_count(), _num_descriptors()
    slow = [socket.create_connection(address) for _ in range(100)]
    for number, connection in enumerate(slow):
        connection.sendall(
            (b"GET /status HTTP/1.1\r\nX: ", b"POST /save HTTP/1.1\r\nContent-Length: 9\r\n\r\n", b"G")[number % 3]
        )
    assert _ask(address, "GET", "/status", ALLOWED)[0] == http.HTTPStatus.OK

    def dripped() -> bool:
        for connection in slow:
            with suppress(OSError):  # it has been ended
                connection.sendall(b"a")
        return threading.active_count() <= before

    _until(dripped)
    for connection in slow:
        connection.close()
    _until(lambda: _num_descriptors() <= descriptors)


def test_many_connections_leave_handles_to_the_run(address: tuple[str, int]) -> None:
    """However many are open and say nothing, from whomever: the process keeps its handles, and answers others."""
    before = threading.active_count()
    with ExitStack() as held:
        for _ in range(300):
            held.enter_context(socket.create_connection(address))
        assert _ask(address, "GET", "/status", ALLOWED)[0] == http.HTTPStatus.OK
        assert threading.active_count() <= before + 256  # each connection has a thread and a handle

    _until(lambda: threading.active_count() <= before)


def test_a_signature_is_of_the_gang(address: tuple[str, int]) -> None:
    """A poll that is signed with the status token, or not at all, is refused before it is read."""
    connection = http.client.HTTPConnection(*address, timeout=SECONDS)
    connection.request("POST", "/poll", b"[" * 5000, {SIGNATURE: "0" * 64})

    assert connection.getresponse().status == http.HTTPStatus.UNAUTHORIZED
    connection.close()


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"[" * 5000, b'{"run": "run-0", "host": "x"}', b"\xff"])
def test_a_poll_that_is_none(address: tuple[str, int], body: bytes) -> None:
    """A signed message of another shape is refused, and does not reach the leader."""
    connection = http.client.HTTPConnection(*address, timeout=SECONDS)
    connection.request("POST", "/poll", body, {SIGNATURE: poll_signature(TOKENS.gang, body)})

    assert connection.getresponse().status == http.HTTPStatus.BAD_REQUEST
    connection.close()


def _num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _until(holds: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < ends_at
        time.sleep(0.02)
