"""Skips what has passed before: a slow test whose every input has the same content as then. A plugin of pytest.

`make test` has it on: `--skip-passed`. That a test passed is kept outside of the checkout; without the folder every
test runs, and so do those that failed, that were skipped, or that took no more than a second.

An input of a test is the whole tree but for two things: other files of tests, unless it imports them, and the parts
of the tree that it does not name. A part is named by a word anywhere in a file of tests or in what it imports of
tests/, so no input has to be declared, and a word too many only runs a test too often. The files in tests/ itself,
which judge the whole tree, have all of it as their input.
"""

import os
import platform
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from functools import cache, partial
from hashlib import sha256
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PASSED = Path("~/.cache/shardwise/passed").expanduser()
"""A folder for each key, and in it an empty file for each test that has passed with it."""
SLOW_SECONDS = 1.0
KEPT_DAYS = 30
REASON = "passed before, with the same content of all that it depends on (`make test FRESH=1` runs it)"
_VARIABLES = ("KIND", "HYPOTHESIS_PROFILE", "JAX_PLATFORMS", "XLA_FLAGS")
_PODS = "cluster|kubernetes|operator|images|charts|helm"
"""Who names one of these may run pods, in which everything runs."""
_WHOLE = rf"\bcli\b|\btour\b|\bbin\b.*shardwise|{_PODS}"
"""Who names one of these starts the command line, in which every package runs; a tour may start it."""
SHARED = ""
"""What is an input of every test."""
PARTS = {
    "docs/": r"\bdocs\b|\.md\b",
    "README.md": rf"\bdocs\b|\.md\b|examples|{_PODS}",  # the text that examples read; the images have it
    "benchmarks/": r"\bbenchmarks\b",
    "examples/": r"examples|\btour\b",
    "operator/": _PODS,
    "charts/": _PODS,
    "images/": _PODS,
    "Makefile": r"\bmake\b|makefile",
    "tests/passed.py": r"\bpassed\.py\b",  # decides what runs, not how it ends
    "tests/cluster/": rf"api_server|{_PODS}",
    "tests/job/": r"\bjob\b",
    "tests/page/": r"\bpage\b|\bbrowser\b",
    "trainer/shardwise/cli/": _WHOLE,
    "trainer/shardwise/client/": rf"\bclient\b|{_WHOLE}",
    "trainer/shardwise/launcher/": rf"launcher|{_WHOLE}",
    "trainer/shardwise/page/": rf"launcher|\bpage\b|{_WHOLE}",
    "trainer/shardwise/plan/": rf"\bplan\b|{_WHOLE}",
    "trainer/shardwise/program/": rf"launcher|\bprogram\b|{_WHOLE}",
}
"""Parts of the tree by how their paths begin, and what names one; of the packages, also what imports or starts it."""
_IMPORTED = re.compile(r"^\s*(?:from|import) (tests(?:\.\w+)*)(?: import (\([^)]*\)|.*))?", re.MULTILINE)
_BESIDE = re.compile(r"\b\w+\.py\b")
"""A script beside a file, which it starts."""


class Keys:
    """The key of every file of tests: another one after any change that could change how its tests end.

    Args:
        contents: Of every file of the tree, by its path from the root, whatever stands for its content.
        texts: The sources in tests/, by the same paths.
        surroundings: What is no file: versions, variables.

    """

    def __init__(self, contents: Mapping[str, str], texts: Mapping[str, str], surroundings: str) -> None:
        """Hash what all tests share."""
        self._contents, self._texts, self._surroundings = contents, texts, surroundings
        of_parts: dict[str, dict[str, str]] = {}
        for path, content in contents.items():
            if not _is_test(path):
                of_parts.setdefault(_part(path), {})[path] = content
        self._shared = surroundings + _digest(of_parts.pop(SHARED, {}))
        self._parts = {part: _digest(within) for part, within in of_parts.items()}

    def of(self, path: str) -> str:
        """Return the key of a file of tests, by its path from the root."""
        if path.count("/") == 1:
            return sha256(f"{path} {self._surroundings} {_digest(self._contents)}".encode()).hexdigest()[:32]
        read = set(self._reached(path))
        tests = _digest({each: self._contents[each] for each in read if _is_test(each)})
        parts = " ".join(self._parts[part] for part in self.named(path))
        return sha256(f"{path} {self._shared} {tests} {parts}".encode()).hexdigest()[:32]

    def named(self, path: str) -> list[str]:
        """Return the parts of the tree that a file of tests or what it imports of tests/ names."""
        # `tests/conftest.py`, which every test has, names how tests are distributed and which fixtures there are.
        text = path + "".join(self._texts[each] for each in sorted(self._reached(path)) if each != "tests/conftest.py")
        return [part for part in sorted(self._parts) if re.search(_names(part), text, re.IGNORECASE)]

    def _reached(self, path: str) -> Iterator[str]:
        """Yield a file of tests, its `conftest.py`s, and what they import of tests/ or name beside them, each once."""
        above = [f"{folder}/conftest.py" for folder in Path(path).parents]
        ahead, seen = [path, *above], set()
        while ahead:
            if (here := ahead.pop()) not in self._texts or here in seen:
                continue
            seen.add(here)
            yield here
            for module, names in _IMPORTED.findall(self._texts[here]):
                place = module.replace(".", "/")
                within = [f"{place}/{name}" for name in re.findall(r"\w+", names)]
                ahead += [f"{each}.py" for each in (place, *within)]
            ahead += [f"{Path(here).parent}/{script}" for script in _BESIDE.findall(self._texts[here])]


class Passed:
    """Skips what has passed, and keeps what passes."""

    def __init__(self, keys: Keys) -> None:
        """Nothing is known yet."""
        self._folder = cache(partial(_asked_for, keys))
        self._failed = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Keep that it passed, if setup and teardown did too, nothing was skipped, and it took long."""
        began, self._failed = time.monotonic(), False
        result = yield
        if not self._failed and time.monotonic() - began > SLOW_SECONDS:
            kept = self._kept(item)
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.touch()
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip what has passed, before any fixture of it is made."""
        if self._kept(item).exists():
            pytest.skip(REASON)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note whether all of a test passed."""
        self._failed |= not report.passed

    def _kept(self, item: pytest.Item) -> Path:
        return self._folder(item.path) / sha256(item.nodeid.encode()).hexdigest()[:32]


def of_this_tree() -> Keys:
    """Return the keys of the files of this checkout, whether committed or not."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    files = {path: (ROOT / path).read_bytes() for path in listed.split("\0") if (ROOT / path).is_file()}
    texts = {path: data.decode() for path, data in files.items() if path.startswith("tests/") and path.endswith(".py")}
    contents = {path: sha256(data).hexdigest() for path, data in files.items()}
    system = (platform.python_version(), platform.platform(), str(os.cpu_count()), str(os.geteuid()))
    return Keys(contents, texts, " ".join((*system, *(os.environ.get(name, "") for name in _VARIABLES))))


def _is_test(path: str) -> bool:
    return path.startswith("tests/") and Path(path).match("test_*.py")


def _part(path: str) -> str:
    """Return the part of the tree that a file is in, `SHARED` if all tests may read it."""
    if path.startswith("tests/") and path.count("/") > 1:
        return path[: path.index("/", len("tests/")) + 1]
    part = next((part for part in PARTS if path.startswith(part)), SHARED)
    return "docs/" if part == SHARED and "/" not in path and path.endswith(".md") else part


def _names(part: str) -> str:
    """Return what names a part: a folder of tests is named by its path, or as one of modules."""
    return PARTS.get(part) or rf"\btests(?:[./]| import .*){part.split('/')[1]}\b"


def _digest(contents: Mapping[str, str]) -> str:
    return sha256("\0".join(f"{path} {one}" for path, one in sorted(contents.items())).encode()).hexdigest()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    said = "skip slow tests that passed with the same content of all that they depend on"
    parser.addoption("--skip-passed", action="store_true", help=said)


def pytest_configure(config: pytest.Config) -> None:
    """Do so if asked, but not where golden files are written anew; forget what has not been asked for in a month."""
    if not config.getoption("--skip-passed") or os.environ.get("UPDATE_GOLDEN") == "1":
        return
    config.pluginmanager.register(Passed(of_this_tree()), "passed")
    if not hasattr(config, "workerinput"):
        _forget(time.time() - KEPT_DAYS * 24 * 3600)


def _asked_for(keys: Keys, path: Path) -> Path:
    """Return the folder of what has passed of a file of tests, and note in its time that it was asked for now."""
    folder = PASSED / keys.of(path.relative_to(ROOT).as_posix())
    if folder.exists():
        os.utime(folder)
    return folder


def _forget(before: float) -> None:
    for folder in PASSED.glob("*"):
        if folder.stat().st_mtime < before:
            for kept in folder.iterdir():
                kept.unlink()
            folder.rmdir()
