"""The ground that everything stands on: locks, layers, the Makefile's own help, folders that must not be packages."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
REQUIREMENTS = ROOT / "requirements"
TRAINER = ROOT / "trainer" / "pyproject.toml"
OPERATOR = ROOT / "operator" / "pyproject.toml"
LOCKS = sorted(path.name for path in REQUIREMENTS.glob("*.txt"))
PIN = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s;]+)(?P<rest>.*)$")
EXTRAS = ["train", "tensorboard", "wandb", "mlflow", "trackio"]
# What each lock is compiled from: files of requirements, and distributions with their extras.
SOURCES: dict[str, tuple[list[str], dict[Path, list[str]]]] = {
    "base.txt": ([], {TRAINER: []}),
    "bench.txt": (["bench.in"], {}),
    "dev.txt": (["dev.in", "uv.in", "override.in"], {TRAINER: EXTRAS, OPERATOR: []}),
    "docs.txt": (["docs.in"], {}),
    "go.txt": (["go.in"], {}),
    "hf.txt": (["hf.in"], {}),
    "gpu.txt": (["gpu.in"], {TRAINER: EXTRAS}),
    "image.txt": (["image.in", "uv.in"], {}),
    "levanter.txt": (["levanter.in"], {}),
    "operator.txt": (["override.in"], {TRAINER: [], OPERATOR: []}),
    "plan.txt": (["plan.in"], {TRAINER: ["train", "plan-tpu", "plan-gpu"]}),
    "tpu.txt": (["tpu.in"], {TRAINER: EXTRAS}),
    "train.txt": ([], {TRAINER: EXTRAS}),
    "uv.txt": (["uv.in"], {}),
}
JOB_MAY_IMPORT = {"annotated_types", "pydantic", "pydantic_core", "shardwise", "typing_extensions", "yaml"}


def pins(lock: str) -> dict[str, Version]:
    """Return the version that `lock` holds of every distribution, by normalised name."""
    found = (PIN.match(line) for line in (REQUIREMENTS / lock).read_text().splitlines())
    return {canonicalize_name(match["name"]): Version(match["version"]) for match in found if match}


def requirements(lock: str) -> Iterator[Requirement]:
    """Yield every requirement that `lock` has to satisfy."""
    files, distributions = SOURCES[lock]
    for name in files:
        lines = (line.split("#")[0].strip() for line in (REQUIREMENTS / name).read_text().splitlines())
        yield from (Requirement(line) for line in lines if line and not line.startswith("-r "))
    for distribution, extras in distributions.items():
        project = tomllib.loads(distribution.read_text())["project"]
        groups = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
        named = (Requirement(text) for group in groups for text in group)
        yield from (requirement for requirement in named if requirement.name != "shardwise")


def make(*arguments: str) -> str:
    """Return what `make` prints for `arguments`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    ).stdout


def config() -> dict[str, object]:
    """Return the tables of the root's pyproject.toml under `tool`."""
    tools: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    return tools


def imported(path: Path) -> set[str]:
    """Return the top-level names that the file imports, wherever in it."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    parts = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module}
    return {name.split(".")[0] for name in plain | parts}


def test_every_lock_says_what_it_is_compiled_from() -> None:
    """A lock that this test does not know would be checked by nobody."""
    assert sorted(SOURCES) == LOCKS


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_satisfies_its_sources(lock: str) -> None:
    """Every requirement is pinned to a version that it allows; else someone forgot `make lock`."""
    held = pins(lock)

    unmet = [
        str(requirement)
        for requirement in requirements(lock)
        if (version := held.get(canonicalize_name(requirement.name))) is None
        or not requirement.specifier.contains(version, prereleases=True)
    ]

    assert unmet == [], "run `make lock`"


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_has_a_hash(lock: str) -> None:
    """Each requirement line of a lock is a pin without a marker, followed by at least one sha256."""
    logical = re.sub(r"\\\n\s*", " ", (REQUIREMENTS / lock).read_text()).splitlines()
    lines = [line for line in logical if line.strip() and not line.lstrip().startswith("#")]

    bad = [line[:80] for line in lines if not re.fullmatch(r"[\w.-]+==[^\s;]+( +--hash=sha256:[0-9a-f]{64})+", line)]

    assert lines
    assert bad == []


@pytest.mark.parametrize("name", LOCKS + sorted(path.name for path in REQUIREMENTS.glob("*.in")))
def test_requirements_name_no_place(name: str) -> None:
    """Neither an address nor an index option nor a path of one machine is written into a requirements file."""
    text = (REQUIREMENTS / name).read_text()

    assert re.findall(r"\S*://\S*|--(?:extra-)?index-url|--find-links|file:\S*| /\w+/\S*", text) == []


def test_locks_agree_with_the_development_environment() -> None:
    """What a user installs by lock is what the tests ran with: the other locks hold no other versions than dev."""
    dev = pins("dev.txt")

    for lock in ("base.txt", "train.txt", "operator.txt", "tpu.txt", "gpu.txt", "plan.txt", "image.txt"):
        differing = {name: version for name, version in pins(lock).items() if dev.get(name, version) != version}
        assert differing == {}, lock


def test_this_python_has_the_locked_versions() -> None:
    """The tests run with Python 3.11, the only version that the distributions promise."""
    promised = tomllib.loads(TRAINER.read_text())["project"]["requires-python"]

    assert promised == ">=3.11,<3.12"
    assert sys.version_info[:2] == (3, 11)


@pytest.mark.parametrize("folder", ["operator", "tests", "benchmarks", "charts", "examples", "images"])
def test_folder_is_not_a_package(folder: str) -> None:
    """A package called `operator` would shadow the standard library's; the others hold scripts and tests."""
    inner = [ROOT / folder] if folder == "operator" else [ROOT / folder, *(ROOT / folder).rglob("*/")]
    tour = ROOT / "examples" / "tour"
    of_the_tours = {tour / "book", tour / "show"}

    assert {path for path in inner if (path / "__init__.py").exists()} <= of_the_tours


@pytest.mark.parametrize("package", ["trainer/shardwise", "operator/shardwise_operator"])
def test_every_folder_with_code_is_a_package(package: str) -> None:
    """A folder without `__init__.py` is left out of the layering checks without a word."""
    folders = {path.parent for path in (ROOT / package).rglob("*.py")}

    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_types_are_shipped() -> None:
    """Both distributions carry the marker that tells a type checker to read them."""
    assert (ROOT / "trainer/shardwise/py.typed").exists()
    assert (ROOT / "operator/shardwise_operator/py.typed").exists()


def test_layers_name_every_package() -> None:
    """The layering contract lists all packages of shardwise and refuses one that it does not know."""
    linter = config()["importlinter"]
    assert isinstance(linter, dict)
    layering = next(contract for contract in linter["contracts"] if contract["type"] == "layers")
    packages = {path.parent.name for path in (ROOT / "trainer/shardwise").glob("*/__init__.py")}

    assert layering["exhaustive"] is True
    assert {package for layer in layering["layers"] for package in layer.split(" | ")} == packages


def test_job_imports_nothing_heavy() -> None:
    """`shardwise.job` is shared with the operator: it imports pydantic, yaml and the standard library alone."""
    files = (ROOT / "trainer/shardwise/job").rglob("*.py")
    allowed = JOB_MAY_IMPORT | set(sys.stdlib_module_names)

    offenders = {path.name: names for path in files if (names := imported(path) - allowed)}

    assert offenders == {}


def test_help_is_what_a_reader_sees(golden: Callable[[str, str], None]) -> None:
    """The list of targets changes only where a reviewer sees it."""
    golden("make-help.txt", make())


def test_help_lists_every_target() -> None:
    """`make` without a word prints every target that a person may call, with a sentence."""
    phony = set(re.findall(r"^\.PHONY: (\S+)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))

    listed = set(re.findall(r"^  make (\S+) +\S", make(), flags=re.MULTILINE))

    assert listed == phony
    assert {"bench", "demo", "lock", "setup", "test", "verify"} <= listed


def test_ci_runs_the_one_test_command() -> None:
    """The CI does nothing that a person does not do with `make test`."""
    script = ROOT / ".ci" / "run"

    assert script.stat().st_mode & 0o111
    assert script.read_text().rstrip().endswith("exec make test")


def test_every_ruff_exception_has_its_reason() -> None:
    """Each rule that is switched off says why on its own line."""
    lines = (ROOT / "pyproject.toml").read_text().split("[tool.ruff.lint]")[1].split("# ---")[0].splitlines()
    codes = [line for line in lines if re.match(r'\s+"[A-Z]+\d*",', line)]

    assert codes
    assert [line for line in codes if not re.search(r"# \S+ \S+", line)] == []
