"""What `make bench-operator` counts and writes; the measuring itself needs a cluster of its own."""

import asyncio
import json
import sys
import threading
from collections import Counter
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from benchmarks.operator import crowd, stand_in  # noqa: E402  the folder is a script's, found by path
from benchmarks.operator.__main__ import watched_seconds  # noqa: E402
from benchmarks.operator.costs import Reading  # noqa: E402
from benchmarks.operator.crowd import Arrivals, job  # noqa: E402
from tests.cluster.commands import ClusterError  # noqa: E402

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


class _Refusing(BaseHTTPRequestHandler):
    """Refuses the first two watches, breaks the third off after one event, and sends two more events in the fourth."""

    protocol_version = "HTTP/1.1"
    watches = 0

    def do_GET(self) -> None:
        cls = type(self)
        cls.watches += 1
        if cls.watches <= 2:
            self.send_response((404, 429)[cls.watches - 1])
            body = b'{"kind":"Status","code":429}'
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for name in "a" if cls.watches == 3 else "ab":
            event = {"type": "ADDED", "object": {"metadata": {"name": name}, "status": {"phase": "Running"}}}
            line = json.dumps(event).encode() + b"\n"
            self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_a_watch_that_is_refused_or_breaks_off_counts_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """An API server that has just been given the type refuses: what it says then is no event, and ends no counting."""
    monkeypatch.setattr(_Refusing, "watches", 0)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            monkeypatch.setattr(
                crowd, "_connection", lambda: HTTPConnection("127.0.0.1", server.server_port, timeout=10)
            )
            accepted = crowd._watch("/", "")
            assert [event["object"]["metadata"]["name"] for event in accepted] == ["a"]
            assert [event["object"]["metadata"]["name"] for event in crowd._watch("/", "")] == ["a", "b"]
        finally:
            server.shutdown()


# The thread ends with an error on purpose.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_who_waits_for_a_watch_that_has_failed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, with how many it had counted, and not after ten minutes."""
    monkeypatch.setattr(crowd, "_watch", lambda *_: iter([{"type": "ADDED", "object": "no object"}]))

    with pytest.raises(ClusterError, match="the watch has failed at 0 of 1"):
        Arrivals.of_jobs().wait(1, "one job", 10)


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
