"""Which tests are skipped because they passed before: `tests/passed.py`."""

import os
import time
from pathlib import Path

import pytest
from tests import passed
from tests.passed import KEPT_DAYS, Keys, Passed

TREE = {
    "trainer/shardwise/train/one.py": "1",
    "trainer/shardwise/launcher/one.py": "1",
    "operator/one.py": "1",
    "Makefile": "1",
    "docs/page.md": "1",
    "README.md": "1",
    "CHANGELOG.md": "1",
    "benchmarks/one.py": "1",
    "tests/conftest.py": 'FIXTURES = "cluster"',
    "tests/helper.py": "A = 1",
    "tests/part/conftest.py": "from tests.part.running import B",
    "tests/part/running.py": "B = 1",
    "tests/part/golden/x.txt": "1",
    "tests/apart/golden/x.txt": "1",
    "tests/apart/using.py": "from tests.part.running import B",
    "tests/apart/test_using.py": "from tests.helper import A\nfrom tests.apart.using import B",
    "tests/apart/script.py": "from shardwise.launcher import local",
    "tests/apart/test_starting.py": 'SCRIPT = Path(__file__).with_name("script.py")',
    "tests/apart/test_alone.py": 'TEXT = "part"',
    "tests/part/test_one.py": "from tests import (\n    helper,\n)\nfrom tests.part.test_two import C",
    "tests/part/test_two.py": "C = 1",
    "tests/part/test_pages.py": 'PAGES = "docs"',
    "tests/part/test_hosts.py": "from shardwise.launcher import local",
    "tests/part/test_pods.py": "from tests import pods",
    "tests/pods.py": '"""On a cluster."""',
    "tests/test_tree.py": "",
    "tests/golden/x.txt": "1",
}
ONE, TWO, PAGES, HOSTS, PODS = (f"part/test_{name}" for name in ("one", "two", "pages", "hosts", "pods"))
USING, STARTING, ALONE, WHOLE = "apart/test_using", "apart/test_starting", "apart/test_alone", "test_tree"
ALL = {ONE, TWO, PAGES, HOSTS, PODS, USING, STARTING, ALONE, WHOLE}


def keys(tree: dict[str, str], surroundings: str = "3.11") -> dict[str, str]:
    """Return the keys of all files of tests, by what they are called in tests/."""
    known = Keys(tree, {path: text for path, text in tree.items() if path.endswith(".py")}, surroundings)
    return {name: known.of(f"tests/{name}.py") for name in ALL}


@pytest.mark.parametrize(
    ("changed", "run"),
    [
        ("trainer/shardwise/train/one.py", ALL),
        ("trainer/shardwise/launcher/one.py", {HOSTS, STARTING, PODS, WHOLE}),
        ("operator/one.py", {PODS, WHOLE}),
        ("Makefile", {WHOLE}),
        ("tests/helper.py", ALL),
        ("tests/conftest.py", ALL),
        ("tests/golden/x.txt", {WHOLE}),
        ("tests/part/running.py", ALL - {STARTING, ALONE}),
        ("tests/part/golden/x.txt", ALL - {STARTING, ALONE}),
        ("tests/apart/golden/x.txt", {USING, STARTING, ALONE, WHOLE}),
        ("tests/part/test_one.py", {ONE, WHOLE}),
        ("tests/part/test_two.py", {ONE, TWO, WHOLE}),
        ("docs/page.md", {PAGES, WHOLE}),
        ("CHANGELOG.md", {PAGES, WHOLE}),
        ("README.md", {PAGES, PODS, WHOLE}),
        ("benchmarks/one.py", {WHOLE}),
    ],
)
def test_what_a_change_runs(changed: str, run: set[str]) -> None:
    """All that could end in another way, however the file is changed: removed too."""
    before = keys(TREE)
    edited, removed = {**TREE, changed: TREE[changed] + "\n"}, {path: TREE[path] for path in TREE if path != changed}
    for after in (keys(edited), keys(removed)):
        assert {name for name in ALL if after[name] != before[name]} == run
    assert before == keys(dict(TREE))


def test_surroundings_run_everything() -> None:
    """Another Python, kernel or variable is another key of every file."""
    assert not set(keys(TREE).values()) & set(keys(TREE, "3.12").values())


TESTS = """\
import pathlib, pytest
def note(name):
    with pathlib.Path("ran").open("a") as file:
        file.write(name + " ")
@pytest.fixture
def made():
    note("made")
    yield
    assert not pathlib.Path("broken").exists()
def test_passes(made):
    note("passes")
def test_fails():
    note("fails")
    assert False
def test_skips():
    note("skips")
    pytest.skip("not here")
"""


def test_only_what_has_passed_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what failed, in its teardown too, or skipped itself; a skipped test makes no fixture. A new key runs all."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(passed, "ROOT", tmp_path)
    monkeypatch.setattr(passed, "PASSED", tmp_path / "passed")
    monkeypatch.setattr(passed, "SLOW_SECONDS", 0.0)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").touch()

    def ran(content: str) -> str:
        (tmp_path / "ran").unlink(missing_ok=True)
        words = ["-q", "--import-mode=importlib", "-p", "no:cacheprovider", "-c", "pytest.ini", "tests"]
        pytest.main(words, plugins=[Passed(Keys({"tests/test_it.py": content}, {}, ""))])
        return (tmp_path / "ran").read_text()

    (tmp_path / "broken").touch()
    assert ran("old") == "made passes fails skips "
    (tmp_path / "broken").unlink()
    assert ran("old") == "made passes fails skips "
    assert ran("old") == "fails skips "
    assert ran("new") == "made passes fails skips "
    assert ran("old") == "fails skips "


def test_what_was_kept_long_ago_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the files in it; what is newer stays."""
    monkeypatch.setattr(passed, "PASSED", tmp_path)
    before = time.time() - KEPT_DAYS * 24 * 3600
    for name, moment in (("old", before - 60), ("new", before + 60)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "test").touch()
        os.utime(tmp_path / name, (moment, moment))

    passed._forget(before)
    assert [path.name for path in tmp_path.rglob("*")] == ["new", "test"]


def test_what_is_asked_for_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long ago it passed."""
    monkeypatch.setattr(passed, "PASSED", tmp_path)
    here = Path(__file__)
    known = Keys({f"tests/{here.name}": "1"}, {}, "")
    folder = tmp_path / known.of(f"tests/{here.name}")
    folder.mkdir()
    os.utime(folder, (0, 0))

    assert passed._asked_for(known, here) == folder
    passed._forget(time.time() - 60)
    assert folder.exists()
