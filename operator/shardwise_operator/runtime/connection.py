"""The way to the API server: HTTP connections that are kept, each for one request at a time.

Python's own client is the one that is used: a request takes less than half of what a pool of urllib3 takes for it.
"""

import http.client
import select
import socket
import weakref
from base64 import b64encode
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from email.message import Message
from functools import cached_property
from urllib.parse import SplitResult, unquote, urlencode, urlsplit

from shardwise_operator.runtime.errors import UnreachableError
from shardwise_operator.runtime.login import Login, read_login

_CONNECT_SECONDS = 5.0
_CHUNK_BYTES = 1 << 16
# So that the kernel notices a peer that has vanished, as soon as clients of Kubernetes in Go do.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 9))
# What breaks off: the socket, or the HTTP on it.
BROKEN = (OSError, http.client.HTTPException)


class Answer:
    """The answer to one request, of which the body may still have to be read.

    Attributes:
        status: its HTTP status.
        reason: the words of that.
        headers: its headers.
    """

    def __init__(self, channel: "_Channel", idle: "deque[_Channel]") -> None:
        """Take what comes back on `channel`, which is idle again once all of it is read."""
        self._socket = channel.sock  # which the channel lets go if this is its last answer
        self._response, self._channel, self._idle = channel.getresponse(), channel, idle
        self._whole = False
        self.status, self.reason = self._response.status, self._response.reason
        self.headers: Message = self._response.headers

    @cached_property
    def data(self) -> bytes:
        """The body; one of `BROKEN` if it breaks off."""
        body = self._response.read()
        self._end()
        return body

    def chunks(self) -> Iterator[bytes]:
        """Yield the body as it comes; one of `BROKEN` if it breaks off."""
        while chunk := self._response.read1(_CHUNK_BYTES):
            yield chunk
        self._end()

    def close(self) -> None:
        """Read no more: the connection is closed unless all was read."""
        if not self._whole:
            self._response.close()
            self._channel.close()

    def shut(self) -> None:
        """End the reading, from any thread."""
        with suppress(OSError, ValueError):  # it has ended by itself
            self._socket.shutdown(socket.SHUT_RD)

    def _end(self) -> None:
        self._idle.append(self._channel)
        self._whole = True


class Connection:
    """The connections to one API server, shared by all threads."""

    def __init__(self, login: Login) -> None:
        """Take how to reach the server; nothing is sent yet. ValueError if the proxy is not spoken with by HTTP."""
        if login.proxy and not login.proxy.startswith("http://"):
            there = urlsplit(login.proxy)  # its user and password are for no log
            place = f"{there.scheme}://{there.netloc.rpartition('@')[2]}"
            raise ValueError(f"the proxy {place}: expected one as in http://proxy:3128")
        self._login = login
        self._prefix = urlsplit(login.url).path.rstrip("/")
        self._idle: deque[_Channel] = deque()  # the last one used comes first, so that few are kept alive
        weakref.finalize(self, _close_all, self._idle).atexit = False  # threads may still ask when the process ends

    @property
    def host(self) -> str:
        """The server's address, as in `https://10.0.0.1:443`."""
        return self._login.url

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        body: bytes | None,
        content_type: str,
        read_seconds: float,
        accept: str = "application/json",
        stream: bool = False,
    ) -> Answer:
        """Send a request once: the caller tries again, with a backoff. With `stream` the body is left to be read.

        Raises:
            UnreachableError: no answer within `read_seconds` of silence, or no connection.
        """
        headers = {"Accept": accept, "Content-Type": content_type, "User-Agent": "shardwise-operator"}
        if authorization := self._login.authorization():
            headers["Authorization"] = authorization
        target = f"{self._prefix}{path}?{urlencode(query)}" if query else self._prefix + path
        channel = self._channel()
        try:
            channel.open(read_seconds)
            channel.request(method, target, body, headers)
            answer = Answer(channel, self._idle)
            if not stream:
                _ = answer.data
        except BROKEN as error:
            channel.close()
            raise UnreachableError(f"{method} {path} at {self.host}: {error}") from error
        return answer

    def _channel(self) -> "_Channel":
        with suppress(IndexError):
            while (channel := self._idle.pop()).dropped():
                channel.close()
            return channel
        return _Channel(self._login)


def _authorized(proxy: SplitResult) -> dict[str, str]:
    """Return the header that logs in to a proxy whose address has a user; none for any other."""
    if proxy.username is None:
        return {}
    words = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(words.encode()).decode()}"}


class _Channel(http.client.HTTPConnection):
    """One connection."""

    def __init__(self, login: Login) -> None:
        url, proxy = urlsplit(login.url), urlsplit(login.proxy)
        assert url.hostname is not None
        port = url.port or (80 if login.tls is None else 443)
        super().__init__(proxy.hostname or url.hostname, (proxy.port or 80) if login.proxy else port)
        if login.proxy:
            self.set_tunnel(url.hostname, port, headers=_authorized(proxy))
        self._tls, self._name = login.tls, login.server_name or url.hostname

    def connect(self) -> None:
        """Connect, and shake hands."""
        super().connect()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            self.sock.setsockopt(socket.IPPROTO_TCP, option, value)
        if self._tls:
            self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._name)

    def open(self, read_seconds: float) -> None:
        """Connect it if it is not, and set how long it waits for each packet."""
        if self.sock is None:
            self.timeout = _CONNECT_SECONDS
            self.connect()
        self.sock.settimeout(read_seconds)

    def dropped(self) -> bool:
        """Return whether the server has closed it since, or says what nobody has asked for."""
        if self.sock is None:
            return True
        waiting = select.poll()
        waiting.register(self.sock, select.POLLIN)
        return bool(waiting.poll(0))


def _close_all(channels: "deque[_Channel]") -> None:
    with suppress(IndexError):
        while True:  # an answer that is being read may still give its own back
            channels.pop().close()


def connect(kubeconfig: str = "") -> Connection:
    """Connect as `kubeconfig` says; without one as the pod that this is, or by $KUBECONFIG or ~/.kube/config.

    Raises:
        kubernetes.config.ConfigException: none of them exists, or it cannot be read.
    """
    login = read_login(kubeconfig)
    if login is None:
        from shardwise_operator.runtime.official_client import official_login  # noqa: PLC0415  it takes 25 MiB

        login = official_login(kubeconfig)
    return Connection(login)
