"""How to reach the API server: its address, its certificate, our credentials. Only this module imports `kubernetes`.

That client reads kubeconfig files and a pod's service account, renews tokens, and has a pool of connections with
keepalive; its models and calls are not used.
"""

import os
import threading
from collections.abc import Mapping
from urllib.parse import urlencode, urlsplit

from kubernetes import config
from kubernetes.client.configuration import Configuration
from kubernetes.client.rest import RESTClientObject
from urllib3 import BaseHTTPResponse, Timeout
from urllib3.exceptions import HTTPError

from shardwise_operator.runtime.errors import UnreachableError

_CONNECT_SECONDS = 5.0
_POOL_SIZE = 64


class Connection:
    """A pool of connections to one API server, shared by all threads."""

    def __init__(self, configuration: Configuration) -> None:
        """Take how to reach the server; nothing is sent yet."""
        configuration.keep_alive = True  # so that the kernel notices a peer that has vanished
        configuration.connection_pool_maxsize = _POOL_SIZE
        self._configuration = configuration
        # The pool of the one server: the manager of all would look for it anew at each request.
        self._pool = RESTClientObject(configuration).pool_manager.connection_from_url(self.host)
        self._prefix = urlsplit(self.host).path.rstrip("/")
        self._renewing = threading.Lock()

    @property
    def host(self) -> str:
        """The server's address, as in `https://10.0.0.1:443`."""
        return str(self._configuration.host)

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
    ) -> BaseHTTPResponse:
        """Send a request once: the caller tries again, with a backoff. With `stream` the body is left to be read.

        Raises:
            UnreachableError: no answer within `read_seconds` of silence, or no connection.
        """
        headers = {"Accept": accept, "Content-Type": content_type, "User-Agent": "shardwise-operator"}
        try:
            answer: BaseHTTPResponse = self._pool.urlopen(
                method,
                f"{self._prefix}{path}?{urlencode(query)}" if query else self._prefix + path,
                headers=headers | self._authorization(),
                body=body,
                timeout=Timeout(connect=_CONNECT_SECONDS, read=read_seconds),
                preload_content=not stream,
                redirect=False,
                retries=False,
            )
        except HTTPError as error:
            raise UnreachableError(f"{method} {path} at {self.host}: {error}") from error
        return answer

    def _authorization(self) -> dict[str, str]:
        with self._renewing:
            token = self._configuration.get_api_key_with_prefix("BearerToken")  # read again from its file once a minute
        return {"Authorization": token.strip()} if token else {}


def connect(kubeconfig: str = "") -> Connection:
    """Connect as `kubeconfig` says; without one as the pod that this is, or by $KUBECONFIG or ~/.kube/config.

    Raises:
        kubernetes.config.ConfigException: none of them exists, or it cannot be read.
    """
    configuration = Configuration()
    if not kubeconfig and "KUBERNETES_SERVICE_HOST" in os.environ:
        config.load_incluster_config(configuration)
    else:
        config.load_kube_config(kubeconfig or None, client_configuration=configuration)
    return Connection(configuration)
