"""shardwise.client.job: what is followed outlives an API server that is away for a while."""

import socket
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.client.answering import SILENCE, Answer, StandInServer, job, kubeconfig
from urllib3.connection import HTTPConnection

from shardwise.client import Cluster, ClusterJob, api
from shardwise.client.job import Job
from shardwise.protocol.errors import ClusterError
from shardwise.protocol.job_status import JobStatus

Following = Callable[..., ClusterJob]


@pytest.fixture
def following(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Following]:
    """Return a function of the answers, one a request, which returns a job to follow; waits are none."""
    monkeypatch.setattr(api, "_WAITS_SECONDS", (0.0, 0.0, 0.0))
    monkeypatch.setattr("shardwise.client.job._LOOK_SECONDS", 0.0)
    answers: list[Answer] = []
    with StandInServer(lambda _: answers.pop(0)) as server:
        cluster = Cluster(kubeconfig=kubeconfig(tmp_path / "config", server.url))

        def to_follow(*given: Answer) -> ClusterJob:
            answers.extend(given)
            return cluster.job("job")

        yield to_follow
    assert not answers


def error(status: int) -> Answer:
    """Return what the API server says when it does not do what was asked."""
    return status, {"kind": "Status", "message": f"said with {status}"}


LOGIN: Answer = (200, "<html>log in to the network</html>")
AWAY = [SILENCE, error(429), error(500), (503, "not JSON"), LOGIN, (200, [])]
AS = ["silence", "429", "500", "503", "another's page", "no object"]


@pytest.mark.parametrize("answer", AWAY, ids=AS)
def test_a_server_that_is_away_is_waited_for(
    answer: Answer, following: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that has answered may fail for minutes; it is said once, and the job is followed to its end."""
    waited = following(job("Running"), answer, answer, answer, job("Running"), job("Complete"))
    assert [status.phase for status in waited.follow()] == ["Running", "Complete"]
    said = capsys.readouterr().err
    assert said.count("\n") == said.count("trying again for up to 5 minutes") == 1


def test_a_server_that_stays_away(following: Following) -> None:
    """After the last wait the error is that of the server."""
    with pytest.raises(ClusterError, match="said with 500"):
        following(job("Running"), *[error(500)] * 4).wait()


@pytest.mark.parametrize("answer", AWAY, ids=AS)
def test_a_server_that_never_answered(answer: Answer, following: Following) -> None:
    """What fails at the first request, as with a wrong address, is said at once."""
    with pytest.raises(ClusterError):
        following(answer).wait()


@pytest.mark.parametrize("ask", [ClusterJob.read, ClusterJob.stop, lambda job: next(job.logs())])
def test_an_answer_of_another_server(ask: Callable[[ClusterJob], object], following: Following) -> None:
    """The page on which a network has people log in is no answer of the API server, which is said in words."""
    with pytest.raises(ClusterError, match=r"127.0.0.1:\d+ answers as no API server does.*page for logging in"):
        ask(following(LOGIN))


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_ends_at_once(status: int, following: Following) -> None:
    """No wait helps where a login has ended, a right is missing or the job was deleted."""
    with pytest.raises(ClusterError, match=f"said with {status}"):
        following(job("Running"), error(status)).wait()


def test_a_log_is_waited_for(following: Following) -> None:
    """Each request for what is followed may fail and be made again."""
    pods: Answer = (200, {"items": []})
    told = following(job("Running"), error(500), pods, SILENCE, job("Complete"), error(429), pods).logs(follow=True)
    with pytest.raises(ClusterError, match="no pod of host 0"):
        next(told)


def test_waiting_keeps_no_status_that_is_past(following: Following, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that trains for weeks changes its status at each look: who waits for its end holds the last ones only."""
    told: list[weakref.ref[JobStatus]] = []
    alive: list[int] = []
    read = ClusterJob.read

    def counted(self: ClusterJob) -> Job:
        job = read(self)
        told.append(weakref.ref(job.status))
        alive.append(sum(status() is not None for status in told))
        return job

    monkeypatch.setattr(ClusterJob, "read", counted)
    changes = [job("Running", progress={"step": step}) for step in range(20)]
    assert following(*changes, job("Complete")).wait().phase == "Complete"
    assert len(alive) == 21
    assert max(alive) <= 3


def test_a_server_that_has_vanished_is_noticed(following: Following, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel looks every half minute whether a silent peer is there: a log may say nothing for hours."""
    opened: list[tuple[int, ...]] = []
    connect = HTTPConnection.connect

    def looked_at(self: HTTPConnection) -> None:
        connect(self)
        kept = [socket.TCP_NODELAY, socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT]
        alive = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        opened.append((alive, *(self.sock.getsockopt(socket.IPPROTO_TCP, option) for option in kept)))

    monkeypatch.setattr(HTTPConnection, "connect", looked_at)
    assert following(job("Running")).status.phase == "Running"
    assert opened == [(1, 1, 30, 15, 9)]
