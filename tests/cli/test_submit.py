"""shardwise.cli.submit: how it ends. What it sends to a real cluster is in tests/client and tests/kubernetes."""

from pathlib import Path

import pytest
from kubernetes.config import kube_config
from tests.cli.conftest import Command
from tests.client.answering import Answer, StandInServer, job, kubeconfig


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (job("Complete"), 0),
        (job("Failed"), 1),
        (job("Suspended"), 80),
        ((404, {"message": "the job was deleted"}), 2),
    ],
    ids=["complete", "failed", "suspended", "not known"],
)
def test_the_exit_code_of_waiting(
    last: Answer, code: int, command: Command, quickstart: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says how the job ended; that nothing more can be learnt of it is told from a failure of the job."""
    monkeypatch.setattr("shardwise.client.job._LOOK_SECONDS", 0.0)
    answers = [(200, {}), job("Running"), last]
    with StandInServer(lambda _: answers.pop(0)) as server:
        path = kubeconfig(tmp_path / "config", server.url)
        monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(path))
        ended = command("submit", quickstart, "--wait")
    assert ended.code == code
    assert "tj/quickstart submitted to namespace team" in ended.out
    assert ("the job was deleted" in ended.error) == (code == 2)
