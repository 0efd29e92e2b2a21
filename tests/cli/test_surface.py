"""The command line's surface: every command and option, frozen; and what holds for all of them."""

import errno
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest
import typer.main
from tests.cli.conftest import COMMAND, Command
from tests.conftest import Golden

from shardwise.cli import run
from shardwise.cli.app import app, main
from shardwise.protocol.contract import ExitCode

EXAMPLES = Path(__file__).parents[2] / "examples"

COMMANDS = (
    "check",
    "plan",
    "tokenize",
    "run",
    "submit",
    "status",
    "top",
    "logs",
    "page",
    "data",
    "stop",
    "generate",
    "serve",
    "evaluate",
    "export",
    "import",
)


def surface() -> Iterator[str]:
    """Yield the surface line by line: commands with the first line of their help, then their parameters."""
    group = typer.main.get_command(app)
    for parameter in group.params:
        yield f"{' '.join(parameter.opts)}: {parameter.help}"  # type: ignore[attr-defined]
    for name, command in sorted(group.commands.items()):  # type: ignore[attr-defined]
        yield f"\n{name}: {command.help.splitlines()[0]}"
        for parameter in command.params:
            default = "required" if parameter.required else f"default {parameter.default}"
            names = [name for name in parameter.opts if name.startswith("-")]
            shown = " ".join([*names, parameter.metavar or ""]).rstrip()
            yield f"  {shown} ({default}): {parameter.help}"
        yield f"  {command.epilog}"


def test_surface_is_frozen(golden: Golden) -> None:
    """Commands, options, defaults and help change only together with the golden file."""
    golden("surface.txt", "\n".join(surface()) + "\n")


def test_help_has_a_line_for_each_command(command: Command) -> None:
    """Every command's purpose fits one line of an 80-column terminal."""
    lines = command("--help").out.splitlines()
    listed = [line for line in lines if line.strip("│ ").split(" ")[0] in COMMANDS]
    assert len(listed) == len(COMMANDS)
    first = lines.index(listed[0])
    assert lines[first : first + len(COMMANDS)] == listed
    assert lines[first + len(COMMANDS)].startswith("╰")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example(name: str, command: Command) -> None:
    """The help of each command shows how it is typed."""
    ended = command(name, "--help")
    assert ended.code == 0
    assert f"Example: shardwise {name}" in ended.out


def test_version(command: Command) -> None:
    """--version prints the version and nothing else."""
    ended = command("--version")
    assert (ended.code, ended.out.split()[0]) == (0, "shardwise")


@pytest.mark.parametrize("arguments", [["train"], ["run"], ["status"], ["check", "--wrong"], ["check"]], ids=" ".join)
def test_wrong_usage_is_exit_code_2(arguments: list[str], command: Command) -> None:
    """An unknown command, a missing argument and an unknown option end with 2 and words on standard error."""
    ended = command(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.error


def test_error_has_no_traceback(command: Command, tmp_path: Path) -> None:
    """A mistake of the user is one message on standard error, whole on its line, without a traceback."""
    missing = tmp_path / ("long-name-" * 10) / "job.yaml"
    ended = command("check", str(missing))
    assert (ended.code, ended.out) == (81, "")
    assert ended.error.startswith(f"error: {missing}")
    assert "Traceback" not in ended.error


def test_unexpected_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, quickstart: str) -> None:
    """What is our own mistake reaches the person with everything that a report needs."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(run, "load", broken)
    monkeypatch.setattr(sys, "argv", ["shardwise", "run", quickstart, "--dir", "x"])
    with pytest.raises(ZeroDivisionError):
        main()


def test_interrupt_is_quiet(monkeypatch: pytest.MonkeyPatch, command: Command, quickstart: str) -> None:
    """Ctrl-C ends with what a shell gives for it, without a word."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "load", interrupted)
    ended = command("run", quickstart, "--dir", "x")
    assert (ended.code, ended.out, ended.error) == (130, "", "")


@pytest.mark.parametrize(
    "arguments", [["run", "{job}", "--dir", "x"], ["generate", "{run}"], ["export", "{run}", "x.safetensors"]]
)
def test_missing_trainer_is_said_in_words(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, command: Command, quickstart: str, tmp_path: Path
) -> None:
    """Without the trainer's libraries a command says what to install."""
    (tmp_path / "job.yaml").write_bytes(Path(quickstart).read_bytes())
    (tmp_path / ".lock").touch()
    for name in [name for name in sys.modules if name.startswith(("shardwise.train", "shardwise.cli.saved_model"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.chdir(tmp_path)
    ended = command(*(argument.format(job=quickstart, run=tmp_path) for argument in arguments))
    assert ended.code == 2
    assert "needs jax" in ended.error
    assert 'pip install "shardwise[train]"' in ended.error


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["check", "job.yaml"]], ids=" ".join)
def test_an_output_that_is_full(words: list[str], tmp_path: Path) -> None:
    """That nothing can be written where the output goes is said in a line, with the exit code of storage."""
    shutil.copy(EXAMPLES / "quickstart.yaml", tmp_path / "job.yaml")
    (tmp_path / "README.md").write_text("a text\n" * 2000)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*COMMAND, *words], cwd=tmp_path, stdout=full, stderr=PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        ExitCode.STORAGE,
        "error: standard output cannot be written (No space left on device)\n",
    )


def test_a_disk_that_is_full_elsewhere_is_not_called_the_output(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error without a file's name may come from anywhere: of the output is only said what its own flush says."""

    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("shardwise.cli.app.app", full)
    ended = command("check")
    assert (ended.code, "output" in ended.error) == (ExitCode.STORAGE, False)
    assert "a disk of this machine is full (No space left on device)" in ended.error


def test_no_output() -> None:
    """A command that is started without any ends as it would."""
    closed = ["sh", "-c", f"{shlex.join(COMMAND)} --version >&-"]
    done = subprocess.run(closed, stderr=PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (ExitCode.OK, "")
