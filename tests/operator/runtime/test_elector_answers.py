"""A Lease whose answers come from something else: without a server, which gives none of these."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from shardwise_operator.runtime.elector import Elector, Timing

LEASE = {"metadata": {"uid": "u", "resourceVersion": "1", "name": "lease", "namespace": "ns"}, "spec": {}}


class Server:
    """Takes every write, and answers some of them as a proxy may."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer
        self.strange = 0
        self.renewed = 0

    def get(self, *_: object) -> dict[str, Any]:
        """Return a Lease that nobody holds."""
        return LEASE

    def replace(self, _: object, lease: dict[str, Any]) -> dict[str, Any]:
        """Answer with the Lease, or with something else."""
        assert lease["metadata"]["name"] == "lease"  # the address of a write is made of it
        if self.strange:
            self.strange -= 1
            return self.answer
        self.renewed += 1
        return lease


def _elector(server: Server, lost: threading.Event, timing: Timing) -> Elector:
    """Return one that renews through this server, and sets `lost` when it no longer leads."""
    return Elector(
        server,  # type: ignore[arg-type]
        namespace="ns",
        name="lease",
        identity="me",
        lost=lambda _: lost.set(),
        timing=timing,
    )


@pytest.mark.parametrize("answer", [{"error": "log in"}, {"kind": "Status", "metadata": {}}, {"metadata": None}])
@pytest.mark.parametrize("strange", [1, 10**9])
def test_an_answer_that_is_no_lease(
    answer: dict[str, Any], strange: int, eventually: Callable[[Callable[[], object]], None]
) -> None:
    """It renews nothing, and the next one does; where none comes in time the process no longer leads, and ends."""
    server, lost = Server(answer), threading.Event()
    elector = _elector(server, lost, Timing(lease=3, renew=2, retry=0.05))
    assert elector.acquire(threading.Event())
    before, server.strange = server.renewed, strange
    if strange == 1:
        eventually(lambda: server.renewed > before + 1)
        assert elector.leads()
        assert not lost.is_set()
        elector.release()
    else:
        assert lost.wait(60)
        assert not elector.leads()


def test_an_error_of_our_own_ends_leading(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody else renews the Lease: a process that stayed would write nothing, and say nothing."""
    server, lost = Server({}), threading.Event()
    elector = _elector(server, lost, Timing(lease=300, renew=200, retry=0.05))
    assert elector.acquire(threading.Event())
    server.answer, server.strange = {"metadata": {"namespace": "ns", "name": "lease"}, "spec": 5}, 10**9

    assert lost.wait(60)
    assert not elector.leads()
    assert "the lease is renewed no more" in caplog.text
