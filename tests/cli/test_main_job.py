"""The main job through the command line: run, go on, status, generate, serve, export, import, every refusal.

Every `run` is a process, as a person's shell would see it; the rest shares this process, which has imported JAX
already.
"""

import json
import platform
import shutil
import signal
from pathlib import Path

import httpx
import jax
import pytest
from tests.cli.conftest import MODEL, QUICKSTART, Command
from tests.cli.running import LIMIT_SECONDS
from tests.cli.served import Served
from tests.cli.shell import Shell
from tests.train.s3_server import serving

from shardwise.job.document import read_document
from shardwise.protocol.contract import CACHE_VARIABLE, ExitCode, Phase

SMALL = [
    f"--set={change}"
    for change in (
        MODEL,
        "training.optimizer.learningRate=1e-2",
        "training.checkpoint.everySteps=2",
    )
]
STEPS = "--set=training.steps=6"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the quickstart's job file, by the name x, and the text that it names."""
    made = tmp_path_factory.mktemp("main-job")
    (made / "job.yaml").write_text(QUICKSTART.read_text().replace("name: quickstart", "name: x"))
    (made / "README.md").write_text("The quick brown fox jumps over the lazy dog, être ou ne pas être. " * 200)
    (made / "other.md").write_text("Pack my box with five dozen liquor jugs. " * 300)
    (made / "empty.md").touch()
    return made


@pytest.fixture(scope="module")
def finished(folder: Path, process: Command) -> Path:
    """Return the directory, named after the job, of a run of the small quickstart that has come to its end."""
    ended = process("run", "job.yaml", *SMALL, STEPS, folder=folder)
    assert (ended.code, ended.error) == (0, "")
    assert ended.out.startswith("run directory runs/x\n")
    assert "complete: step 6" in ended.out
    return folder / "runs" / "x"


@pytest.fixture(autouse=True)
def _in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def status_of(directory: Path, command: Command) -> dict[str, object]:
    """Return what `status --json` says."""
    ended = command("status", str(directory), "--json")
    assert ended.code == 0
    known: dict[str, object] = json.loads(ended.out)
    return known


def test_a_run_leaves_what_was_promised(finished: Path, command: Command) -> None:
    """The directory has the resolved job, a record a step, the newest checkpoints, the plot and the summary."""
    known = status_of(finished, command)
    assert {key: known[key] for key in ("status", "step", "of", "checkpoints", "error")} == {
        "status": "complete",
        "step": 6,
        "of": 6,
        "checkpoints": [2, 4, 6],
        "error": None,
    }
    assert all(isinstance(known[key], str) and len(str(known[key])) == 32 for key in ("initialDigest", "digest"))
    records = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if "event" not in record] == [1, 2, 3, 4, 5, 6]
    started = next(record for record in records if record.get("event") == "started")
    assert (started["devices"], started["hosts"]) == (8, [platform.node()])
    assert (started["versions"]["jax"], len(started["code"])) == (jax.__version__, 64)
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["finalLoss"] == known["loss"]
    assert (finished / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert command("check", str(finished / "job.yaml"), "--resolved").out == (finished / "job.yaml").read_text()


def test_a_complete_run_has_nothing_to_do(finished: Path, folder: Path, process: Command, command: Command) -> None:
    """The same command on a finished run says so, ends with 0, and changes neither weights nor summary."""
    before = status_of(finished, command)
    ended = process("run", "job.yaml", "--dir", "runs/x", *SMALL, STEPS, folder=folder)
    assert ended.code == 0
    assert "nothing to do" in ended.out
    after = status_of(finished, command)
    assert {**after, "phases": before["phases"], "goodput": before["goodput"]} == before
    assert json.loads((finished / "summary.json").read_text())["finalLoss"] == before["loss"]


def test_more_steps_go_on(finished: Path, folder: Path, process: Command, command: Command) -> None:
    """With more steps the same command goes on from the newest checkpoint and repeats none of them."""
    initial = status_of(finished, command)["initialDigest"]
    words = ["run", "job.yaml", "--dir", "runs/x", *SMALL, "--set=training.steps=8"]
    assert process(*words, folder=folder).code == 0
    known = status_of(finished, command)
    assert (known["step"], known["initialDigest"]) == (8, initial)
    records = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if "event" not in record] == list(range(1, 9))


def test_another_run_is_refused(finished: Path, folder: Path, process: Command, command: Command) -> None:
    """What makes it another run is named as the command's own error, and what was there stays as it was."""
    before = status_of(finished, command)
    changes = ["--set=training.model.initStd=0.5", "--set=training.data.train.0.paths=[other.md]"]
    ended = process("run", "job.yaml", "--dir", "runs/x", *SMALL, "--set=training.steps=8", *changes, folder=folder)
    assert ended.code == ExitCode.BAD_INPUT
    assert ended.error.startswith("error: ")
    assert "spec.training.model.initStd: was 0.02, is now 0.5" in ended.error
    assert "dataFingerprint" in ended.error
    assert "--fork" in ended.error
    assert {**status_of(finished, command), "goodput": before["goodput"]} == before


def test_fork_goes_on_as_another_run(finished: Path, folder: Path, process: Command, command: Command) -> None:
    """With --fork the changed job goes on from the newest checkpoint."""
    change = "--set=training.data.train.0.paths=[other.md]"
    words = ["run", "job.yaml", "--dir", "runs/x", *SMALL, change, "--set=training.steps=10", "--fork"]
    ended = process(*words, folder=folder)
    assert ended.code == 0
    assert "complete: step 10" in ended.out
    assert status_of(finished, command)["step"] == 10


def test_data_that_cannot_be_trained_on(folder: Path, process: Command, command: Command, tmp_path: Path) -> None:
    """Empty data are refused in words before anything is trained, and status repeats them.

    The trainer's error is the command's: said once, on standard error, with its exit code; nothing is tried again.
    """
    words = ["run", "job.yaml", "--dir", str(tmp_path / "run"), *SMALL, STEPS]
    ended = process(*words, "--set=training.data.train.0.paths=[empty.md]", folder=folder)
    assert ended.code == ExitCode.BAD_INPUT
    assert ended.error.startswith("error: ")
    assert "empty.md' is empty" in ended.error
    assert len(ended.error.splitlines()) == 1
    assert "error" not in ended.out
    known = status_of(tmp_path / "run", command)
    assert (known["status"], known["step"], known["restarts"]) == ("failed", 0, {})
    assert "empty.md' is empty" in str(known["error"])


def test_directory_that_cannot_be_made(command: Command) -> None:
    """A --dir below a file is refused with its name."""
    ended = command("run", "job.yaml", "--dir", "README.md/run", *SMALL, STEPS)
    assert ended.code == ExitCode.BAD_INPUT
    assert "README.md/run" in ended.error


@pytest.mark.usefixtures("finished")
def test_cache_that_cannot_be_used(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache folder that cannot be made ends `run` at once, with its variable, and no run directory is made."""
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)

    ended = command("run", "job.yaml", "--dir", str(tmp_path / "run"), *SMALL)

    assert ended.code == ExitCode.USAGE
    assert "set SHARDWISE_CACHE to another one" in ended.error
    assert not (tmp_path / "run").exists()


def test_generate_writes_the_prompt_and_what_follows(process: Command, folder: Path) -> None:
    """Text is UTF-8 on standard output, notes are on standard error; the same seed gives the same text."""
    words = ["generate", "runs/x", "--prompt", "être", "--tokens", "12", "--seed", "3", "--top-p", "0.99"]
    first = process(*words, folder=folder)
    assert first.code == 0
    assert first.out.startswith("être")
    assert first.out.endswith("\n")
    assert len(first.out) > len("être\n")
    assert "checkpoint of step" in first.error
    (folder / "prompts.jsonl").write_text('{"prompt": "être"}\n\n{"prompt": "", "id": 7}\n')
    words = [word for word in words if word not in ("--prompt", "être")]
    many = process(*words, "--prompts", "prompts.jsonl", "--samples", "2", folder=folder)
    lines = [json.loads(line) for line in many.out.splitlines()]
    assert [(line["prompt"], line["sample"]) for line in lines] == [("être", 0), ("être", 1), ("", 0), ("", 1)]
    assert "être" + lines[0]["text"] + "\n" == first.out
    assert lines[0]["text"] != lines[1]["text"]
    assert all((line["finishReason"], line["tokens"]) == ("length", 12) for line in lines)


@pytest.mark.usefixtures("finished")
def test_generate_from_a_step_that_is_not_there(process: Command, folder: Path) -> None:
    """A checkpoint asked for by name and not there is an error that lists those that are."""
    ended = process("generate", "runs/x", "--step", "3", folder=folder)
    assert ended.code == ExitCode.BAD_INPUT
    assert "step-00000003" in ended.error
    assert "6" in ended.error.partition("Committed steps")[2]


@pytest.mark.usefixtures("finished")
def test_serve_from_a_step_that_is_not_there(process: Command, folder: Path) -> None:
    """It is an error that lists those that are, and no token is printed for what is not served."""
    ended = process("serve", "runs/x", "--port", "0", "--step", "3", folder=folder)
    assert ended.code == ExitCode.BAD_INPUT
    assert "step-00000003" in ended.error
    assert "6" in ended.error.partition("Committed steps")[2]
    assert "token" not in ended.error


@pytest.mark.usefixtures("finished")
def test_serve_answers_until_it_is_stopped(
    process: Command, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It prints its token and its address; a text is the one that `generate` writes.

    SIGTERM lets the stream that is under way end, and nobody else is answered; then the command ends well.
    """
    greedy = ["--prompt", "The quick", "--temperature", "0", "--tokens", "24"]
    expected = process("generate", "runs/x", *greedy, folder=folder).out.removesuffix("\n")
    cache = tmp_path_factory.getbasetemp() / "cache"
    with Served(folder, cache, "runs/x", "--port", "0", "--rows", "2") as served:
        asked = {"model": "x", "prompt": "The quick", "temperature": 0, "max_tokens": 24}
        answer = served.client.post("completions", json=asked).json()
        assert "The quick" + answer["choices"][0]["text"] == expected
        assert httpx.get(f"{served.client.base_url}models").status_code == 401
        stream = {**asked, "max_tokens": 1000, "stream": True}
        with served.client.stream("POST", "completions", json=stream) as response:
            served.process.send_signal(signal.SIGTERM)
            served.until(served.is_closed)
            lines = [line for line in response.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert served.process.wait(LIMIT_SECONDS) == 0
        assert served.said.splitlines()[-1] == "stopped"
    pieces = (json.loads(line.removeprefix("data: "))["choices"][0]["text"] for line in lines[:-1])
    assert ("The quick" + "".join(pieces)).startswith(expected)


@pytest.mark.usefixtures("finished")
def test_weights_go_out_and_in_and_are_fine_tuned(command: Command, process: Command, folder: Path) -> None:
    """An exported model comes back as a run that says what is left to fill in, then trains on from those weights.

    However few checkpoints stay, the weights are one of them, and go out again as they came.
    """
    assert command("export", "runs/x", "out/model.safetensors").code == 0
    words = ["import", "out/model.safetensors", "runs/tuned", "--set=hardware.topology=1x8"]
    made = command(*words)
    assert made.code == 0
    assert "spec.training.data.train.0.paths" in made.out
    assert made.out.splitlines()[-1] == "next: shardwise run runs/tuned/job.yaml --dir runs/tuned"
    assert command("check", "runs/tuned/job.yaml").code == 0
    tuned = folder / "runs" / "tuned"
    assert status_of(tuned, command)["status"] == "ready"
    again = command(*words)
    assert (again.code, "holds a run already" in again.error) == (ExitCode.BAD_INPUT, True)
    filled_in = ["--set=training.data.train.0.paths=[README.md]", "--set=training.optimizer.schedule.warmupSteps=0"]
    few = ["--set=training.steps=3", "--set=training.checkpoint={everySteps: 1, keep: {last: 1}}"]
    words = ["run", "runs/tuned/job.yaml", "--dir", "runs/tuned", *filled_in, *few]
    ended = process(*words, folder=folder)
    assert ended.code == 0
    assert "step 0: restored" in ended.out
    assert _first_loss(tuned) < _first_loss(folder / "runs" / "x") - 0.5
    assert len(str(status_of(tuned, command)["initialDigest"])) == 32
    assert status_of(tuned, command)["checkpoints"] == [0, 3]
    assert command("export", "runs/tuned", "out/again.safetensors", "--step=0").code == 0
    assert (folder / "out" / "again.safetensors").read_bytes() == (folder / "out" / "model.safetensors").read_bytes()


@pytest.mark.usefixtures("finished")
def test_weights_imported_into_a_bucket(command: Command, folder: Path) -> None:
    """The job names them there, and they are the same; a URL for the run directory is refused with how it is done.

    A short run warms up for a tenth of its steps.
    """
    assert command("export", "runs/x", "out/model.safetensors").code == 0
    refused = command("import", "out/model.safetensors", "s3://bucket/weights")
    assert (refused.code, "--set training.checkpoint.path=s3://bucket/weights" in refused.error) == (
        ExitCode.USAGE,
        True,
    )
    assert not list(folder.glob("s3*"))
    changes = ["hardware.topology=1x8", "training.data.train.0.paths=[README.md]", "training.steps=3"]
    with serving() as bucket:
        path = f"training.checkpoint.path={bucket.url}/weights"
        words = [f"--set={change}" for change in (*changes, path)]
        made = command("import", "out/model.safetensors", "runs/there", *words)
        assert made.code == 0, made.error
        assert "checkpoint 0 of s3://bucket/weights" in made.out
        assert command("export", "runs/there", "out/back.safetensors").code == 0
    assert (folder / "out" / "back.safetensors").read_bytes() == (folder / "out" / "model.safetensors").read_bytes()
    job = read_document(folder / "runs" / "there" / "job.yaml").data["spec"]["training"]
    assert job["startFrom"] == {"path": "s3://bucket/weights", "step": 0}
    assert job["optimizer"]["schedule"]["warmupSteps"] == 0


@pytest.mark.usefixtures("finished")
def test_an_imported_job_begins_with_its_weights_wherever_it_runs(
    command: Command, process: Command, folder: Path, tmp_path: Path
) -> None:
    """In another directory, from another folder, with paths given relative: never from drawn weights."""
    assert command("export", "runs/x", "out/again/model.safetensors").code == 0
    changes = ["--set=hardware.topology=1x8", "--set=training.data.train.0.paths=[README.md]"]
    assert command("import", "out/again", "runs/moved", *changes).code == 0
    job = str(folder / "runs" / "moved" / "job.yaml")
    few = ["--set=training.optimizer.schedule.warmupSteps=0", "--set=training.steps=1"]
    ended = process("run", job, "--dir", str(tmp_path / "elsewhere"), *few, folder=tmp_path)
    assert ended.code == 0, ended.error
    assert "beginning with the weights of step 0 of" in ended.out
    assert _first_loss(tmp_path / "elsewhere") < _first_loss(folder / "runs" / "x") - 0.5

    shutil.rmtree(folder / "runs" / "moved" / "checkpoints")
    ended = process("run", job, "--dir", str(tmp_path / "third"), *few, folder=tmp_path)
    assert ended.code == ExitCode.BAD_INPUT
    assert "step-00000000 cannot be used" in ended.error


@pytest.mark.usefixtures("finished")
def test_paths_are_printed_as_they_are(command: Command) -> None:
    """What stands in brackets is a part of a path, not a style of the terminal."""
    out = command("export", "runs/x", "out[v2]/model.safetensors")
    made = command("import", "out[v2]/model.safetensors", "runs/tuned[v2]", "--set=hardware.topology=1x8")

    assert (out.code, made.code) == (0, 0)
    assert out.out.splitlines()[0].startswith("writing out[v2]/model.safetensors from the checkpoint")
    assert "\nwrote out[v2]/model.safetensors (" in out.out
    assert made.out.startswith("reading out[v2]/model.safetensors ...\n")
    assert "are checkpoint 0 of runs/tuned[v2]/checkpoints\n" in made.out
    assert made.out.splitlines()[-1] == "next: shardwise run runs/tuned[v2]/job.yaml --dir runs/tuned[v2]"


@pytest.mark.parametrize(
    ("out", "code"), [("model.bin", ExitCode.USAGE), ("README.md/model.safetensors", ExitCode.USAGE)]
)
def test_export_to_a_wrong_place(out: str, code: ExitCode, finished: Path, command: Command) -> None:
    """A name or a folder that cannot be is wrong usage."""
    assert command("export", str(finished), out).code == code


def test_second_live_run_is_refused_and_the_first_stops_with_a_save(
    tmp_path: Path, process: Command, command: Command, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """While a run lives its directory is its own; SIGTERM saves it and ends it with 80."""
    with Shell(tmp_path, tmp_path_factory.getbasetemp() / "cache", ["training.steps=1000000"]) as shell:
        live = shell.begin("live", "training.checkpoint.everySteps=1000000")
        live.until_phase(Phase.STEP, step=1)
        second = process("run", "job.yaml", "--dir", "live", folder=tmp_path)
        assert second.code == ExitCode.BAD_INPUT
        assert f"process {live.command.pid}" in second.error
        known = status_of(live.directory, command)
        assert known["status"] == "running"
        assert isinstance(known["etaSeconds"], float)
        assert live.send(signal.SIGTERM) == ExitCode.SAVED
    known = status_of(live.directory, command)
    assert (known["status"], known["checkpoints"]) == ("stopped", [known["step"]])


def _first_loss(directory: Path) -> float:
    records = (json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines())
    return float(next(record["loss"] for record in records if "event" not in record))
