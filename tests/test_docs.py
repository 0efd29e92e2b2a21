"""What the pages tell a reader to type: each command of ours exists, with its options, and so does each make target."""

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
