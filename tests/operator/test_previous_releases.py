"""What earlier releases have written is read by this one: the documents of each are in `releases`, and never change.

`python -m tests.skew TREE --record FOLDER` has written them, from processes of that release's source: an operator on a
real API server, and two agents with fake trainers, of which one was lost. A new contract gets a folder of its own.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from shardwise.job import pods
from shardwise.job.contract import GANG, LOGS
from shardwise.job.pods import LastRecord
from shardwise.launcher import pod
from shardwise.launcher.record import GangRecord
from shardwise_operator.frozen import thaw
from shardwise_operator.pod import read_pod
from shardwise_operator.state import Phase, read_state
from shardwise_operator.told import read_told

RELEASES = sorted((Path(__file__).parent / "releases").iterdir())
pytestmark = pytest.mark.parametrize("release", RELEASES, ids=lambda folder: folder.name)


def document(release: Path, name: str) -> Any:
    """Read what a release has written."""
    return json.loads((release / f"{name}.json").read_text(encoding="utf-8"))


def test_what_host_0_says(release: Path) -> None:
    """The operator reads the status of a run whose image is of that release."""
    told = document(release, "told")
    read = read_told(json.dumps(told).encode())

    assert (read["phase"], read["incarnation"], read["restarts"]) == ("running", 1, {"hostLost": 1})
    assert read["progress"]["step"] == told["progress"]["step"]
    assert read["checkpoint"]["step"] == told["checkpoint"]["step"]


def test_what_a_pod_leaves(release: Path) -> None:
    """The operator reads the last word of an agent, and a leader what the one before it has left in the run."""
    record = LastRecord.loads(json.dumps(document(release, "last-record")))

    assert record is not None
    assert (record.code, record.restarts) == (80, {"hostLost": 1})


def test_what_a_leader_leaves(release: Path, tmp_path: Path) -> None:
    """The run directory stays when the image is another one."""
    (tmp_path / LOGS).mkdir()
    (tmp_path / LOGS / GANG).write_text(json.dumps(document(release, "gang")))
    record = GangRecord.read(tmp_path)

    assert record is not None
    assert (record.code, record.restarts, record.incarnation) == (80, {"hostLost": 1}, 1)


def test_what_the_operator_has_written_of_a_job(release: Path) -> None:
    """This operator goes on from the status, with the round as it was frozen and the pods that it has."""
    status, made = document(release, "job")["status"], document(release, "pod")
    state, frozen, known = read_state(status), thaw(document(release, "frozen")), read_pod(made)

    assert (state.phase, state.round, state.attempts) == (Phase.RUNNING, 0, {"0-0": 0, "0-1": 1})
    assert state.losses == {"unknown": 1}
    assert frozen.hosts == ("0-0", "0-1")
    assert state.pods[known.key] == known.uid


def test_what_the_operator_has_made_for_a_pod(release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent of this release finds its part in the variables and the mounts."""
    made, frozen = document(release, "pod"), document(release, "frozen")
    for name in ("JOB_MOUNT", "TOKEN_MOUNT"):
        monkeypatch.setattr(pods, name, str(tmp_path))
    for key, text in frozen.items():
        (tmp_path / key).write_text(text)
    (container,) = made["spec"]["containers"]
    variables = {each["name"]: each.get("value", made["status"]["podIP"]) for each in container["env"]}
    config = pod._config(variables)

    assert container["command"] == ["python", "-m", "shardwise.launcher.pod"]
    assert (config.host, config.num_hosts) == (int(made["metadata"]["labels"]["shardwise.dev/host"]), 2)
    assert config.run == f"{document(release, 'job')['metadata']['uid']}-0"
