"""What `make bench-operator` counts and writes; the measuring itself needs a cluster of its own."""

import asyncio
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from benchmarks.operator import crowd, stand_in  # noqa: E402  the folder is a script's, found by path
from benchmarks.operator.__main__ import watched_seconds  # noqa: E402
from benchmarks.operator.costs import Reading  # noqa: E402
from benchmarks.operator.crowd import Arrivals, job  # noqa: E402

from shardwise.job.document import Document  # noqa: E402
from shardwise.job.load import check  # noqa: E402
from shardwise.protocol.run_status import RunSummary  # noqa: E402
from shardwise_operator.observe.agents import Agents, Target  # noqa: E402


def test_its_jobs_are_jobs() -> None:
    """Each is a job that the models take, of as many hosts as were asked for."""
    assert check(Document(data=job(7, 4), places={})).spec.hardware.topology == "4x4"


def test_its_hosts_answer_the_operator() -> None:
    """Else no job of the benchmark ever runs, and polls that run out of time are what is measured."""

    async def asked() -> RunSummary:
        server = await asyncio.start_server(stand_in.answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            target = Target(pod="", address="127.0.0.1", tokens=("a" * 64,))
            return await asyncio.to_thread(Agents(port).status, target)

    assert asyncio.run(asked()).phase == "running"


def test_a_watch_that_the_api_server_ends_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what comes after its end is never counted, and the benchmark waits for it in vain."""

    def event(name: str) -> dict[str, Any]:
        return {"type": "ADDED", "object": {"metadata": {"name": name}, "status": {"phase": "Running"}}}

    never = threading.Event()
    watches = iter([[event("a")], [event("a"), event("b")]])
    monkeypatch.setattr(crowd, "_watch", lambda *_: iter(next(watches, None) or iter(never.wait, None)))

    assert Arrivals.of_jobs().wait(2, "both jobs", 10) > 0


@pytest.mark.parametrize(("jobs", "seconds"), [(1, 30.0), (100, 30.0), (1000, 100.0)])
def test_running_jobs_are_watched_for_long_enough(jobs: int, seconds: float) -> None:
    """A thousand jobs write their progress every 50 s each: a shorter look would miss the writes."""
    assert watched_seconds(jobs) == seconds


def test_a_share_of_the_passes_is_found_within_its_bucket() -> None:
    """Of ten passes five took up to 10 ms and five up to 50 ms: the median is 10 ms, and nine of ten took up to 42."""
    before = Reading(passes=Counter({0.01: 2.0, 0.05: 2.0}))
    spent = Reading(passes=Counter({0.01: 7.0, 0.05: 12.0})) - before

    assert spent.pass_seconds(0.5) == pytest.approx(0.010)
    assert spent.pass_seconds(0.9) == pytest.approx(0.042)
