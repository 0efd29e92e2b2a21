"""Files of a person that are named like Python's own modules, in the folder where the command is given.

Python looks in the working directory first for what it starts with `-m`. Ours are started without that.
"""

import sys
from pathlib import Path

import pytest
from tests.cli.conftest import MODEL, QUICKSTART, Command

_TEXT = "The quick brown fox jumps over the lazy dog. " * 200
_FEW = [f"--set={change}" for change in (MODEL, "training.steps=2", "hardware.topology=2x4")]
_SMALL_DATA = "train: [{name: text, paths: [text.txt]}]\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a job, its text, and a file for each of Python's own modules that notes that it ran."""
    note = f"open({str(tmp_path / 'ran.txt')!r}, 'a').write(__name__ + '\\n')\nraise SystemExit('not the one meant')\n"
    for name in sys.stdlib_module_names:
        (tmp_path / f"{name}.py").write_text(note)
    (tmp_path / "job.yaml").write_text(QUICKSTART.read_text().replace("README.md", "text.txt"))
    (tmp_path / "text.txt").write_text(_TEXT)
    (tmp_path / "data.yaml").write_text(_SMALL_DATA)
    return tmp_path


def test_a_run_does_not_execute_them(process: Command, folder: Path) -> None:
    """Command, agents, Ray and trainers of two hosts import what they mean, and the run completes."""
    ended = process("run", "job.yaml", *_FEW, folder=folder)

    assert not (folder / "ran.txt").exists(), (folder / "ran.txt").read_text()
    assert (ended.code, ended.error) == (0, "")


def test_tokenize_does_not_execute_them(process: Command, folder: Path) -> None:
    """Nor do the workers that it starts."""
    ended = process("tokenize", "data.yaml", "--to", "tokens", "--workers", "2", folder=folder)

    assert not (folder / "ran.txt").exists(), (folder / "ran.txt").read_text()
    assert (ended.code, ended.error) == (0, "")


@pytest.mark.parametrize("words", [["-m", "mine"], ["mine.py"]], ids=["module", "script"])
def test_an_own_program_finds_its_neighbours(process: Command, tmp_path: Path, words: list[str]) -> None:
    """What lies beside a program is imported as Python does, a file with the name of a module of Python's first."""
    (tmp_path / "mine.py").write_text("import neighbour, queue\nassert neighbour.WORD == queue.WORD == 'mine'\n")
    for name in ("neighbour", "queue"):
        (tmp_path / f"{name}.py").write_text("WORD = 'mine'\n")

    ended = process("run", "--", "python", *words, folder=tmp_path)

    assert (ended.code, ended.error) == (0, "")
