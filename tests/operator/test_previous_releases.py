"""What earlier releases have written is read by this one: the documents of each are in `releases`, and never change.

`python -m tests.skew TREE --record FOLDER` has written them, from processes of that release's source: an operator on a
real API server, and two agents with fake trainers, of which one was lost. A new contract gets a folder of its own.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from shardwise.launcher import pod
from shardwise.protocol import pods
from shardwise.protocol.contract import LEADER_RECORD, LOGS
from shardwise.protocol.errors import JobError
from shardwise.protocol.leader_record import LeaderRecord
from shardwise.protocol.pods import TerminationRecord
from shardwise.protocol.run_status import RunSummary
from shardwise_operator.observe.pod import read_pod
from shardwise_operator.observe.snapshot import read_snapshot
from shardwise_operator.observe.state import Phase
from shardwise_operator.observe.state_fields import read_state

RELEASES = sorted((Path(__file__).parent / "releases").iterdir())
OF_THIS_CONTRACT = [folder for folder in RELEASES if folder.name.removeprefix("contract-") in pods.CONTRACTS]
OF_ANOTHER = [folder for folder in RELEASES if folder not in OF_THIS_CONTRACT]

every_release = pytest.mark.parametrize("release", RELEASES, ids=lambda folder: folder.name)
this_contract = pytest.mark.parametrize("release", OF_THIS_CONTRACT, ids=lambda folder: folder.name)
another_contract = pytest.mark.parametrize("release", OF_ANOTHER, ids=lambda folder: folder.name)


def document(release: Path, name: str) -> Any:
    """Read what a release has written."""
    return json.loads((release / f"{name}.json").read_text(encoding="utf-8"))


@this_contract
def test_what_host_0_reports(release: Path) -> None:
    """The operator reads the status of a run whose image is of that release."""
    reported = document(release, "status")
    read = RunSummary.model_validate_json(json.dumps(reported))

    assert (read.phase, read.attempt, read.restarts) == ("running", 1, {"hostLost": 1})
    assert read.progress.step == reported["progress"]["step"]
    assert read.checkpoint is not None
    assert read.checkpoint.step == reported["checkpoint"]["step"]


@this_contract
def test_what_a_pod_leaves(release: Path) -> None:
    """The operator reads the termination record of an agent."""
    record = TerminationRecord.loads(json.dumps(document(release, "termination-record")))

    assert record is not None
    assert (record.code, record.restarts) == (80, {"hostLost": 1})


@this_contract
def test_what_a_leader_leaves(release: Path, tmp_path: Path) -> None:
    """The run directory stays when the image is another one."""
    (tmp_path / LOGS).mkdir()
    (tmp_path / LOGS / LEADER_RECORD).write_text(json.dumps(document(release, "leader")))
    record = LeaderRecord.read(tmp_path)

    assert record is not None
    assert (record.code, record.restarts, record.attempt) == (80, {"hostLost": 1}, 1)


@every_release
def test_what_the_operator_has_written_of_a_job(release: Path) -> None:
    """This operator goes on from the status, with the round's snapshot and the pods that it has."""
    status, made = document(release, "job")["status"], document(release, "pod")
    state, snapshot, known = read_state(status), read_snapshot(document(release, "snapshot")), read_pod(made)

    assert (state.phase, state.round, state.attempts) == (Phase.RUNNING, 0, {"0-0": 0, "0-1": 1})
    assert state.losses == {"unknown": 1}
    assert snapshot.hosts == ("0-0", "0-1")
    assert state.pods[known.key] == known.uid


@this_contract
def test_what_the_operator_has_made_for_a_pod(release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent of this release finds its part in the variables and the mounts."""
    made = document(release, "pod")
    config = pod._config(_mounted(release, tmp_path, monkeypatch))

    (container,) = made["spec"]["containers"]
    assert container["command"] == ["python", "-m", "shardwise.launcher.pod"]
    assert (config.host, config.num_hosts) == (int(made["metadata"]["labels"]["shardwise.dev/host"]), 2)
    assert config.run == f"{document(release, 'job')['metadata']['uid']}-0"


@another_contract
def test_a_pod_of_another_contract_is_refused(release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent of this release ends in the pod of such an operator with both numbers, and touches no run."""
    contract = release.name.removeprefix("contract-")

    with pytest.raises(JobError, match=f"knows the contracts {pods.CONTRACT}, expected .* by contract {contract}$"):
        pod._config(_mounted(release, tmp_path, monkeypatch))


def _mounted(release: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Put the round's snapshot where a pod has its mounts; the variables of the pod's container."""
    made = document(release, "pod")
    for name in ("JOB_MOUNT", "TOKEN_MOUNT"):
        monkeypatch.setattr(pods, name, str(folder))
    for key, text in document(release, "snapshot").items():
        (folder / key).write_text(text)
    (container,) = made["spec"]["containers"]
    return {each["name"]: each.get("value", made["status"]["podIP"]) for each in container["env"]}
