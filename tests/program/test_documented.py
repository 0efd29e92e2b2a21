"""docs/own-programs.md names what there is: the functions, what a program is told, and the examples."""

import re
from pathlib import Path

import shardwise
from shardwise.protocol import program

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "own-programs.md").read_text(encoding="utf-8")


def test_functions_are_described() -> None:
    """Each name that `shardwise` offers is in the table of calls, and is there."""
    called = set(re.findall(r"^\| `(\w+)", TEXT, re.MULTILINE))
    offered = set(shardwise.__all__) - {"Run"}

    assert offered <= called
    assert all(hasattr(shardwise, name) for name in shardwise.__all__)


def test_variables_are_described() -> None:
    """Each variable that a program is told its place by is named, but for the files of the library."""
    of_library = (program.PROGRESS, program.STACKS)
    ours = {value for name, value in vars(program).items() if name.isupper() and str(value).startswith("SHARDWISE_")}

    assert ours - set(of_library) <= set(re.findall(r"`(SHARDWISE_\w+)`", TEXT))
    assert set(program.OWN_VARIABLES) <= set(re.findall(r"`(\w+)`", TEXT))


def test_the_job_is_the_file() -> None:
    """The job that is shown for a cluster is the example, without the words at its head."""
    written = (ROOT / "examples" / "kubernetes" / "own-program.yaml").read_text(encoding="utf-8")

    assert re.findall(r"```yaml\n(apiVersion.*?)```", TEXT, re.DOTALL) == [re.sub(r"(?m)^#.*\n", "", written)]


def test_examples_are_listed() -> None:
    """Each script of examples/programs has a line."""
    scripts = {path.name for path in (ROOT / "examples" / "programs").glob("*.py")}

    assert scripts == set(re.findall(r"^\| \[(\w+\.py)\]", TEXT, re.MULTILINE))
