"""shardwise.client.job: what is followed outlives an API server that is away for a while."""

import json
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.client.answering import SILENCE, Answer, Cut, StandInServer, job, kubeconfig
from urllib3.connection import HTTPConnection

from shardwise.client import Cluster, ClusterJob, api
from shardwise.client.job import Job
from shardwise.protocol.errors import ClusterError
from shardwise.protocol.job_status import JobStatus
from shardwise.protocol.pods import AGENT, POD_ATTEMPT_LABEL, RANK_VARIABLE, ROUND_LABEL

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


@pytest.mark.parametrize("status", [403, 404])
def test_a_refusal_ends_at_once(status: int, following: Following) -> None:
    """No wait helps where a right is missing or the job was deleted."""
    with pytest.raises(ClusterError, match=f"said with {status}"):
        following(job("Running"), error(status)).wait()


def test_a_login_that_has_ended(following: Following) -> None:
    """It is loaded again once; if that is refused too, no wait helps."""
    with pytest.raises(ClusterError, match="said with 401"):
        following(job("Running"), error(401), error(401)).wait()


def test_a_token_that_is_renewed_in_its_file(tmp_path: Path) -> None:
    """The new one is sent after a 401, in the context that the client began with, whichever is current by then."""
    (tmp_path / "token").write_text("old", encoding="utf-8")
    valid = ["old"]
    told: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.append(self.headers["Authorization"])
            status, said = job("Running") if told[-1] == f"Bearer {valid[0]}" else error(401)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(said).encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    path, users = tmp_path / "config", [{"name": "u", "user": {"tokenFile": str(tmp_path / "token")}}]
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        waited = Cluster(kubeconfig=kubeconfig(path, url, users=users)).job("job")
        assert waited.status.phase == "Running"
        valid[0] = "new"
        (tmp_path / "token").write_text("new", encoding="utf-8")
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("current-context: there", "current-context: elsewhere"), encoding="utf-8")
        assert waited.status.phase == "Running"
        server.shutdown()
    assert told == ["Bearer old", "Bearer old", "Bearer new"]


def pods_of_host_0() -> Answer:
    """Return the one pod of a job."""
    agent = {"name": AGENT, "env": [{"name": RANK_VARIABLE, "value": "0"}]}
    labels = {ROUND_LABEL: "0", POD_ATTEMPT_LABEL: "0"}
    return 200, {"items": [{"metadata": {"name": "job-0-0", "labels": labels}, "spec": {"containers": [agent]}}]}


def test_a_log_that_is_cut_off(following: Following) -> None:
    """It is said that it is not all; so it is of a job that rests, whose log is not asked for again."""
    cut = (200, Cut("one\ntwo"))
    with pytest.raises(ClusterError, match="the log was cut off here"):
        list(following(pods_of_host_0(), cut).logs())
    with pytest.raises(ClusterError, match="the log was cut off here"):
        list(following(job("Complete"), pods_of_host_0(), cut).logs(follow=True))


def test_a_log_that_is_followed_goes_on_after_a_cut(following: Following) -> None:
    """It is asked for again, and each line is told once."""
    one, two = "2027-01-15T08:00:00Z one\n", "2027-01-15T08:00:01Z two\n"
    answers = (job("Running"), pods_of_host_0(), (200, Cut(one)), job("Complete"), pods_of_host_0(), (200, one + two))
    assert list(following(*answers).logs(follow=True)) == ["one\n", "two\n"]


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
