"""Hosts that share no folder: what they have in common is in a bucket, and the loss of host 0's disk changes no bit."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.running import Run
from tests.hosts.programs import EXAMPLES, ProgramShell
from tests.launcher.pods_apart import Apart
from tests.train.s3_server import serving

from shardwise.cli.run_directory import fetch
from shardwise.cli.run_files import read_overview
from shardwise.job.load import dump, load
from shardwise.page.gather import gather
from shardwise.protocol.contract import CACHE_VARIABLE, CHECKPOINTS, JOB_FILE, METRICS, ExitCode, checkpoint_step
from shardwise.train.metrics import steps


@pytest.fixture
def pods(tmp_path: Path, undisturbed: Run) -> Iterator[Apart]:
    """Return the pods of the same job as the undisturbed run's, with real trainers; none is made yet."""
    with serving() as bucket:
        some = Apart(tmp_path, bucket)
        some.options |= {"trains": True, "ray": True}
        path = f"training.checkpoint.path={some.url}/checkpoints"
        some.job = dump(load(undisturbed.directory / JOB_FILE, [path]))
        yield some
        assert some.close() == []


@pytest.fixture
def program(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Apart, str]]:
    """Return the pods of a job with an own program, none made yet, and the digest it ends with elsewhere."""
    folder, cache = tmp_path / "program", tmp_path_factory.getbasetemp() / "cache"
    folder.mkdir()
    with ProgramShell(folder, cache, str(EXAMPLES / "equinox_sine.py"), "200") as shell, serving() as bucket:
        run = shell.begin("undisturbed")
        run.finish()
        some = Apart(tmp_path, bucket)
        some.options |= {"trains": True, "ray": True}
        some.job = (folder / "job.yaml").read_text()
        yield some, str(run.summary["digest"])
        assert some.close() == []
        assert shell.remains() == []


@pytest.mark.long  # tests/kubernetes has a job in a bucket, and an own program that is killed, evicted and suspended
def test_an_own_program(program: tuple[Apart, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps its checkpoints in the bucket, beside the copy of its run directory, and ends with the same bits.

    The command that reads its status by the URL finds them there.
    """
    pods, digest = program
    for host in (0, 1):
        pods.make(host)
    status = pods.until(lambda status: (status["progress"]["step"] or 0) >= 20)
    pods.ask("POST", "/save")
    pods.until(lambda _: committed(pods) != [])
    os.kill(status["hosts"][1]["trainerPid"], signal.SIGSTOP)
    saved = committed(pods)[-1]
    pods.until_saved(saved)
    pods.kill(0)
    pods.make(0)

    assert pods.codes() == [ExitCode.OK] * 2
    assert [pods.record(host).digest for host in (0, 1)] == [digest] * 2
    (restored,) = [line for line in map(json.loads, pods.has(METRICS).splitlines()) if line.get("event") == "restored"]
    assert restored["step"] >= saved
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    found = read_overview(fetch(pods.url))
    assert (found.status, found.root) == ("complete", f"{pods.url}/{CHECKPOINTS}")
    assert found.checkpoints == committed(pods) != []


def committed(pods: Apart) -> list[int]:
    """The steps of the checkpoints in the bucket, ascending."""
    markers = [key.split("/") for key in pods.bucket.keys(pods.prefix) if key.endswith("/COMMITTED")]
    return sorted(step for *_, folder, _ in markers if (step := checkpoint_step(folder)) is not None)


@pytest.mark.long  # tests/kubernetes/test_buckets.py does so in pods
def test_host_0_is_lost_with_its_disk(
    pods: Apart, undisturbed: Run, digest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes on under a host 0 that begins with an empty folder, to the same bits and the same losses.

    What is in the bucket is the run directory: its page can be made.
    """
    for host in (0, 1):
        pods.make(host)
    status = pods.until(lambda status: (status["progress"]["step"] or 0) >= 9)
    os.kill(status["hosts"][1]["trainerPid"], signal.SIGSTOP)  # so that nothing ends while host 0 is taken away
    saved = committed(pods)[-1]
    pods.until_saved(saved)
    pods.kill(0)
    pods.make(0)

    assert pods.codes() == [ExitCode.OK] * 2
    for host in (0, 1):
        record = pods.record(host)
        assert (record.digest, record.attempt, record.restarts) == (digest, 1, {"hostLost": 1})
    (restored,) = [line for line in map(json.loads, pods.has(METRICS).splitlines()) if line.get("event") == "restored"]
    assert restored["step"] >= saved
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    copied = fetch(pods.url)
    losses = {line["step"]: line["loss"] for line in steps(copied / METRICS)}
    assert losses == {line["step"]: line["loss"] for line in steps(undisturbed.directory / METRICS)}
    page = gather(copied)
    assert (page.status, page.digest, page.restarts, page.attempts_made) == ("complete", digest, {"hostLost": 1}, 2)
    assert {log.host for log in page.logs} == {0, 1}
