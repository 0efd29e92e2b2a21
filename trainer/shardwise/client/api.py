"""The API server, as kubeconfig says: requests as plain data, refusals as errors for people.

Only this module imports `kubernetes`. Its typed models are not used: objects are read by their own fields.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import urlencode

from kubernetes import config
from kubernetes.client.configuration import Configuration
from kubernetes.client.rest import RESTClientObject
from kubernetes.config import ConfigException, kube_config
from urllib3 import BaseHTTPResponse, Timeout
from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError
from yaml import YAMLError

from shardwise.protocol.errors import ClusterError

_CONNECT_SECONDS, _ANSWER_SECONDS = 5.0, 30.0
_WAITS_SECONDS = (1.0, 2.0, 4.0, 8.0, 15.0, *[30.0] * 9)
"""Between two tries of one who can wait; five minutes together, in which the control plane of a cluster is upgraded."""
# As those of the operator: a log that is followed may be silent for hours, and only the kernel notices that its server
# has vanished. Not every system has all of them.
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 9))
_FIRST_ERROR, _UNAUTHORIZED, _NOT_FOUND, _TOO_MANY, _FIRST_OF_SERVER = 300, 401, 404, 429, 500  # HTTP's own numbers
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_Said = TypeVar("_Said")
_MANAGER = {"fieldManager": "shardwise"}


class NotFoundError(ClusterError, exit_code=ClusterError.exit_code):
    """What was asked for is not there."""


class AwayError(ClusterError, exit_code=ClusterError.exit_code):
    """The API server does not answer, or cannot do now what it does at other times."""


class CutOffError(ClusterError, exit_code=ClusterError.exit_code):
    """A log has begun, and the connection was lost before its end."""


class _Request(NamedTuple):
    method: str
    path: str
    query: Mapping[str, str]
    body: Mapping[str, Any] | None = None
    content_type: str = "application/json"
    stream: bool = False


class Api:
    """One API server, as one person."""

    def __init__(self, kubeconfig: str | None, context: str | None) -> None:
        """Read how to reach it, from the file, $KUBECONFIG or ~/.kube/config, else as the pod that this is.

        Raises:
            ClusterError: none of them exists or can be read, or the context is not in it.
        """
        self._kubeconfig, self._context = kubeconfig, context
        self.namespace, self._context = self._log_in()
        self.waits_seconds: tuple[float, ...] = ()
        self._has_answered = False

    def _log_in(self) -> tuple[str, str | None]:
        """Read how to reach the server, and as whom: a token may have been renewed. Return namespace and context."""
        configuration = Configuration()
        try:
            found = _load(self._kubeconfig, self._context, configuration)
        # The last two are what the client makes of a file that is none of its form.
        except (ConfigException, OSError, YAMLError, TypeError, ValueError) as error:
            raise ClusterError(f"no cluster to talk to: {error}; give --context, or set KUBECONFIG") from error
        configuration.socket_options = [*HTTPConnection.default_socket_options, *_kept_alive()]
        self._configuration, self._pool = configuration, RESTClientObject(configuration).pool_manager
        return found

    def patient(self) -> Self:
        """Return one that waits for minutes while the server, which must have answered before, is away."""
        made = copy(self)
        made.waits_seconds = _WAITS_SECONDS
        return made

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Return an object, or a list of them."""
        return self._send_for_object(_Request("GET", path, query))

    def patch(self, path: str, body: Mapping[str, Any], content_type: str) -> dict[str, Any]:
        """Change an object, by a patch of this type; one that is applied by force may be new."""
        query = _MANAGER | ({"force": "true"} if content_type == APPLY else {})
        return self._send_for_object(_Request("PATCH", path, query, body, content_type))

    def delete(self, path: str) -> None:
        """Delete an object, and what it owns."""
        self._send_for_object(_Request("DELETE", path, {"propagationPolicy": "Background"}))

    def lines(self, path: str, **query: str) -> Iterator[str]:
        """Yield the lines of a log as they come, each with its newline; CutOffError if the connection is cut."""
        answer, rest = self._send(partial(self._send_once, _Request("GET", path, query, stream=True))), b""
        try:
            for chunk in answer.stream():
                *whole, rest = (rest + chunk).split(b"\n")
                yield from (line.decode("utf-8", "replace") + "\n" for line in whole)
        except HTTPError as error:
            raise CutOffError(f"the log was cut off here: {error}; ask for it again") from error
        finally:
            answer.release_conn()
        if rest:
            yield rest.decode("utf-8", "replace") + "\n"

    def _send_for_object(self, request: _Request) -> dict[str, Any]:
        return self._send(lambda: self._object_in(self._send_once(request)))

    def _send(self, once: Callable[[], _Said]) -> _Said:
        """Return what `once` does; one who can wait does it again while the server is away."""
        for tried, wait_seconds in enumerate(self.waits_seconds if self._has_answered else ()):
            try:
                return once()
            except AwayError as error:
                if not tried:
                    sys.stderr.write(f"{error}; trying again for up to 5 minutes\n")
            time.sleep(wait_seconds)
        said = once()
        self._has_answered = True
        return said

    def _send_once(self, request: _Request) -> BaseHTTPResponse:
        answer = self._answer_to(request)
        if answer.status == _UNAUTHORIZED:
            answer.drain_conn()
            self._log_in()  # in the same context, whichever is the current one by now
            answer = self._answer_to(request)
        if answer.status >= _FIRST_ERROR:
            raise _kind(answer.status)(_reason(answer))
        return answer

    def _answer_to(self, request: _Request) -> BaseHTTPResponse:
        host, query = self._configuration.host, f"?{urlencode(request.query)}" if request.query else ""
        token = self._configuration.get_api_key_with_prefix("BearerToken")
        headers = {"Accept": "application/json, */*", "Content-Type": request.content_type, "User-Agent": "shardwise"}
        try:
            return self._pool.request(
                request.method,
                f"{host}{request.path}{query}",
                headers=headers | ({"Authorization": token.strip()} if token else {}),
                body=None if request.body is None else json.dumps(request.body).encode(),
                timeout=Timeout(connect=_CONNECT_SECONDS, read=None if request.stream else _ANSWER_SECONDS),
                preload_content=not request.stream,
                redirect=False,
                retries=False,
            )
        except HTTPError as error:
            raise AwayError(f"{host} does not answer: {error}") from error

    def _object_in(self, answer: BaseHTTPResponse) -> dict[str, Any]:
        with suppress(ValueError):
            if isinstance(said := json.loads(answer.data), dict):
                return said
        host = self._configuration.host
        raise AwayError(f"{host} answers as no API server does; it may be a page for logging in")


def _kept_alive() -> Iterator[tuple[int, int, int]]:
    yield socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            yield socket.IPPROTO_TCP, getattr(socket, name), value


def _kind(status: int) -> type[ClusterError]:
    if status == _TOO_MANY or status >= _FIRST_OF_SERVER:
        return AwayError
    return NotFoundError if status == _NOT_FOUND else ClusterError


def _load(kubeconfig: str | None, context: str | None, configuration: Configuration) -> tuple[str, str | None]:
    """Read how to reach the cluster; return the namespace, of the context or the pod that this is, and the context."""
    path = kubeconfig or kube_config.KUBE_CONFIG_DEFAULT_LOCATION or "~/.kube/config"  # $KUBECONFIG may be empty
    files = kube_config.KubeConfigMerger(path)
    if files.config is None:
        if kubeconfig or context or "KUBERNETES_SERVICE_HOST" not in os.environ:
            raise ConfigException(f"no kubeconfig at {path}")
        config.load_incluster_config(configuration)
        return _POD_NAMESPACE.read_text(encoding="utf-8"), None
    loader = kube_config.KubeConfigLoader(
        files.config, active_context=context, config_base_path=None, config_persister=files.save_changes
    )
    loader.load_and_set(configuration)
    found = loader.current_context
    return str(found["context"].get("namespace") or "default"), found["name"]


def _reason(answer: BaseHTTPResponse) -> str:
    """Return what the API server says, which for a refused job is every mistake in it."""
    try:
        return str(json.loads(answer.data)["message"])
    except (ValueError, KeyError, TypeError):
        return f"{answer.status} {answer.reason}"
