"""Where the API server is and who we are to it, from a pod's service account or from a plain kubeconfig.

What takes more than that is left to the official client, in `official_client.py`: plugins that log in, several files,
proxies, and whatever cannot be read here, of which it says what is wrong. It takes 25 MiB, so it is imported only then.
"""

import base64
import logging
import os
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import getproxies

import yaml

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_SECONDS = 60.0  # after which a token is read again: the kubelet renews it in its file
_OF_CLUSTER = {
    *("server", "certificate-authority", "certificate-authority-data"),
    *("insecure-skip-tls-verify", "tls-server-name"),
}
_OF_USER = {"token", "tokenFile", "client-certificate", "client-certificate-data", "client-key", "client-key-data"}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Login:
    """How to reach an API server.

    Attributes:
        url: the server's address, as in `https://10.0.0.1:443`.
        authorization: returns the header Authorization of now; "" without one. Any thread may call it.
        tls: checks the server's certificate, and has ours; None for a server without TLS.
        server_name: the name in its certificate; "" for the one in the URL.
        proxy: the URL of the HTTP proxy on the way; "" without one.
    """

    url: str
    authorization: Callable[[], str] = lambda: ""
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    proxy: str = ""


class TokenFile:
    """The header of a token that lies in a file, in which another one will lie before it expires."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Read it; OSError if there is none. `clock` is in seconds."""
        self._path, self._clock = path, clock
        self._lock = threading.Lock()
        self._header, self._read_at = self._read(), clock()

    def __call__(self) -> str:
        """Return the header with the token that the file had within the last minute."""
        with self._lock:
            if self._clock() - self._read_at >= _TOKEN_SECONDS:
                try:
                    self._header, self._read_at = self._read(), self._clock()
                except OSError as error:  # the token before it holds for a while yet
                    _log.warning("the token cannot be read again: %s", error)
            return self._header

    def _read(self) -> str:
        return f"Bearer {self._path.read_text(encoding='utf-8').strip()}"


def read_login(kubeconfig: str) -> Login | None:
    """Return the login of `kubeconfig`; without one of the pod that this is, or of $KUBECONFIG or ~/.kube/config.

    Returns:
        None if the official client has to find it.
    """
    if getproxies().keys() - {"no"}:
        return None
    try:
        if not kubeconfig and "KUBERNETES_SERVICE_HOST" in os.environ:
            return login_of_pod()
        return _login_of_file(Path(kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config").expanduser())
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError):
        return None


def login_of_pod(account: Path = _ACCOUNT, clock: Callable[[], float] = time.monotonic) -> Login:
    """Return the login of the service account whose files are in `account`; OSError or KeyError if it is no pod."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    return Login(
        url=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        authorization=TokenFile(account / "token", clock),
        tls=ssl.create_default_context(cafile=account / "ca.crt"),
    )


def _login_of_file(path: Path) -> Login | None:
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    context = _named(config["contexts"], config["current-context"])["context"]
    cluster = _named(config["clusters"], context["cluster"])["cluster"]
    user = _named(config["users"], context["user"])["user"]
    if cluster.keys() - _OF_CLUSTER or user.keys() - _OF_USER:
        return None
    folder, url = path.resolve().parent, cluster["server"].rstrip("/")
    authorization = Login.authorization
    if token := user.get("token"):
        header = f"Bearer {token}"
        authorization = lambda: header  # noqa: E731  a constant
    elif file := user.get("tokenFile"):
        authorization = TokenFile(folder / file)
    return Login(
        url=url,
        authorization=authorization,
        tls=_tls(cluster, user, folder) if url.startswith("https:") else None,
        server_name=cluster.get("tls-server-name", ""),
    )


def _named(entries: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    found = [each for each in entries if each["name"] == name]
    return found[0]


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any], folder: Path) -> ssl.SSLContext:
    given, file = cluster.get("certificate-authority-data"), cluster.get("certificate-authority")
    if given:
        context = ssl.create_default_context(cadata=base64.b64decode(given).decode())
    else:  # without any, the authorities that this machine trusts
        context = ssl.create_default_context(cafile=folder / file if file else None)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    # OpenSSL reads a chain from files alone; those of the data are gone again before this returns.
    with tempfile.TemporaryDirectory() as made:
        chain, key = (_file(user, name, folder, Path(made)) for name in ("client-certificate", "client-key"))
        if chain:
            context.load_cert_chain(chain, key)
    return context


def _file(user: Mapping[str, Any], name: str, folder: Path, made: Path) -> Path | None:
    if given := user.get(f"{name}-data"):
        (path := made / name).touch(mode=0o600)
        path.write_bytes(base64.b64decode(given))
        return path
    return folder / user[name] if user.get(name) else None
