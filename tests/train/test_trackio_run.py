"""Runs of trackio, with the real package and its own reader: each start of a run is a process, as in life."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.train.answers import answers
from tests.train.conftest import SMALL

from shardwise.job.load import loads
from shardwise.job.resolve import resolve
from shardwise.job.spec import TrainingJob
from shardwise.launcher.system.ports import free_port
from shardwise.protocol.errors import UsageError
from shardwise.train import background
from shardwise.train.background import Point, Service
from shardwise.train.run_directory import Forks, RunDirectory
from shardwise.train.trackers import trackers
from shardwise.train.trackio_run import SERVER, SPACE, WRITE_TOKEN, Records, begin

# Takes some steps as one start of a run, an evaluation at each second one; prints what touched a socket or a process.
TRAIN = """
import sys
touched = []
watched = ("socket.", "subprocess.", "os.fork", "os.posix_spawn", "os.system", "webbrowser.", "sqlite3.")
sys.addaudithook(lambda event, _: touched.append(event) if event.startswith(watched) else None)
import json, threading
from pathlib import Path
from tests.train.conftest import SMALL
from shardwise.job.load import loads
from shardwise.job.resolve import resolve
from shardwise.train.run_directory import RunDirectory
from shardwise.train.trackers import trackers

folder, attempt, first, end = Path(sys.argv[1]), *map(int, sys.argv[2:])
run = RunDirectory(folder, attempt=attempt)
run.logs.mkdir(exist_ok=True)
job = resolve(loads(SMALL, ["training.tracking.trackioProject=mine"]))
del touched[:]
(tracker,) = trackers(job, run, sys.exit, after=first - 1)
for step in range(first, end):
    tracker.step(step, {"loss": 1 / step + attempt, "gradNorm": float("nan")})
    if step % 2 == 0:
        tracker.step(step, {"heldOutLoss": 2 / step, "web/loss": 3.0})
tracker.close(complete=True)
threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
print(json.dumps({"touched": touched, "threads": threads}))
"""
# Reads as the dashboard does at its start: the inbox, then the database.
SHOW = """
import json, sys
from trackio.server import import_inbox_once
from trackio.sqlite_storage import SQLiteStorage
import_inbox_once()
runs = [(run["id"], run["name"]) for run in SQLiteStorage.get_run_records("mine")]
print(json.dumps([[id, name, SQLiteStorage.get_logs("mine", name, run_id=id)] for id, name in runs]))
"""


# A server as `trackio show` starts it, until its input ends.
SERVE = """
import sys, trackio
trackio.show(open_browser=False, block_thread=False, host="127.0.0.1", server_port=int(sys.argv[1]))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what the tests' own environment may say."""
    for name in (SPACE, SERVER, WRITE_TOKEN):
        monkeypatch.delenv(name, raising=False)


def python(program: str, *arguments: object, **environment: str) -> Any:
    """Run a program; return what it prints last, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=os.environ | environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def shown(folder: Path) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """Return what a dashboard that is pointed at the run's logs has: each run's id, name and records."""
    return in_store(folder / "logs" / "trackio")


def in_store(store: Path) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """Return each run's id, name and records, after the inbox is taken in."""
    return [tuple(run) for run in python(SHOW, TRACKIO_DIR=str(store))]


def test_a_restart_goes_on_with_the_run(tmp_path: Path) -> None:
    """There is one run for a directory, named after the job; a step is in it once, whenever somebody has looked."""
    python(TRAIN, tmp_path, 0, 1, 5)
    ((_, _, before),) = shown(tmp_path)
    python(TRAIN, tmp_path, 1, 3, 7)  # as from the checkpoint of step 2
    python(TRAIN, tmp_path, 2, 5, 9)
    # A file for each start: in a bucket, a host that takes over has not those of the others, and overwrites none.
    files = [path.name for path in inbox(RunDirectory(tmp_path, attempt=2))]

    assert files == ["attempt-000001.jsonl", "attempt-000002.jsonl"]
    ((run_id, name, records),) = shown(tmp_path)
    assert (run_id, name) == (RunDirectory(tmp_path, attempt=0).run_id(), "small")
    losses = {record["step"]: record["loss"] for record in records if "loss" in record}
    starts = {step: min(max(0, (step - 3) // 2), 2) for step in range(1, 9)}  # the first that took the step
    assert [record["step"] for record in records if "loss" in record] == list(range(1, 9))
    assert losses == pytest.approx({step: 1 / step + start for step, start in starts.items()})
    assert [record["step"] for record in records if "heldOutLoss" in record] == [2, 4, 6, 8]
    assert len(before) == 6


def test_a_fork_that_goes_back_is_a_run_of_its_own(run: RunDirectory) -> None:
    """What trackio has of the steps after it stays what the run before was."""
    for attempt, first, loss in ((0, 1, 2.0), (1, 3, 1.0)):
        (tracker,) = trackers(asked("mine"), replace(run, attempt=attempt), pytest.fail, after=first - 1)
        for step in (first, first + 1, first + 2):
            tracker.step(step, {"loss": loss})
        tracker.close(complete=True)
        run.write_forks(Forks(count=1, since=2))

    curves = {name: [(record["step"], record["loss"]) for record in curve] for _, name, curve in shown(run.path)}
    assert curves == {"small": [(1, 2.0), (2, 2.0), (3, 2.0)], "small-fork-1": [(3, 1.0), (4, 1.0), (5, 1.0)]}


def test_nothing_listens_connects_or_starts(tmp_path: Path) -> None:
    """A pod's numbers are nobody else's: no socket, no process, no browser, even where a token would tell a name."""
    touched = python(TRAIN, tmp_path, 0, 1, 3, HF_TOKEN="hf_" + "x" * 34)

    assert touched == {"touched": [], "threads": []}
    assert [path.name for path in (tmp_path / "logs").rglob("*") if path.is_file()] == ["attempt-000000.jsonl"]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Return an empty run directory."""
    made = RunDirectory(tmp_path, attempt=0)
    made.logs.mkdir()
    return made


def begun(run: RunDirectory) -> Service:
    """Return the service of one start of a run."""
    return begin(Records("mine", "small", run.run_id()), run)


def points(*steps: int) -> list[Point]:
    """Return numbers of these steps, each a second after the one before."""
    return [Point(step, {"loss": 2.5}, 1_700_000_000.0 + step) for step in steps]


def inbox(run: RunDirectory) -> list[Path]:
    """Return the files that a dashboard would take in."""
    return sorted((run.logs / "trackio" / "inbox").iterdir())


def test_numbers_have_the_time_at_which_they_came(run: RunDirectory) -> None:
    """Numbers that waited, as behind a full disk, are not said to be of the time at which they were written."""
    service = begun(run)
    service.send(points(1, 2))
    service.close(complete=True)

    ((_, _, records),) = shown(run.path)
    assert [record["timestamp"] for record in records] == ["2023-11-14T22:13:21+00:00", "2023-11-14T22:13:22+00:00"]


def test_what_comes_while_a_dashboard_looks_is_not_lost(run: RunDirectory) -> None:
    """It reads a file and removes it a moment later: what came between is written once more, and is there once."""
    service = begun(run)
    service.send(points(1))
    shown(run.path)  # and removed
    service.send(points(2))
    (file,) = inbox(run)
    read = file.read_bytes()
    service.send(points(3))
    file.unlink()  # as by a dashboard that has read steps 1 and 2
    service.close(complete=True)

    (written,) = inbox(run)
    assert written.read_bytes().startswith(read)
    ((_, _, records),) = shown(run.path)
    assert [record["step"] for record in records] == [1, 2, 3]


def test_a_line_that_a_full_disk_cut_off_takes_no_other_with_it(run: RunDirectory) -> None:
    """The points of the call that failed come again, on lines of their own."""
    service = begun(run)
    service.send(points(1))
    (file,) = inbox(run)
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:40].replace(b"1", b"2"))
    service.send(points(2, 3))
    service.close(complete=True)

    ((_, _, records),) = shown(run.path)
    assert [record["step"] for record in records] == [1, 2, 3]


def test_a_folder_that_cannot_be_written_ends_no_run(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said once, and how much is missing at the end."""
    monkeypatch.setattr(background, "ANSWER_SECONDS", 5.0)
    (run.logs / "trackio").write_text("no folder")
    said: list[str] = []
    (tracker,) = trackers(asked("mine"), run, said.append, after=0)
    tracker.step(1, {"loss": 2.5})
    tracker.close(complete=True)

    assert len(said) == 2
    assert said[0].startswith("trackio does not take the numbers")
    assert said[1] == "trackio lacks 1 records of this start; metrics.jsonl has them"


def asked(project: str) -> TrainingJob:
    """Return a job that asks for trackio."""
    return resolve(loads(SMALL, [f"training.tracking.trackioProject={project}"]))


def test_a_missing_extra_is_said_with_what_to_install(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for and not installed: the message names the extra, before anything is trained."""
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "trackio" else real(name))
    with pytest.raises(UsageError, match=r"trackioProject: .* install shardwise\[trackio\]"):
        trackers(asked("mine"), run, pytest.fail, after=0)


def test_a_name_that_trackio_keeps_for_itself_is_said(run: RunDirectory) -> None:
    """Its dashboard would take none of the numbers in, and say so nowhere: the run ends before it trains."""
    with pytest.raises(UsageError, match=r"tracking\.trackioProject: .*'model_configs' is not allowed"):
        trackers(asked("model_configs"), run, pytest.fail, after=0)


@contextmanager
def server(store: Path, **environment: str) -> Iterator[str]:
    """Start a trackio server that takes the token `secret`; yield its address."""
    port = free_port("127.0.0.1")
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, str(port)],
        env=os.environ | {"TRACKIO_DIR": str(store), WRITE_TOKEN: "secret"} | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        assert any(line == "ready\n" for line in process.stdout)
        yield f"http://127.0.0.1:{port}"
        process.communicate("")


def test_a_server_has_each_step_once(run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the environment names a server, it gets the numbers, and the logs do not; a restart goes on with the run."""
    with server(tmp_path / "store") as address:
        monkeypatch.setenv(SERVER, address)
        monkeypatch.setenv(WRITE_TOKEN, "secret")
        for steps in (range(1, 5), range(3, 7)):
            (tracker,) = trackers(asked("mine"), run, pytest.fail, after=steps[0] - 1)
            for step in steps:
                tracker.step(step, {"loss": 1 / step, "gradNorm": float("nan")})
            tracker.close(complete=True)

    ((run_id, name, records),) = in_store(tmp_path / "store")
    assert (run_id, name) == (run.run_id(), "small")
    assert {record["step"]: record["loss"] for record in records} == {step: 1 / step for step in range(1, 7)}
    assert len(records) == 6
    assert not list(run.logs.iterdir())


def test_a_space_gets_the_token_of_hugging_face(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server as it runs in a Space, at an address of this machine, takes the numbers with HF_TOKEN."""
    environment = {"SYSTEM": "spaces", "HF_TOKEN": "hf_mine", "TRACKIO_SQLITE_LOCKING_MODE": "normal"}
    with server(tmp_path / "store", **environment) as address:
        monkeypatch.setattr("trackio.remote_client._space_id_to_url", lambda _: f"{address}/")
        monkeypatch.setenv(SPACE, "me/mine")
        monkeypatch.setenv("HF_TOKEN", "hf_mine")
        (tracker,) = trackers(asked("mine"), run, pytest.fail, after=0)
        tracker.step(1, {"loss": 2.5})
        tracker.close(complete=True)

    ((run_id, _, records),) = in_store(tmp_path / "store")
    assert (run_id, [record["loss"] for record in records]) == (run.run_id(), [2.5])


def test_a_space_without_its_user_is_said(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose it is would have to be asked: the run ends before it trains."""
    monkeypatch.setenv(SPACE, "mine")
    place = "by envFrom of the container agent"
    words = rf"trackioProject 'mine': TRACKIO_SPACE_ID names none.* USER/NAME of a Space .* {place}"
    with pytest.raises(UsageError, match=words):
        trackers(asked("mine"), run, pytest.fail, after=0)


@pytest.mark.parametrize("words", ["{}", "{}/?write_token=wrong-one", "no-address"])
def test_a_server_that_refuses_is_said(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """No token, or a wrong one: the run ends before it trains, and its log does not tell the token."""
    with server(tmp_path / "store") as address:
        monkeypatch.setenv(SERVER, words.format(address))
        with pytest.raises(UsageError, match=r"trackioProject 'mine': .* Expected in TRACKIO_SERVER_URL") as refused:
            trackers(asked("mine"), run, pytest.fail, after=0)
    assert "wrong-one" not in str(refused.value)


@pytest.mark.parametrize("status", [None, 503])
def test_a_server_that_is_down_ends_no_run(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, status: int | None
) -> None:
    """Nobody listens, or a proxy says that nobody does: it is said once, without the token, and what is missing."""
    monkeypatch.setattr(background, "ANSWER_SECONDS", 3.0)
    said: list[str] = []
    with answers(status or 200) as address:
        monkeypatch.setenv(SERVER, f"{address if status else 'http://127.0.0.1:9'}/?write_token=not-told")
        (tracker,) = trackers(asked("mine"), run, said.append, after=0)
        tracker.step(1, {"loss": 2.5})
        tracker.close(complete=True)

    assert len(said) == 2
    assert said[0].startswith("trackio does not take the numbers")
    assert "not-told" not in said[0]
    assert said[1] == "trackio lacks 1 records of this start; metrics.jsonl has them"
