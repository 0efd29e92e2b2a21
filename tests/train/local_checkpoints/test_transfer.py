"""The files of local checkpoints between hosts: for whoever has the token, those of checkpoints, and whole or not."""

import http.client
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardwise.train.local_checkpoints import transfer
from shardwise.train.local_checkpoints.transfer import FileServer, fetch_files, token_of

NAME = "step-00000008/arrays/params.blocks.norm/c.0.1"
TOKEN = token_of("gang", 3)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FileServer]:
    """A host's folder with one file in a checkpoint, and one beside."""
    file = tmp_path / "host" / NAME
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(range(256)) * 8192)
    (tmp_path / "host" / "step-00000008" / "manifest.json").write_text("{}")
    (tmp_path / "secret").write_text("of the host")
    with FileServer("127.0.0.1", tmp_path / "host", TOKEN) as serving:
        yield serving


def test_a_file_comes_as_it_is(server: FileServer, tmp_path: Path) -> None:
    """With the folders that it lies in, and nothing else beside it."""
    fetched: list[int] = []
    names = [NAME, "step-00000008/manifest.json"]
    fetch_files(tmp_path / "own", TOKEN, {server.address: names}, lambda: fetched.append(1))
    assert (tmp_path / "own" / NAME).read_bytes() == (tmp_path / "host" / NAME).read_bytes()
    assert sorted(path.name for path in (tmp_path / "own").rglob("*") if path.is_file()) == ["c.0.1", "manifest.json"]
    assert len(fetched) == 2


@pytest.mark.parametrize("token", ["", "gang", token_of("gang", 2), token_of("other", 3)])
def test_nobody_else_reads(server: FileServer, tmp_path: Path, token: str) -> None:
    """The token is that of this attempt of this gang: an older attempt's opens nothing."""
    with pytest.raises(OSError, match="401"):
        fetch_files(tmp_path / "own", token, {server.address: [NAME]})
    assert not (tmp_path / "own" / NAME).exists()


@pytest.mark.parametrize(
    "path",
    [
        "/step-00000008/arrays/../../../secret",
        "/step-00000008/../../secret",
        "/step-00000008/arrays/..%2f..%2f../secret",
        "//etc/passwd",
        "/step-00000008/",
        "/step-00000008/parts.json",
        "/step-00000009/manifest.json",
        "/step-00000008/arrays/params.blocks.norm/c.9",
    ],
)
def test_no_name_leads_out_of_a_checkpoint(server: FileServer, path: str) -> None:
    """Only names that a checkpoint has are looked for."""
    host, _, port = server.address.partition(":")
    connection = http.client.HTTPConnection(host, int(port))
    connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (404, b"")
    connection.close()


def test_who_holds_all_connections_keeps_nothing_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are turned away, and the server ends while they are still held."""
    monkeypatch.setattr(transfer, "_MOST_CONNECTIONS", 2)
    monkeypatch.setattr(transfer, "_ROOM_SECONDS", 0.01)
    with FileServer("127.0.0.1", tmp_path, TOKEN) as serving:
        host, _, port = serving.address.partition(":")
        held = [socket.create_connection((host, int(port))) for _ in range(2)]
        for each in held:
            each.sendall(b"GET /")
        with pytest.raises(OSError, match=serving.address):
            fetch_files(tmp_path / "own", TOKEN, {serving.address: [NAME]})
    for each in held:
        each.close()


def test_a_file_that_is_cut_short_is_none(tmp_path: Path) -> None:
    """What a dying host has sent of it does not look like the file."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of it")

        dying = threading.Thread(target=answer)
        dying.start()
        address = "{}:{}".format(*listening.getsockname())
        with pytest.raises(OSError, match=re.escape(f"{address}: {NAME} was cut short")):
            fetch_files(tmp_path / "own", TOKEN, {address: [NAME]})
        dying.join()
    assert not (tmp_path / "own" / NAME).exists()


def test_a_host_that_is_gone_is_named(tmp_path: Path) -> None:
    """By its address."""
    with socket.create_server(("127.0.0.1", 0)) as closing:
        address = "{}:{}".format(*closing.getsockname())
    with pytest.raises(OSError, match=f"{address}: .*refused"):
        fetch_files(tmp_path / "own", TOKEN, {address: [NAME]})
