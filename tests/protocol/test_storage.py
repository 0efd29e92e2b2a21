"""Which errors of storage may pass, and that what they stop is tried again."""

import errno
import os
import socket
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
from botocore.exceptions import EndpointConnectionError, NoCredentialsError

from shardwise.protocol import storage
from shardwise.protocol.errors import DataError, StorageError


class Reply(Exception):  # noqa: N818  as gcsfs has it
    """An error of a web server, whose number libraries give in `code` or `status`."""

    def __init__(self, code: int) -> None:
        self.code = code


@pytest.mark.parametrize(
    "error",
    [
        *(OSError(number, os.strerror(number)) for number in (errno.EIO, errno.ENOSPC, errno.ESTALE, errno.ENOTCONN)),
        TimeoutError(),
        ConnectionResetError(),
        socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
        EndpointConnectionError(endpoint_url="http://x"),
        ValueError("UNAVAILABLE: All 5 attempts failed: 503"),
        ValueError("DEADLINE_EXCEEDED: CURL error[28]"),
        ValueError("ABORTED: All 5 retry attempts failed"),
        ValueError("UNAUTHENTICATED: the metadata server is not ready"),
        ValueError("UNKNOWN: Error reading: Input/output error [os_error_code='5']"),
        ValueError("RESOURCE_EXHAUSTED: Error writing: No space left on device [os_error_code='28']"),
    ],
    ids=repr,
)
def test_what_may_pass(error: Exception) -> None:
    """Faults of disks, networks and servers, full disks and tokens that are not there yet say nothing of the job."""
    assert storage.may_pass(error)
    assert isinstance(storage.in_words(error, "words", DataError), StorageError)


@pytest.mark.parametrize(
    "error",
    [
        *(OSError(number, os.strerror(number)) for number in (errno.ENOENT, errno.EACCES, errno.EROFS, errno.EFBIG)),
        NoCredentialsError(),
        ValueError("PERMISSION_DENIED: no access"),
        ValueError("NOT_FOUND: NoSuchBucket"),
        ValueError("FAILED_PRECONDITION: Not a directory [os_error_code='20']"),
        ValueError("the reading was ABORTED"),
        ModuleNotFoundError("gcsfs"),
    ],
    ids=repr,
)
def test_what_a_person_must_change(error: Exception) -> None:
    """What is asked for is not there, not allowed or wrong, today and tomorrow."""
    assert not storage.may_pass(error)
    assert isinstance(storage.in_words(error, "words", DataError), DataError)


@pytest.mark.parametrize(
    ("code", "passes"), [(503, True), (500, True), (429, True), (408, True), (403, False), (404, False)]
)
def test_replies(code: int, *, passes: bool) -> None:
    """A server's own faults, and its asking for patience, may pass."""
    assert storage.may_pass(Reply(code)) == passes


@pytest.mark.parametrize(("failures", "comes"), [(0, True), (2, True), (3, False)])
def test_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failures: int, *, comes: bool
) -> None:
    """As often as there are waits, each told to the log and to who watches; then the error comes through."""
    monkeypatch.setattr(storage, "WAITS_SECONDS", (0.0, 0.0))
    left, beats = [OSError(errno.EIO, "Input/output error")] * failures, []

    def act() -> str:
        if left:
            raise left.pop()
        return "done"

    if comes:
        assert storage.with_retries(act, lambda: beats.append(1)) == "done"
    else:
        with pytest.raises(OSError, match="Input/output error"):
            storage.with_retries(act)
    assert len(beats) == (failures if comes else 0)
    assert capsys.readouterr().err.count("trying again") == min(failures, 2)


def test_it_is_tried_again_where_nothing_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log may lie on the same full disk: that it takes no words must not end the tries."""
    monkeypatch.setattr(storage, "WAITS_SECONDS", (0.0,))
    act = Mock(side_effect=[OSError(errno.ENOSPC, "No space left on device"), "done"])

    with Path("/dev/full").open("w", buffering=1) as full, monkeypatch.context() as failing:
        failing.setattr("sys.stderr", full)
        assert storage.with_retries(act) == "done"
        with suppress(OSError):
            full.close()


def test_what_cannot_pass_is_not_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    """A person waits for it."""
    with pytest.raises(FileNotFoundError):
        storage.with_retries(Path("/nowhere").stat)
    assert capsys.readouterr().err == ""


def test_an_error_in_one_line() -> None:
    """Without what TensorStore appends, which is its whole description of a store."""
    error = ValueError('NOT_FOUND: no such file [tensorstore_spec={"driver": "zarr3"}]\nand more')

    assert storage.first_line(error) == "NOT_FOUND: no such file"
    assert storage.first_line(ValueError("plain")) == "plain"
