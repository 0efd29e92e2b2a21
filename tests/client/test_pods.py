"""shardwise.client.pods: whose log is told while pods come and go. Logs of real pods are in tests/kubernetes."""

from pathlib import Path
from typing import Any

import pytest
from tests.client.answering import Answer, Log, StandInServer, job, kubeconfig

from shardwise.client import Cluster
from shardwise.client import job as job_module
from shardwise.protocol.errors import ClusterError
from shardwise.protocol.pods import AGENT, HOST_LABEL, POD_ATTEMPT_LABEL, RANK_VARIABLE, ROUND_LABEL, SLICE_LABEL

HOSTS = 3
"""What the job asks for."""

Pod = dict[str, Any]


def pod(name: str, rank: int, *, round_: int = 0) -> Pod:
    """Return a pod by "slice-host-attempt", as the operator makes it for the host of this rank."""
    slice_, host, attempt = name.split("-")
    labels = {SLICE_LABEL: slice_, HOST_LABEL: host, POD_ATTEMPT_LABEL: attempt, ROUND_LABEL: str(round_)}
    agent = {"name": AGENT, "env": [{"name": "HOME", "value": "/"}, {"name": RANK_VARIABLE, "value": str(rank)}]}
    return {
        "metadata": {"name": f"job-{name}", "labels": labels},
        "spec": {"containers": [{"name": "beside"}, agent]},
    }


def logs(folder: Path, host: int, *looks: list[Pod]) -> list[str]:
    """Return what following a host tells, where each look at the pods finds the next of these; the last is the end."""
    left = [*looks]

    def answer(path: str) -> Answer:
        if path.endswith("/trainingjobs/job"):
            return job("Running" if len(left) > 1 else "Complete", hosts={"ready": 1, "of": HOSTS})
        if path.endswith("/pods"):
            return 200, {"items": left.pop(0) if len(left) > 1 else left[0]}
        return 200, Log([("2026-01-01T00:00:00.000000001Z", f"of {path.split('/')[-2]}")])

    with StandInServer(answer) as server:
        cluster = Cluster(kubeconfig=kubeconfig(folder / "config", server.url))
        return [*cluster.job("job").logs(host, follow=True)]


def test_a_host_that_has_no_pod_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two pods of a host no other host's log is told in its place."""
    monkeypatch.setattr(job_module, "_LOOK_SECONDS", 0.0)
    of_1 = pod("0-1-0", 1)
    told = logs(tmp_path, 0, [pod("0-0-0", 0), of_1], [of_1], [pod("0-0-1", 0), of_1])
    assert told == ["of job-0-0-0\n", "of job-0-0-1\n"]


def test_a_pod_that_is_gone_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is suspended has given its pods back: what was followed ends as well as the log did."""
    monkeypatch.setattr(job_module, "_LOOK_SECONDS", 0.0)
    assert logs(tmp_path, 0, [pod("0-0-0", 0)], []) == ["of job-0-0-0\n"]


def test_a_host_is_counted_over_all_slices(tmp_path: Path) -> None:
    """It has its number whichever pods are missing before it; without a pod of its own the error says so."""
    there = [pod("0-1-0", 1), pod("1-0-0", 2)]
    assert logs(tmp_path, 2, there) == ["of job-1-0-0\n"]
    with pytest.raises(ClusterError, match="no pod of host 0"):
        logs(tmp_path, 0, there)


def test_the_newest_pod_is_of_the_newest_round(tmp_path: Path) -> None:
    """A job that resumes with other hosts has given a host's number to another place, whose pods are counted anew."""
    there = [pod("0-1-3", 1), pod("1-0-0", 1, round_=1)]
    assert logs(tmp_path, 1, there) == ["of job-1-0-0\n"]


def test_a_host_that_the_job_does_not_have(tmp_path: Path) -> None:
    """Nobody waits for it: it is refused while the job runs, with the number that there are."""
    there = [pod("0-0-0", 0)]
    with pytest.raises(ClusterError, match="no host 3: it has 3"):
        logs(tmp_path, HOSTS, there, there)


def test_a_log_whose_file_was_changed_is_told_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node keeps one file of a log at hand: after a connection is cut, lines of a new one are told, each once."""
    monkeypatch.setattr(job_module, "_LOOK_SECONDS", 0.0)
    lines = [(f"2026-01-01T00:00:{number // 2:02}.5Z", f"line {number}") for number in range(9)]  # two at a time
    looks = [lines[:5], lines[4:7], lines[6:8], lines[6:]]

    def answer(path: str) -> Answer:
        if path.endswith("/trainingjobs/job"):
            return job("Running" if len(looks) > 1 else "Complete", hosts={"ready": 1, "of": HOSTS})
        if path.endswith("/pods"):
            return 200, {"items": [pod("0-0-0", 0)]}
        return 200, Log(looks.pop(0))

    with StandInServer(answer) as server:
        cluster = Cluster(kubeconfig=kubeconfig(tmp_path / "config", server.url))
        told = [*cluster.job("job").logs(0, follow=True)]
    assert told == [f"line {number}\n" for number in range(9)]


def test_a_log_that_has_been_told_is_not_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two pods of a host its old log, which may be large, is asked for from where it was told to."""
    monkeypatch.setattr(job_module, "_LOOK_SECONDS", 0.0)
    sent: list[int] = []

    class Counted(Log):
        def sent(self, query: str) -> str:
            text = super().sent(query)
            sent.append(text.count("\n"))
            return text

    # The node's clock has its own zone; two lines of one moment are two lines.
    first = [(f"2026-01-01T02:00:{second:02}.5+02:00", f"line {second}") for second in (*range(9), 8)]
    looks = [first, first, first, [*first, ("2026-01-01T02:00:08.5+02:00", "last")]]

    def answer(path: str) -> Answer:
        if path.endswith("/trainingjobs/job"):
            return job("Running" if len(looks) > 1 else "Complete", hosts={"ready": 1, "of": HOSTS})
        if path.endswith("/pods"):
            return 200, {"items": [pod("0-0-0", 0)]}
        return 200, Counted(looks.pop(0))

    with StandInServer(answer) as server:
        cluster = Cluster(kubeconfig=kubeconfig(tmp_path / "config", server.url))
        told = [*cluster.job("job").logs(0, follow=True)]
    assert told == [*(f"{line}\n" for _, line in first), "last\n"]
    assert sent == [10, 2, 2, 3]
