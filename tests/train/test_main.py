"""What a person is told when the machine, not the job, is at fault."""

import errno
import io
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
from tests.train.conftest import run_here

from shardwise.page.curves import Metrics
from shardwise.protocol.contract import METRICS, ExitCode
from shardwise.protocol.errors import DeviceError, OutOfMemoryError, PeerError, RunDirectoryError, StorageError
from shardwise.protocol.orders import STOP_SIGNAL
from shardwise.train import main, saves
from shardwise.train.checkpoint import put, read_manifest, save, steps
from shardwise.train.checkpoint.store import Store
from shardwise.train.metrics import records
from shardwise.train.peers import Peers
from shardwise.train.phases import Phases
from shardwise.train.run_directory import RunDirectory
from shardwise.train.summary import Summary


def test_a_disk_that_is_full_before_anything_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where not even the summary can be written the error says so, and what to do."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RunDirectory, "write_summary", full)
    with pytest.raises(StorageError, match=r"No space left on device.*same command again"):
        run_here(tmp_path)


def test_a_full_folder_beside_the_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making room in the run directory would help nobody."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/cache/programs")

    monkeypatch.setattr(RunDirectory, "write_summary", full)
    with pytest.raises(StorageError, match=r"^/cache/programs: cannot be used \(No space left on device\)"):
        run_here(tmp_path)


@pytest.mark.parametrize("moments", [[(Summary, "__init__")], [(Peers, "join"), (Summary, "not_started")]])
def test_a_stop_while_a_start_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moments: list[tuple[type, str]]
) -> None:
    """A stop that comes as the summary is begun is one; a second, while the first is recorded, changes nothing."""

    def signalled(write: Callable[..., None]) -> Callable[..., None]:
        def wrapped(*arguments: object, **named: object) -> None:
            signal.raise_signal(STOP_SIGNAL)
            write(*arguments, **named)

        return wrapped

    for owner, name in moments:
        monkeypatch.setattr(owner, name, signalled(getattr(owner, name)))
    (tmp_path / "logs").mkdir()
    assert run_here(tmp_path) == ExitCode.SAVED
    if len(moments) > 1:
        assert json.loads((tmp_path / "summary.json").read_text())["status"] == "stopped"


@pytest.mark.usefixtures("at_once", "as_a_trainer")
def test_a_save_that_fails_does_not_end_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is tried when it is due, the last one until it succeeds; the run says which failed, and why."""
    text = tmp_path / "text.txt"
    text.write_text("all work and no play " * 2000)
    failing = [4, 8, 8]
    start = put.put

    def shaky(store: Store, step: int, *given: Any, **named: Any) -> None:
        if step in failing:
            failing.remove(step)
            raise ValueError("UNAVAILABLE: 503")
        start(store, step, *given, **named)

    monkeypatch.setattr(save, "put", shaky)
    monkeypatch.setattr(saves, "_LAST_SAVE_WAITS_SECONDS", (0.0, 0.0))
    directory = tmp_path / "run"
    (directory / "logs").mkdir(parents=True)
    overrides = (
        "training.model.layers=1",
        "training.steps=8",
        "training.checkpoint.everySteps=2",
        f"training.data.train.0.paths=[{text}]",
    )
    assert run_here(directory, *overrides) == ExitCode.OK
    events = [record for record in records(directory / "metrics.jsonl") if "event" in record]
    assert [event["step"] for event in events if event["event"] == "saved"] == [2, 6, 8]
    assert [(event["step"], event["inARow"]) for event in events if event["event"] == "saveFailed"] == [
        (4, 1),
        (8, 1),
        (8, 2),
    ]
    assert steps(str(directory / "checkpoints")) == [2, 6, 8]


@pytest.mark.usefixtures("as_a_trainer")
def test_a_run_that_goes_on_on_another_mesh_says_so(tmp_path: Path) -> None:
    """Once, with both meshes as `check` calls them; a run that goes on where it was says nothing."""
    text = tmp_path / "text.txt"
    text.write_text("all work and no play " * 2000)
    directory = tmp_path / "run"
    (directory / "logs").mkdir(parents=True)
    lines = []
    for num_steps, tensor in ((1, 1), (2, 2), (3, 2)):
        said = io.StringIO()
        words = ("training.model.layers=1", f"training.data.train.0.paths=[{text}]", f"training.mesh.tensor={tensor}")
        assert run_here(directory, *words, f"training.steps={num_steps}", said=said) == ExitCode.OK
        lines.append([line for line in said.getvalue().splitlines() if "mesh" in line])

    now, before = "replica 1 x data 4 x tensor 2", "replica 1 x data 8 x tensor 1"
    assert lines == [[], [f"step 1: restored on the mesh {now}; the run's last start had {before}"], []]


@pytest.mark.usefixtures("as_a_trainer")
def test_a_run_is_complete_without_room_for_its_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last state is saved by then: a full disk takes nothing from it but loss.png."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(main, "plot_png", full)
    text = tmp_path / "text.txt"
    text.write_text("all work and no play " * 2000)
    (tmp_path / "logs").mkdir()
    words = ("training.model.layers=1", f"training.data.train.0.paths=[{text}]", "training.steps=2")
    assert run_here(tmp_path, *words) == ExitCode.OK
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "complete"


@pytest.mark.usefixtures("as_a_trainer")
def test_a_damaged_line_does_not_fail_a_run(tmp_path: Path) -> None:
    """It trains on to its end, is complete, and names the line."""
    text = tmp_path / "text.txt"
    text.write_text("all work and no play " * 2000)
    (tmp_path / "logs").mkdir()
    words = ("training.model.layers=1", f"training.data.train.0.paths=[{text}]")
    assert run_here(tmp_path, *words, "training.steps=2") == ExitCode.OK
    metrics = tmp_path / "metrics.jsonl"
    number = metrics.read_bytes().count(b"\n") + 1
    with metrics.open("ab") as file:
        file.write(b'{"step": 2, "lo\n{"step": 3}\n')
    said = io.StringIO()
    assert run_here(tmp_path, *words, "training.steps=3", said=said) == ExitCode.OK
    assert said.getvalue().count(f"metrics.jsonl: line {number} cannot be read as JSON") == 1
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "complete"


@pytest.mark.usefixtures("as_a_trainer")
def test_the_file_of_steps_is_read_once_as_a_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be of weeks, and a run that is stopped has seconds; summary and picture have what they are made of."""
    opened: list[str] = []
    opens = Path.open

    def noted(path: Path, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        if path.name == "metrics.jsonl":
            opened.append(mode)
        return opens(path, mode, *arguments, **named)

    drawn: dict[str, Any] = {}
    monkeypatch.setattr(Path, "open", noted)
    monkeypatch.setattr(main, "plot_png", lambda records, *_, **named: drawn.update(named, records=records))
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": f"{n} green bottles, and no more"}) + "\n" for n in range(1000)))
    (tmp_path / "logs").mkdir()
    words = ("training.model.layers=1", f"training.data.train.0.paths=[{text}]", "training.data.heldOut=0.2")
    evaluates = ("training.evaluation={everySteps: 2, batches: 1}", "training.checkpoint.everySteps=1")
    assert run_here(tmp_path, *words, *evaluates, "training.steps=2") == ExitCode.OK
    opened.clear()
    assert run_here(tmp_path, *words, *evaluates, "training.steps=4") == ExitCode.OK

    assert opened.count("rb") == 1
    found = [*records(tmp_path / "metrics.jsonl")]
    assert [record["step"] for record in drawn["records"]] == [1, 2, 3, 4]
    assert drawn["evaluations"] == [record for record in found if record.get("event") == "evaluated"]
    assert drawn["restarts"] == [2]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["evaluated"]["step"] == 4
    assert summary["finalLoss"] == drawn["records"][-1]["loss"]


@pytest.mark.usefixtures("at_once", "as_a_trainer")
def test_checkpoints_that_are_not_there_any_more_are_waited_for(tmp_path: Path) -> None:
    """Where the run is known to have saved some, it does not begin anew below a volume that is not mounted."""
    text = tmp_path / "text.txt"
    text.write_text("all work and no play " * 2000)
    directory = tmp_path / "run"
    (directory / "logs").mkdir(parents=True)
    overrides = ("training.model.layers=1", f"training.data.train.0.paths=[{text}]")
    with pytest.raises(StorageError, match=r"holds no checkpoint, and this run has saved step 2"):
        run_here(directory, *overrides, "training.steps=2", committed=2)

    assert run_here(directory, *overrides, "training.steps=2") == ExitCode.OK
    assert run_here(directory, *overrides, "training.steps=3", committed=2) == ExitCode.OK


@pytest.mark.usefixtures("as_a_trainer")
def test_what_takes_long_says_that_it_gets_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data that are prepared, every batch of an evaluation and a state that is restored keep the watchdog quiet."""
    text = tmp_path / "text.jsonl"
    text.write_text("".join(f'{{"text": "{number} green bottles, and no more."}}\n' for number in range(2000)))
    beats: list[str] = []
    monkeypatch.setattr(Phases, "beat", lambda phases: beats.append(phases._phase))
    (tmp_path / "run" / "logs").mkdir(parents=True)
    overrides = [f"training.data.train.0.paths=[{text}]", "training.data.heldOut=0.5"]
    overrides += ["training.evaluation={everySteps: 2, batches: 2}", "training.model.layers=1"]
    assert run_here(tmp_path / "run", *overrides, "training.steps=2") == ExitCode.OK
    assert "data" in beats
    assert beats.count("evaluate") == 2
    assert "restore" not in beats
    assert run_here(tmp_path / "run", *overrides, "training.steps=4") == ExitCode.OK
    assert "restore" in beats


@pytest.mark.long  # the same command that goes back is here, too
@pytest.mark.usefixtures("as_a_trainer")
def test_going_back_leaves_the_later_checkpoints_behind(tmp_path: Path) -> None:
    """After a spike of the loss one goes on from before it at another rate, and comes past what was saved there."""
    text = tmp_path / "text.txt"
    text.write_text("all work and no play " * 2000)
    directory = tmp_path / "run"
    (directory / "logs").mkdir(parents=True)
    overrides = ["training.model.layers=1", "training.checkpoint={everySteps: 2, keep: {last: 9}}"]
    overrides += [f"training.data.train.0.paths=[{text}]"]
    root = str(directory / "checkpoints")
    assert run_here(directory, *overrides, "training.steps=8") == ExitCode.OK
    before = {step: read_manifest(root, step).arrays for step in steps(root)}
    lower = [*overrides, "training.optimizer.learningRate=1e-4"]
    assert run_here(directory, *lower, "training.steps=5", fork=True, step=4) == ExitCode.OK
    assert steps(root) == [2, 4, 5]
    assert run_here(directory, *lower, "training.steps=8") == ExitCode.OK
    after = {step: read_manifest(root, step).arrays for step in steps(root)}
    assert list(after) == [2, 4, 5, 6, 8]
    assert [step for step in before if before[step] != after[step]] == [6, 8]
    events = [record for record in records(directory / "metrics.jsonl") if record.get("event") == "setAside"]
    assert [(event["step"], event["steps"]) for event in events] == [(4, [6, 8])]


@pytest.mark.usefixtures("as_a_trainer")
def test_the_same_command_goes_back_once(tmp_path: Path) -> None:
    """Given again, it goes on from what was saved since and says so; another step, or another run, is gone back to."""
    text = tmp_path / "text.txt"
    text.write_text("all work and no play " * 2000)
    directory = tmp_path / "run"
    (directory / "logs").mkdir(parents=True)
    words = ["training.model.layers=1", "training.checkpoint={everySteps: 1, keep: {last: 9}}"]
    words += [f"training.data.train.0.paths=[{text}]"]
    lower = [*words, "training.optimizer.learningRate=1e-4"]

    def began(*overrides: str, **asked: Any) -> tuple[int, str]:
        said = io.StringIO()
        assert run_here(directory, *overrides, said=said, **asked) == ExitCode.OK
        return [r["step"] for r in records(directory / "metrics.jsonl") if r.get("event") == "restored"][-1], (
            said.getvalue()
        )

    assert run_here(directory, *words, "training.steps=4") == ExitCode.OK
    assert began(*lower, "training.steps=2", fork=True, step=2)[0] == 2  # ends before it has saved anything
    assert began(*lower, "training.steps=3", fork=True, step=2)[0] == 2
    step, said = began(*lower, "training.steps=5", fork=True, step=2)
    assert step == 3
    assert "this run has gone back to step 2 already, and goes on from what it has saved since, up to step 3" in said
    went_back = directory / "logs" / "went-back.json"
    assert f"to go back once more, remove {went_back} and give the command again" in said

    went_back.unlink()
    assert began(*lower, "training.steps=5", fork=True, step=2)[0] == 2
    assert began(*lower, "training.steps=5", step=3)[0] == 3
    assert began(*lower, "training.steps=5", fork=True, step=2)[0] == 2
    assert began(*words, "training.steps=5", fork=True, step=2)[0] == 2
    assert began(*lower, "training.steps=6", fork=True)[0] == 5
    assert began(*lower, "training.steps=6", step=2)[0] == 2


def test_a_directory_that_cannot_be_written_is_for_a_person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another start would find it as it is."""

    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(RunDirectory, "write_summary", read_only)
    with pytest.raises(RunDirectoryError, match="Read-only file system"):
        run_here(tmp_path)


def test_no_memory_has_an_exit_code_and_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What XLA says when an allocation fails becomes an error that names the fields to change; the summary keeps it."""

    def exhausted(*_: object) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes.\nsecond line")

    monkeypatch.setattr(main, "start", exhausted)
    with pytest.raises(OutOfMemoryError, match=r"allocating 99 bytes\.. Raise batch\.microbatches") as raised:
        run_here(tmp_path)

    assert raised.value.exit_code == ExitCode.OUT_OF_MEMORY
    assert "out of memory" in (tmp_path / "summary.json").read_text()


@pytest.mark.parametrize(
    "words",
    [
        "UNKNOWN: Gloo all-reduce failed: Connection closed by [127.0.0.1]:1",
        "INTERNAL: NCCL operation ncclGroupEnd() failed: remote process exited or there was a network error",
    ],
)
def test_a_peer_that_is_gone_is_called_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """What the collectives say when another process has died becomes one line, and asks nothing of a person."""

    def lost(*_: object) -> None:
        raise jax.errors.JaxRuntimeError(f"{words}\nmore")

    monkeypatch.setattr(main, "start", lost)
    with pytest.raises(PeerError) as raised:
        run_here(tmp_path)

    assert str(raised.value) == f"another process of the run is gone: {words}"
    assert raised.value.exit_code == ExitCode.PEER


@pytest.mark.parametrize(
    "error",
    [
        jax.errors.JaxRuntimeError("INTERNAL: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered\nmore"),
        jax.errors.JaxRuntimeError("INTERNAL: NCCL: CUDA_ERROR_NVLINK_UNCORRECTABLE: uncorrectable NVLink error"),
        RuntimeError("Unable to initialize backend 'cuda': no supported devices found"),
    ],
)
def test_a_device_that_failed_is_no_failure_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """What a driver says of its device has an exit code of its own, and names the host."""

    def failed(*_: object) -> None:
        raise error

    monkeypatch.setattr(main, "start", failed)
    with pytest.raises(DeviceError, match=r"a device of \S+ has failed: ") as raised:
        run_here(tmp_path)

    assert raised.value.exit_code == ExitCode.DEVICE


def test_a_fault_of_our_own_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anything else is not dressed up as the user's problem."""

    def broken(*_: object) -> None:
        raise jax.errors.JaxRuntimeError("INTERNAL: a bug")

    monkeypatch.setattr(main, "start", broken)
    with pytest.raises(jax.errors.JaxRuntimeError, match="a bug"):
        run_here(tmp_path)


@pytest.mark.usefixtures("as_a_trainer")
def test_a_mixture_says_how_even_its_loads_are(tmp_path: Path) -> None:
    """Each step's line has what the busiest expert was given, and the share that was given nothing; the page both."""
    (tmp_path / "text.txt").write_text("So it goes. " * 999, encoding="utf-8")
    job = (
        "training.model={layers: 2, heads: 2, embed: 32, mlp: 16, seqLen: 32, activation: swiglu, mlpBias: false}",
        "training.model.experts={count: 4, perToken: 2}",
        f"training.data.train.0.paths=[{tmp_path / 'text.txt'}]",
        "training.steps=3",
    )
    (tmp_path / "logs").mkdir()
    assert run_here(tmp_path, *job) == ExitCode.OK

    lines = [record for record in records(tmp_path / METRICS) if "event" not in record]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(1 <= line["busiestExpert"] <= 2 and 0 <= line["idleExperts"] <= 0.5 for line in lines)
    curves = Metrics(tmp_path / METRICS).curves
    assert list(curves["busiestExpert"].values) == [line["busiestExpert"] for line in lines]
    assert list(curves["idleExperts"].values) == [line["idleExperts"] for line in lines]
