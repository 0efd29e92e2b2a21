"""What the pages tell a reader to type: each command of ours exists, with its options, and so does each make target.

A comment before each block of commands says whether they are run, and `test_commands_run.py` runs those that say `run`:

    <!-- run -->                               there, as they stand, page after page in one folder
    <!-- run by tests/FILE.py::test_name -->   by that test, by those of a file, or several (A, B), on jobs of their own
    <!-- not run: why -->                      by no test, or by one that does the same in another way, which it names

A block without a language is one of commands; what is none says what it is, such as ```text.
"""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from tests.reached import words_of
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
BLOCK = re.compile(r"^( *)(?:<!-- ([^\n]*?) -->\n *)?```([^\n`]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
RUN, RUN_BY, NOT_RUN = "run", "run by ", "not run: "
TYPED = ("", "console", "sh", "bash")
# Programs whose next word says what they do.
WITH_VERBS = ("shardwise", "make", "kubectl", "helm")


def typed(page: Path) -> Iterator[list[str]]:
    """Yield the words of every command line on a page."""
    for _, commands in marked(page):
        for command in commands:
            bare = re.sub(r"^([A-Za-z_]+=\S+ +)*(\S*/)?", "", command)  # without variables and the program's folder
            if bare.startswith(("shardwise ", "make ")):
                yield shlex.split(bare.split(" | ")[0].split(" > ")[0], comments=True)


def marked(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the mark of every block with commands, "" without one, and its commands."""
    for _, mark, language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language not in TYPED:
            continue
        lines = [line.strip() for line in block.replace("\\\n", " ").splitlines()]
        if language == "console":  # the other lines are what a command has printed
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        yield mark, [line for line in lines if line and not line.startswith("#")]


def decisive(command: str) -> set[str]:
    """Return the words without which a command is not run: its program, and what that is to do."""
    words = [word for word in command.split() if not re.match(r"[A-Za-z_]+=", word)]
    program = Path(words[0]).name
    verb = next((word for word in words[1:] if not word.startswith("-")), "") if program in WITH_VERBS else ""
    return {word for word in (program, verb) if word}


def unmet(mark: str, commands: list[str]) -> Iterator[str]:
    """Yield what is wrong with a mark."""
    if not mark.startswith(RUN_BY):
        if mark != RUN and not mark.startswith(NOT_RUN):
            yield f"{mark or 'no mark'}: {commands[0]}"
        return
    reached: set[str] = set()
    for test in mark.removeprefix(RUN_BY).split(", "):
        file, _, name = test.partition("::")
        if words := words_of(ROOT / file, name):
            reached |= words
        else:
            yield f"no such test: {test}"
            return
    for command in commands:
        if missing := decisive(command) - reached:
            yield f"{mark} has no word of {sorted(missing)}: {command}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_marked(page: Path) -> None:
    """Of each block it is said which test runs it, one that has the program and its verb, or why none does."""
    assert not [wrong for mark, commands in marked(page) for wrong in unmet(mark, commands)]


@pytest.mark.parametrize(
    ("mark", "command", "words"),
    [
        ("", "jq . x.json", "no mark: jq"),
        ("run sometimes", "make test", "run sometimes: make"),
        ("run by tests/test_docs.py::test_that_is_not_there", "make test", "no such test"),
        ("run by tests/kubernetes/test_jobs.py::test_a_job_by_hand", "kubectl taint nodes n x=y", "['taint']"),
        ("run by tests/hosts/test_stopped.py", "A=b helm uninstall shardwise", "['helm', 'uninstall']"),
    ],
)
def test_a_wrong_mark_is_found(mark: str, command: str, words: str) -> None:
    """No mark, one that says nothing, a test that there is not, and one that does something else."""
    (wrong,) = unmet(mark, [command])
    assert words in wrong


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
                # A run directory at a URL is fetched as soon as it is parsed; as a path it is a name of a file.
                paths = [word.replace("gs://YOUR-BUCKET", "YOUR-BUCKET") for word in words[1:]]
                commands[words[0]].make_context(words[0], paths)
            except TyperException as error:
                wrong.append(f"{shlex.join(words)}: {error}")
    assert not wrong


def test_who_waits_says_for_how_long() -> None:
    """Left out, `kubectl wait` gives up after 30 seconds, which is less than any job takes to start."""
    heads = [line for path in sorted((ROOT / "examples").rglob("*.yaml")) for line in path.read_text().splitlines()]
    typed_there = [command for page in PAGES for _, commands in marked(page) for command in commands]
    waits = [line for line in (*heads, *typed_there) if "kubectl wait --for" in line]

    assert len(waits) >= 5
    assert not [line for line in waits if "--timeout=" not in line]
