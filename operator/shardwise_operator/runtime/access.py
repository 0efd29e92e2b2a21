"""Who may read what this process serves: a token in a file, and the certificate of TLS.

Both are files of a Secret, which is changed without a restart: they are read again.
"""

import hmac
import logging
import ssl
from pathlib import Path
from socket import socket

_MIN_TOKEN_BYTES = 32

_log = logging.getLogger(__name__)


class TokenFile:
    """The token that a file holds."""

    def __init__(self, path: Path) -> None:
        """Name the file; ValueError if it holds no token of 32 bytes, OSError if it is not there."""
        self._path = path
        if len(found := path.read_bytes().strip()) < _MIN_TOKEN_BYTES:
            raise ValueError(f"{path}: given {len(found)} bytes, expected a token of at least {_MIN_TOKEN_BYTES}")

    def allows(self, given: bytes) -> bool:
        """Return whether this is the token that the file holds now; nothing is while it holds none."""
        try:
            token = self._path.read_bytes().strip()
        except OSError as error:
            _log.warning("nobody may read what %s opens: %s", self._path, error)
            return False
        return len(token) >= _MIN_TOKEN_BYTES and hmac.compare_digest(given, token)


class Certificate:
    """A certificate and its key, as a Secret of the type kubernetes.io/tls has them in a folder."""

    def __init__(self, folder: Path) -> None:
        """Read them; OSError if they are not there or do not belong together."""
        self._chain, self._key = folder / "tls.crt", folder / "tls.key"
        self._stamp = self._stamps()
        self._context = self._loaded()

    def wrap(self, connection: socket) -> ssl.SSLSocket:
        """Return the connection with TLS around it, of the files as they are now; the first read shakes hands."""
        try:
            if (stamp := self._stamps()) != self._stamp:
                self._context, self._stamp = self._loaded(), stamp
        except OSError as error:  # half of a change: the certificate before it holds until the rest is there
            _log.warning("the certificate in %s cannot be read: %s", self._chain.parent, error)
        return self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # TLS 1.2 at least
        context.load_cert_chain(self._chain, self._key)
        return context

    def _stamps(self) -> tuple[int, int]:
        return self._chain.stat().st_mtime_ns, self._key.stat().st_mtime_ns
