"""What the pages tell a reader to type: each command of ours exists, with its options, and so does each make target.

A comment before each block of commands says whether they are run, and `test_commands_run.py` runs those that say `run`:

    <!-- run -->                               there, as they stand, page after page in one folder
    <!-- run by tests/FILE.py::test_name -->   by that test, or one of that file, on jobs of its own
    <!-- not run: why -->                      by no test
"""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from typer.exceptions import TyperException

from shardwise.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    ROOT / name
    for name in subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    if not name.startswith("docs/decisions/")  # they are of their day
)
BLOCK = re.compile(r"^( *)(?:<!-- ([^\n]*?) -->\n *)?```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
PROGRAMS = ("shardwise", "make", "kubectl", "helm", "gcloud", "terraform", "curl", "pip", ".venv/bin/python")
RUN, RUN_BY, NOT_RUN = "run", "run by ", "not run: "
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
TYPED = ("", "console", "sh", "bash")


def typed(page: Path) -> Iterator[list[str]]:
    """Yield the words of every command line on a page."""
    for language, block in FENCE.findall(page.read_text(encoding="utf-8")):
        if language not in TYPED:
            continue
        for line in block.replace("\\\n", " ").splitlines():
            if language == "console" and not line.startswith("$ "):
                continue  # what a command has printed
            command = line.removeprefix("$ ").strip()
            if command.startswith(("shardwise ", "make ", ".venv/bin/shardwise ", ".venv-plan/bin/shardwise ")):
                yield shlex.split(command.split(" | ")[0].split(" > ")[0], comments=True)


def marked(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the mark of every block with commands, "" without one, and its commands."""
    for _, mark, language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language not in TYPED:
            continue
        lines = [line.strip() for line in block.replace("\\\n", " ").splitlines()]
        if language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        commands = [line for line in lines if line.split(" ")[0] in PROGRAMS]
        if commands:
            yield mark, commands


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_marked(page: Path) -> None:
    """Of each block it is said which test runs it, and there is that test, or why none does."""
    wrong = []
    for mark, commands in marked(page):
        file, _, name = mark.removeprefix(RUN_BY).partition("::")
        if mark.startswith(RUN_BY):
            is_there = (ROOT / file).is_file() and (not name or f"def {name}(" in (ROOT / file).read_text())
        else:
            is_there = mark == RUN or mark.startswith(NOT_RUN)
        if not is_there:
            wrong.append(f"{mark or 'no mark'}: {commands[0]}")
    assert not wrong


def test_pages_are_read() -> None:
    """There are commands on the pages, and this file finds them."""
    found = {words[0] for page in PAGES for words in typed(page)}
    assert {"shardwise", "make"} <= found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page: Path) -> None:
    """Every `shardwise` on a page parses, up to names of files, and every `make` names targets that there are."""
    group = typer.main.get_command(app)
    commands = group.commands  # type: ignore[attr-defined]
    targets = set(re.findall(r"^\.PHONY: (\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wrong = []
    for program, *words in typed(page):
        if program == "make":
            wrong += [word for word in words if "=" not in word and not word.startswith("-") and word not in targets]
        elif words[0] not in commands:
            wrong.append(words[0])
        else:
            try:
                commands[words[0]].make_context(words[0], words[1:])
            except TyperException as error:
                wrong.append(f"{shlex.join(words)}: {error}")
    assert not wrong
