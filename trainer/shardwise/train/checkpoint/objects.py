"""Read the objects of an S3 bucket straight into the memory that is meant for them, over connections that are kept.

TensorStore hands over an object as bytes of its own: two copies and fresh memory for each chunk, which take longer than
the network does (docs/decisions/0037). Here botocore signs an address, and the body is read from its socket into its
place. Only what is answered plainly comes this way. A bucket of another region, a proxy, a refusal, a connection that
breaks: the caller asks again through TensorStore, which knows what to do about it, and whose errors a person sees.
"""

import http.client
import os
import ssl
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import Any, Self
from urllib.parse import SplitResult, urlsplit

import google_crc32c
import numpy as np

_SIGNED_SECONDS = 3600
_SILENT_SECONDS = 60.0
_PIECE_BYTES = 256 << 10
"""What is read of an object at once: it is still in the core's cache when its checksum is made."""
_MAKING = threading.Lock()
"""Whoever comes while the client is made waits for it, instead of making another."""
_PLAIN = frozenset({http.client.OK, http.client.PARTIAL_CONTENT})

Sign = Callable[[str, dict[str, str], int], str]
"""(operation, its parameters, for how many seconds) -> a signed address."""


class Objects:
    """The objects of one bucket, for several threads at once, for the length of a `with` statement."""

    def __init__(self, bucket: str) -> None:
        """Nothing is sent yet."""
        import botocore.exceptions  # noqa: PLC0415  half a second, which a run without a bucket need not wait for

        self._bucket = bucket
        self._sign = signer()
        self._not_plain = (OSError, http.client.HTTPException, botocore.exceptions.BotoCoreError)
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._is_plain = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._idle:
            connection.close()

    def read(self, key: str, start: int, memory: np.ndarray, num_more: int) -> tuple[int, bytes] | None:
        """Fill `memory`, uint8[bytes], from byte `start` on; return its crc32c and the `num_more` bytes behind it.

        None if that was not answered plainly, as is nothing after it; `memory` may have been written to.
        """
        found = self._read(key, start, memory, num_more) if self._is_plain else None
        if found is None:
            self._is_plain = False
        return found

    def _read(self, key: str, start: int, memory: np.ndarray, num_more: int) -> tuple[int, bytes] | None:
        last = start + memory.size + num_more - 1
        try:
            url = urlsplit(self._sign("get_object", {"Bucket": self._bucket, "Key": key}, _SIGNED_SECONDS))
            if _is_proxied(url):
                return None
            with self._answer(url, {"Range": f"bytes={start}-{last}"}) as answer:
                if answer.status not in _PLAIN or answer.length != last - start + 1:
                    return None
                return _into(answer, memory), answer.read()
        except self._not_plain:
            return None

    @contextmanager
    def _answer(self, url: SplitResult, headers: dict[str, str]) -> Iterator[http.client.HTTPResponse]:
        """Yield the answer to a request; the connection is kept if its body was read to the end."""
        with self._lock:
            connection = self._idle.pop() if self._idle else self._connection(url)
        try:
            connection.request("GET", f"{url.path}?{url.query}", headers=headers)
            answer = connection.getresponse()
            yield answer
        except BaseException:
            connection.close()
            raise
        if not answer.isclosed():
            connection.close()  # which a further request opens again
        with self._lock:
            self._idle.append(connection)

    def _connection(self, url: SplitResult) -> http.client.HTTPConnection:
        if url.scheme == "http":
            return http.client.HTTPConnection(url.netloc, timeout=_SILENT_SECONDS)
        return http.client.HTTPSConnection(url.netloc, timeout=_SILENT_SECONDS, context=self._trust)

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        """What all connections trust: reading the certificates takes as long as a small chunk."""
        return ssl.create_default_context()


def aws_settings() -> tuple[tuple[str, str], ...]:
    """Return the variables by which a bucket's endpoint and credentials are found: other ones are other clients."""
    return tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_")))


def signer() -> Sign:
    """Return botocore's signing of addresses, which finds the endpoint and the credentials, and renews them.

    The first call takes up to half a second, which a thread can spend beside other work.
    """
    with _MAKING:
        return _signer(aws_settings())


@lru_cache(maxsize=1)
def _signer(_settings: tuple[tuple[str, str], ...]) -> Sign:
    import botocore.session  # noqa: PLC0415  as above
    from botocore.config import Config  # noqa: PLC0415  as above

    client: Any = botocore.session.get_session().create_client("s3", config=Config(signature_version="s3v4"))
    sign: Sign = client.generate_presigned_url
    return sign


def _is_proxied(url: SplitResult) -> bool:
    return url.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(url.netloc)


def _into(answer: http.client.HTTPResponse, memory: np.ndarray) -> int:
    """Read the first bytes of a body into `memory`, and return their crc32c."""
    checksum, done = checksummed(memory, lambda piece, _: answer.readinto(piece.data))
    if done < memory.size:
        raise http.client.IncompleteRead(b"", memory.size - done)
    return checksum


def checksummed(memory: np.ndarray, read: Callable[[np.ndarray, int], int]) -> tuple[int, int]:
    """Fill `memory`, and return the crc32c of what came and its number of bytes.

    It is filled piece by piece: each is still in the core's cache when its checksum is made.

    Args:
        memory: uint8 [byte].
        read: puts the bytes from a place on into a piece, and returns how many; none at the end of all there are.

    """
    checksum = done = 0
    while done < memory.size:
        piece = memory[done : done + _PIECE_BYTES]
        num_bytes = read(piece, done)
        if num_bytes == 0:
            break
        checksum = google_crc32c.extend(checksum, piece[:num_bytes])
        done += num_bytes
    return checksum, done
