"""shardwise.cli.in_cluster: commands on a job of a cluster, of which a stand-in API server tells."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes.config import kube_config
from tests.cli.conftest import Command
from tests.client.answering import Answer, StandInServer, job, kubeconfig


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Answer]]:
    """Return the list of what the cluster of the kubeconfig still answers, one a request."""
    left: list[Answer] = []
    monkeypatch.setattr("shardwise.client.job._LOOK_SECONDS", 0.0)
    with StandInServer(lambda _: left.pop(0)) as server:
        path = kubeconfig(tmp_path / "config", server.url)
        monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(path))
        yield left


@pytest.mark.parametrize("words", [["status"], ["logs"], ["stop", "--no-wait"]], ids=["status", "logs", "stop"])
def test_a_folder_named_as_a_job_is(
    words: list[str], answers: list[Answer], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """./tj/NAME is a run directory, and nothing is asked of the cluster; tj/NAME is a job."""
    (tmp_path / "tj" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    answers.append((403, {"message": "said by the cluster"}))
    ended = command(*words, "./tj/mine")
    assert (ended.code, len(answers)) == (2, 1)
    assert "is no run directory" in ended.error
    assert "said by the cluster" in command(*words, "tj/mine").error


def test_nothing_that_a_job_has_said_steers_the_terminal(
    answers: list[Answer], command: Command, quickstart: str
) -> None:
    """What its hosts have said is shown without it, and the lines of a message stay lines."""
    said = {
        "reason": "fail\x1b[2Jure",
        "message": "host 0: \x1b]0;title\x07no space\n  left \x9b1m",
        "restarts": {"hang\x1b[1m": 1},
        "restartCount": 1,
        "progress": {"step": 1, "loss": "2.5\x1b[1m", "eta": "1 h\x07"},
        "failedSaves": {"inARow": 1, "reason": "full\x1b[3J", "time": "2026-01-01T00:00:00Z"},
        "digest": "ab\x1b[1m",
    }
    failed = job("Failed", **said)
    answers += [failed, (200, {}), failed, (200, {}), failed]
    shown = [command("status", "tj/job"), command("submit", quickstart, "--wait"), command("stop", "tj/job")]
    assert not answers
    for ended in shown:
        steering = [letter for letter in ended.out + ended.error if not letter.isprintable() and letter != "\n"]
        assert not steering
        assert "fail [2Jure" in ended.out
    lines = [" ".join(line.split()) for line in shown[1].out.splitlines()]
    assert lines[-2:] == ["host 0: ]0;title no space", "left 1m"]


@pytest.mark.parametrize(
    ("holds", "shown"), [("True", ["slices 3 of 4 slices; job-3-0-1: no node fits"]), ("False", [])]
)
def test_slices_that_are_left_out_are_named(
    holds: str, shown: list[str], answers: list[Answer], command: Command
) -> None:
    """With what keeps them away, as long as they are."""
    condition = {"type": "FewerSlices", "status": holds, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    condition["message"] = "3 of 4 slices; job-3-0-1: no node fits"
    answers.append(job("Running", conditions=[condition]))
    lines = [" ".join(line.split()) for line in command("status", "tj/job").out.splitlines()]
    assert [line for line in lines if line.startswith("slices")] == shown


@pytest.mark.parametrize(("phase", "code"), [("Suspended", 0), ("Complete", 0), ("Failed", 1)])
def test_a_stop_says_how_the_job_has_ended(phase: str, code: int, answers: list[Answer], command: Command) -> None:
    """A job that could not be saved is not called stopped: its exit code is 1, and why is told as an error."""
    answers += [(200, {}), job("Suspending"), job(phase, reason="storage", message="no space\n  \x1b[31m84")]
    ended = command("stop", "tj/job")
    assert (ended.code, answers) == (code, [])
    assert f"{phase} (storage)" in ended.out
    assert ended.error == ("no space\n   [31m84\n" if code else "")


def test_lines_are_whole_in_a_pipe(answers: list[Answer], command: Command, quickstart: str) -> None:
    """What is printed of a job is not broken at 80 columns: each statement is one line for whoever reads on."""
    message = "host 3: the disk is full; make room there, delete the job and apply it again to go on from step 12,000"
    failed = job("Failed", reason="storage-" * 7, message=message, progress={"step": 1, "loss": "2.5", "eta": "1 h"})
    answers += [(200, {}), failed, (200, {}), failed]
    submitted = command("submit", quickstart, "--wait", "--namespace", "team-" * 12 + "a")
    stopped = command("stop", "tj/job")
    line = f"Failed ({'storage-' * 7})  step 1  loss 2.5  1 h left"
    assert submitted.out.splitlines() == [
        f"tj/quickstart submitted to namespace {'team-' * 12}a",
        line,
        message,
    ]
    assert stopped.out.splitlines()[1:] == [line]
    assert stopped.error.splitlines() == [message]
