"""Ports for what another process will listen on."""

import socket
from pathlib import Path

import pytest

from shardwise.launcher.system import ports
from shardwise.launcher.system.ports import free_port


def test_a_port_in_use_is_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two ports the free one is found, whichever is tried first."""
    with socket.create_server(("127.0.0.1", 0)) as held, socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        free = other.getsockname()[1]
        other.close()
        monkeypatch.setattr(ports, "_OURS", (held.getsockname()[1], free))
        assert {free_port("127.0.0.1") for _ in range(20)} == {free}


def test_no_outgoing_connection_takes_it() -> None:
    """The port is below the range from which this system gives ports to outgoing connections."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="utf-8").split()[0])

    assert free_port("127.0.0.1") < first
