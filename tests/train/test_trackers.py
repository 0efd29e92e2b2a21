"""Trackers: what TensorBoard and Weights & Biases are given, and what is said where they cannot be."""

import builtins
import resource
import struct
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from types import ModuleType
from typing import Any, ClassVar

import pytest
import wandb
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.train.conftest import SMALL
from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

from shardwise.job.load import loads
from shardwise.job.resolve import resolve
from shardwise.job.spec import TrainingJob
from shardwise.protocol.errors import UsageError
from shardwise.train import background
from shardwise.train import trackers as module
from shardwise.train.background import Point
from shardwise.train.run_directory import Forks, RunDirectory
from shardwise.train.tensorboard_run import TensorBoard
from shardwise.train.trackers import trackers


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Return an empty run directory."""
    made = RunDirectory(tmp_path, attempt=0)
    made.logs.mkdir()
    return made


@pytest.fixture
def job() -> Iterator[TrainingJob]:
    """Return a job that asks for Weights & Biases, which is left as in a new process."""
    yield resolve(loads(SMALL, ["training.tracking.wandbProject=mine"]))
    wandb.teardown()


def curve(folder: Path) -> list[tuple[int, float]]:
    """Return the losses that TensorBoard finds in a folder of event files, each with its step."""
    read = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    read.Reload()
    return [(each.step, round(each.value, 1)) for each in read.Scalars("loss")]


def silent(words: str) -> None:
    """Fail: nothing is to be said."""
    pytest.fail(words)


def test_tensorboard_files_hold_the_scalars(tmp_path: Path) -> None:
    """The event file names every scalar."""
    board = TensorBoard(tmp_path, 0)
    board.send([Point(1, {"loss": 2.5, "gradNorm": 1.0}, 0.0)])
    board.close(complete=True)

    (written,) = tmp_path.glob("events.out.tfevents.*")
    assert {name for name in (b"loss", b"gradNorm") if name in written.read_bytes()} == {b"loss", b"gradNorm"}


@pytest.mark.parametrize("clock", [1000, -1000], ids=["goes on", "jumps back"])
def test_tensorboard_has_each_step_once_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: float
) -> None:
    """As TensorBoard itself reads the files: a killed start's steps after the checkpoint are those of the next one."""
    for attempt, first, end in ((0, 1, 9), (1, 5, 8), (2, 7, 12)):  # continued from steps 4 and 6
        monkeypatch.setattr("time.time", lambda began=5000 + clock * attempt: began)  # files are named by the second
        board = TensorBoard(tmp_path, first - 1)
        for step in range(first, end):
            board.send([Point(step, {"loss": step + attempt / 10}, 1000.0 * attempt + step)])
        board.close(complete=attempt == 2)

    assert curve(tmp_path) == [
        *((step, step) for step in range(1, 5)),
        *((step, step + 0.1) for step in range(5, 7)),
        *((step, step + 0.2) for step in range(7, 12)),
    ]


@pytest.mark.parametrize("room", [0, 10])
def test_a_disk_that_was_full_for_a_while_takes_no_step_from_tensorboard(tmp_path: Path, room: int) -> None:
    """The call fails, its steps come again, and nothing that was cut off ends the curve."""
    board = TensorBoard(tmp_path, 0)
    board.send([Point(step, {"loss": step}, 0.0) for step in (1, 2)])
    (file,) = tmp_path.iterdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + room, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            board.send([Point(3, {"loss": 3}, 0.0)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    board.send([Point(step, {"loss": step}, 0.0) for step in (3, 4)])
    board.close(complete=True)

    assert curve(tmp_path) == [(step, step) for step in range(1, 5)]


def test_a_disk_that_was_full_is_said_once(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on meanwhile, and TensorBoard has all of it in the end."""
    monkeypatch.setattr(background, "_FIRST_PAUSE_SECONDS", 0.001)
    said, warned = list[str](), Event()

    def say(words: str) -> None:
        said.append(words)
        warned.set()

    (tracker,) = trackers(resolve(loads(SMALL, ["training.tracking.tensorboard=true"])), run, say, after=0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        for step in range(1, 500):
            tracker.step(step, {"loss": step})
        assert warned.wait(20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    tracker.close(complete=True)

    assert len(said) == 1
    assert said[0].startswith("TensorBoard does not take the numbers ([Errno 27] File too large")
    assert curve(run.logs / "tensorboard") == [(step, step) for step in range(1, 500)]


def test_event_files_that_somebody_removes_end_no_curve(tmp_path: Path) -> None:
    """Who clears the folder of a run that goes on sees what comes from then on."""
    board = TensorBoard(tmp_path, 0)
    board.send([Point(step, {"loss": step}, 0.0) for step in (1, 2)])
    (file,) = tmp_path.iterdir()
    file.unlink()
    board.send([Point(3, {"loss": 3}, 0.0)])

    assert curve(tmp_path) == [(3, 3)]


def test_nothing_is_tracked_unasked(run: RunDirectory) -> None:
    """Without the field there is no tracker, and no folder."""
    assert trackers(resolve(loads(SMALL)), run, silent, after=0) == []
    assert not list(run.logs.iterdir())


def test_a_missing_extra_is_said_with_what_to_install(
    run: RunDirectory, job: TrainingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for and not installed: the message names the extra, before anything is trained."""
    real = builtins.__import__

    def without_wandb(name: str, *rest: object, **named: object) -> ModuleType:
        if name == "wandb":
            raise ImportError(name)
        return real(name, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without_wandb)
    with pytest.raises(UsageError, match=r"shardwise\[wandb\]"):
        trackers(job, run, silent, after=0)


def test_a_restart_goes_on_with_the_wandb_run(
    run: RunDirectory, job: TrainingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start of a run directory writes the steps it takes, under the id of the directory and the job's name."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    for first in (1, 2):
        (tracker,) = trackers(job, run, silent, after=first - 1)
        for step in (first, first + 1):
            tracker.step(step, {"loss": 3.5 - step})
        tracker.close(complete=True)
        wandb.teardown()  # as a process that ends

    records = [record for file in sorted(run.logs.glob("wandb/offline-run-*/*.wandb")) for record in of_wandb(file)]
    runs = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert {(each.run_id, each.display_name, each.project) for each in runs} == {(run.run_id(), "small", "mine")}
    steps = [record.history for record in records if record.WhichOneof("record_type") == "history"]
    found = [{"/".join(item.nested_key) or item.key: item.value_json for item in step.item} for step in steps]
    assert sorted((int(step["_step"]), float(step["loss"])) for step in found) == [
        (1, 2.5),
        (2, 1.5),
        (2, 1.5),
        (3, 0.5),
    ]


def test_a_fork_that_goes_back_is_a_wandb_run_of_its_own(
    run: RunDirectory, job: TrainingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W&B has the steps after it of the run before, and takes none of them back."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    for count in (0, 1):
        run.write_forks(Forks(count=count, since=0))
        (tracker,) = trackers(job, run, silent, after=0)
        tracker.close(complete=True)
        wandb.teardown()  # as a process that ends

    records = [record for file in run.logs.glob("wandb/offline-run-*/*.wandb") for record in of_wandb(file)]
    begun = {(record.run.run_id, record.run.display_name) for record in records if record.HasField("run")}
    assert begun == {(run.run_id(), "small"), (f"{run.run_id()}-fork-1", "small-fork-1")}


def test_wandb_without_a_key_is_said(run: RunDirectory, job: TrainingJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is there to be asked: the message says what to set, before anything is trained."""
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("NETRC", str(run.path / "none"))
    words = (
        r"tracking\.wandbProject 'mine': .* Set WANDB_API_KEY .* by envFrom of the container agent.* WANDB_MODE=offline"
    )
    with pytest.raises(UsageError, match=words):
        trackers(job, run, silent, after=0)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (
            *("WANDB_MODE", "bogus"),
            "given 'bogus', expected 'online', 'offline', 'shared', 'disabled', 'dryrun' or 'run'",
        ),
        ("WANDB_BASE_URL", "//me:secret@nowhere", "input should be a valid URL, relative URL without a base"),
    ],
)
def test_a_wrong_variable_of_wandb_is_said(
    run: RunDirectory, job: TrainingJob, monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    """In one line, by its name, with what it may be; a value that may hold a password is not repeated."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as caught:
        trackers(job, run, silent, after=0)
    assert str(caught.value) == f"tracking.wandbProject 'mine': {name}: {words}"


@pytest.mark.parametrize("status", [401, 404])
def test_a_wandb_that_refuses_is_said(
    run: RunDirectory, job: TrainingJob, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """A wrong key, or a project of others: the run ends before it trains: nobody would send the numbers."""
    answer = b'{"errors": [{"message": "you may not"}]}'

    class Refuses(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    with ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(UsageError, match=rf"wandbProject 'mine': .*{status}.* Set WANDB_API_KEY"):
            trackers(job, run, silent, after=0)
        server.shutdown()
    assert not list(run.logs.glob("wandb/offline-run-*"))


def test_a_wandb_that_does_not_answer_stops_no_run(
    run: RunDirectory, job: TrainingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers are kept for `wandb sync`, and the run is told where."""
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setattr(module, "ANSWER_SECONDS", 1.0)
    said: list[str] = []
    (tracker,) = trackers(job, run, said.append, after=0)
    tracker.step(1, {"loss": 2.5})
    tracker.close(complete=True)
    wandb.teardown()  # as a process that ends: until then the file need not be whole

    assert str(run.logs / "wandb") in said[0]
    assert "\n" not in said[0]
    (kept,) = run.logs.glob("wandb/offline-run-*/*.wandb")
    assert any(record.WhichOneof("record_type") == "history" for record in of_wandb(kept))


def test_a_wandb_whose_own_process_comes_late_stops_no_run(
    run: RunDirectory, job: TrainingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow machine the process that sends its numbers may not be there in time; then they wait on the disk."""
    begin, modes = wandb.init, list[str | None]()

    def late(*, mode: Any = None, **options: Any) -> object:
        modes.append(mode)
        if len(modes) == 1:
            raise wandb.Error("Failed to read port info")
        return begin(mode=mode, **options)

    monkeypatch.setattr(wandb, "init", late)
    said: list[str] = []
    (tracker,) = trackers(job, run, said.append, after=0)
    tracker.close(complete=True)

    assert modes == [None, "offline"]
    assert "does not answer (Failed to read port info)" in said[0]


class Opened:
    """Stands for a Weights & Biases run, and keeps how each one was closed."""

    closed: ClassVar[list[bool]]

    def __init__(self, *_: object) -> None:
        self.closed.append(False)

    def send(self, points: Sequence[Point]) -> None:
        """Take nothing."""

    def close(self, *, complete: bool) -> None:
        """Note it; a start that was refused is not complete."""
        assert not complete
        self.closed[-1] = True


@pytest.mark.parametrize(
    ("other", "words", "closed"),
    [
        ("mlflowExperiment=mine", "MLFLOW_TRACKING_URI is not set", []),
        ("trackioProject=model_configs", "is not allowed", [True]),
    ],
)
def test_what_a_second_tracker_refuses_leaves_none_open(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, other: str, words: str, closed: list[bool]
) -> None:
    """What can be known before is refused before a run is begun anywhere; else the run that was begun is ended."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(Opened, "closed", [], raising=False)
    monkeypatch.setattr(module, "WeightsAndBiases", Opened)
    job = resolve(loads(SMALL, ["training.tracking.wandbProject=mine", f"training.tracking.{other}"]))

    with pytest.raises(UsageError, match=words):
        trackers(job, run, silent, after=0)
    assert Opened.closed == closed


def of_wandb(path: Path) -> list[Record]:
    """The records of a W&B file: LevelDB's log format after seven bytes of its own, the first block's of them too."""
    content, found, at, parts = path.read_bytes(), list[Record](), 7, b""
    while at + 7 <= len(content):
        length, kind = struct.unpack_from("<HB", content, at + 4)
        if not kind:  # the rest of this block of 32 KiB was too short for a record
            at = (at // 32768 + 1) * 32768
            continue
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            found.append(Record.FromString(parts))
            parts = b""
    return found
