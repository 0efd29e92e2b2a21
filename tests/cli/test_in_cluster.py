"""shardwise.cli.in_cluster: commands on a job of a cluster, of which a stand-in API server tells."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes.config import kube_config
from tests.cli.conftest import Command
from tests.client.answering import Answer, StandInServer, kubeconfig


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
