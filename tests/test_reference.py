"""docs/reference: every field, command and function that there is, as the types and docstrings say it now."""

import importlib.util
import inspect
import os
import re
from pathlib import Path
from types import ModuleType

import pytest
import typer.main

import shardwise
import shardwise.client
from shardwise.cli.app import app
from shardwise.job.explain import rows
from shardwise.job.spec.accelerator import AcceleratorClass
from shardwise.program import checkpoint
from shardwise.protocol.job_status import JobStatus

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """Return the generator, which is a script and in no package."""
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "site" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.golden
def test_pages_are_generated(reference: ModuleType) -> None:
    """`make crds` would change nothing in docs/reference; `make golden` writes it too."""
    if os.environ.get("UPDATE_GOLDEN") == "1":
        reference.main()

    there = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference").iterdir()}
    assert reference.pages() == there


def test_every_field_is_there(reference: ModuleType) -> None:
    """Each field has a row under its group, of the job, of its status and of a class."""
    pages = reference.pages()
    for page, before, fields in (
        ("job.md", "", rows()),
        ("status.md", "status.", rows(JobStatus)),
        ("classes.md", "", rows(AcceleratorClass)),
    ):
        assert len(fields) > 30
        assert len(re.findall(r"^\| `\w+` \|(?:.* \|){3}$", pages[page], re.MULTILINE)) == len(fields)
        for field in fields:
            group, _, name = f"{before}{field.path}".rpartition(".")
            section = pages[page].partition(f"## `{group}`\n" if group else "## The file itself\n")[2]
            assert f"\n| `{name}` | {field.type}" in section, field.path


def test_every_command_and_option_is_there(reference: ModuleType) -> None:
    """Each command has a section, and each of its words a row in it."""
    group = typer.main.get_command(app)
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        section = reference.pages()["commands.md"].partition(f"\n## shardwise {name}\n")[2].partition("\n## ")[0]
        assert section.count("\n| `") == len(command.params) > 0
        for parameter in command.params:
            assert all(option in section for option in parameter.opts if option.startswith("-"))


def test_every_function_is_there(reference: ModuleType) -> None:
    """Each public name of the libraries has its signature and its words."""
    page = reference.pages()["python.md"]
    functions = [getattr(shardwise, name) for name in shardwise.__all__ if name not in ("Run", "checkpoint")]
    functions += [checkpoint.save, checkpoint.restore]
    for name in shardwise.client.__all__:
        members = vars(getattr(shardwise.client, name))
        functions += [one for one in members.values() if inspect.isfunction(one) and not one.__name__.startswith("_")]
    assert len(functions) > 12
    for function in functions:
        assert f"\n{function.__name__}(" in page
        assert inspect.getdoc(function).splitlines()[0] in page  # type: ignore[union-attr]


def test_a_default_is_shown_by_its_value(reference: ModuleType) -> None:
    """A reader cannot look up a constant of a module."""
    assert "save_every_seconds: float | None = 600.0,\n    keep: int = 3," in reference.pages()["python.md"]
