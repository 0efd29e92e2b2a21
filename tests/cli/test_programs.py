"""The command line with an own program: what it asks for, and what only jobs of the trainer are for."""

from pathlib import Path

import pytest
from tests.cli.conftest import Command

from shardwise.protocol.contract import JOB_FILE, SUMMARY, ExitCode

EXAMPLE = Path(__file__).parents[2] / "examples" / "kubernetes" / "own-program.yaml"


def test_check_shows_it(command: Command) -> None:
    """A right file gives `ok`, its devices, and what would be typed."""
    ended = command("check", str(EXAMPLE))
    assert (ended.code, ended.error) == (0, "")
    assert [line.rstrip() for line in ended.out.splitlines()] == [
        "ok",
        "job      own-program",
        "devices  4 on 2 hosts (cpu-sim 2x2)",
        "program  python equinox_sine.py 2000",
    ]


@pytest.mark.parametrize("name", ["plan", "tokenize", "generate", "export"])
def test_commands_for_models_refuse_it(command: Command, tmp_path: Path, name: str) -> None:
    """What works on a model of the trainer says so of a job, and of a run, that has none."""
    (tmp_path / JOB_FILE).write_bytes(EXAMPLE.read_bytes())
    (tmp_path / SUMMARY).write_text("{}")
    words = {
        "plan": [str(EXAMPLE)],
        "tokenize": [str(EXAMPLE)],
        "generate": [str(tmp_path), "--prompt", "a"],
        "export": [str(tmp_path), str(tmp_path / "out.safetensors")],
    }
    ended = command(name, *words[name])
    assert ended.code == ExitCode.USAGE
    assert "own-program: this job runs an own program (spec.program)" in ended.error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "training.steps=3", "--", "python", "my.py"], "--set changes a job file"),
        (["--fork", "--hosts", "2", "--", "python", "my.py"], "--fork is for jobs of the trainer"),
        (["--step", "3", "--dir", "d", str(EXAMPLE)], "--step is for jobs of the trainer"),
        (["--devices", "999", "--", "python", "my.py"], "spec.hardware.topology"),
        ([str(EXAMPLE), "training.steps=3", "--dir", "d"], "is changed by --set training.steps=3"),
        (["missing.yml", "d"], "given d after the job file missing.yml, expected nothing"),
        (["--hosts", "2", str(EXAMPLE)], "such as --set hardware.topology=2x4"),
    ],
)
def test_run_refuses(command: Command, words: list[str], message: str) -> None:
    """What a command line cannot mean is refused before anything starts."""
    ended = command("run", *words)
    assert ended.code in (ExitCode.USAGE, ExitCode.BAD_INPUT)
    assert message in " ".join(ended.error.split())


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Return a folder with a script that can be executed."""
    script = tmp_path / "my.sh"
    script.write_text("#!/bin/sh\necho it runs\n")
    script.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    "words", [["--", "./my.sh"], ["./my.sh"], ["./my.sh", "--dir", "d"], ["--dir", "d", "--", "true"]]
)
def test_a_program_of_one_word(process: Command, programs: Path, words: list[str]) -> None:
    """It is one after `--`, or where its file can be executed."""
    ended = process("run", *words, folder=programs)

    assert (ended.code, ended.error) == (0, "")
    (log,) = programs.glob("**/host-0.log")
    assert log.read_text() == ("" if "true" in words else "it runs\n")


@pytest.mark.parametrize("words", [["job.yaml"], ["--", "job.yaml"], ["job.yaml", "--"], ["job"], ["job", "--"]])
def test_one_word_that_is_a_job_file(
    command: Command, programs: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is named like a job is one even after `--`, and before it any other that cannot be executed."""
    monkeypatch.chdir(programs)
    for name in ("job.yaml", "job"):
        (programs / name).write_text("kind: Nothing\n")

    ended = command("run", *words)

    assert ended.code == ExitCode.BAD_INPUT
    assert "kind" in ended.error
