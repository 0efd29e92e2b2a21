"""Which errors of disks, network volumes and buckets may be transient, and how often to retry.

An error that may pass becomes a `StorageError` if it has not passed in time. One that may not, such as a permission, is
for a person to mend, and an error of the code that met it.
"""

import errno
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from shardwise.protocol.errors import ShardwiseError, StorageError

_Result = TypeVar("_Result")

WAITS_SECONDS = (1.0, 2.0, 4.0, 8.0)
"""Between two tries. What lasts longer is left to a restart, which waits for minutes."""

_PASSING_OF_FILES = frozenset(
    {
        *(errno.EIO, errno.EREMOTEIO, errno.ENXIO, errno.ENODEV, errno.ESTALE, errno.ENOTCONN, errno.ESHUTDOWN),
        *(errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.EBUSY, errno.EMFILE, errno.ENFILE),
    }
)
_PASSING = _PASSING_OF_FILES | frozenset(
    {
        *(errno.ETIMEDOUT, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE),
        *(errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET),
    }
)
_OS_ERROR = re.compile(r"os_error_code='(\d+)'")  # in TensorStore's messages
_ERRNO = re.compile(r"\[Errno (\d+)\]")  # in the text of an OSError
_PASSING_STATUS = re.compile(r"UNAVAILABLE|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED|ABORTED|UNAUTHENTICATED")
"""How TensorStore's messages begin. A token that was refused a moment ago is often granted the next."""
_PASSING_REPLIES = frozenset({408, 425, 429})  # and all from 500 on
_OF_A_NETWORK = frozenset(
    {
        "builtins.TimeoutError",
        "builtins.ConnectionError",
        "socket.gaierror",
        "aiohttp.ClientConnectionError",
        "aiohttp.ClientPayloadError",
        "botocore.ConnectionError",
        "botocore.HTTPClientError",
        "botocore.IncompleteReadError",
        "google.TransportError",
        "requests.ConnectionError",
        "requests.Timeout",
        "urllib3.HTTPError",
    }
)
"""Classes, or bases of them, by package. The libraries below fsspec have their own, and none is imported for this."""


def may_pass(error: BaseException) -> bool:
    """Return whether an error of a file system or store may pass, so that the same request may work later."""
    if any(f"{base.__module__.partition('.')[0]}.{base.__name__}" in _OF_A_NETWORK for base in type(error).__mro__):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _PASSING
    if found := _OS_ERROR.search(str(error)):
        return int(found[1]) in _PASSING
    reply = next((code for name in ("code", "status") if isinstance(code := getattr(error, name, None), int)), 0)
    if reply >= 500 or reply in _PASSING_REPLIES:
        return True
    return isinstance(error, ValueError) and bool(_PASSING_STATUS.match(str(error)))


def reason_may_pass(reason: str) -> bool:
    """Return whether another process gives an error of a file system that may pass as the reason of a refusal.

    That the process itself could not be reached, which has an errno too, says nothing of its storage.
    """
    found = _ERRNO.search(reason)
    return found is not None and int(found[1]) in _PASSING_OF_FILES


def in_words(error: Exception, words: str, otherwise: type[ShardwiseError]) -> ShardwiseError:
    """Return the error to raise for one that has not passed: a `StorageError`, or `otherwise` if a person must act."""
    return StorageError(words) if may_pass(error) else otherwise(words)


def reason_of(error: Exception) -> str:
    """Return why a file, a folder or a bucket failed, with the kind of error: each library has classes of its own."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else f"{error}"
    return f"{type(error).__name__}: {reason}"


def with_retries(act: Callable[[], _Result], beat: Callable[[], None] = lambda: None) -> _Result:
    """Return what `act` returns; try it again while its error may pass. It must be safe to run twice.

    `beat` is called before each further try.
    """
    for wait_seconds in WAITS_SECONDS:
        try:
            return act()
        except Exception as error:
            if not may_pass(error):
                raise
            with suppress(OSError):  # the log may be on the same full disk
                sys.stderr.write(f"storage: {first_line(error)}; trying again in {wait_seconds:g} s\n")
        time.sleep(wait_seconds)
        beat()
    return act()


@contextmanager
def passing_over() -> Iterator[None]:
    """Ignore transient errors of writes that are repeated or not essential."""
    try:
        yield
    except OSError as error:
        if not may_pass(error):
            raise


def first_line(error: BaseException) -> str:
    """Return the first line of an error, without the description of the whole store that TensorStore appends."""
    text = str(error).strip().partition("\n")[0]
    for appended in (" [tensorstore_spec=", " [source locations=", " [http_response_body=", " [os_error_code="):
        text = text.partition(appended)[0]
    return text
