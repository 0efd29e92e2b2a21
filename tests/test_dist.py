"""`make dist`: what a release is made of works away from this tree."""

import json
import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from tests.cluster.programs import programs

ROOT = Path(__file__).parents[1]
UV = Path(sys.executable).with_name("uv")
QUICKSTART = ROOT / "examples" / "quickstart.yaml"


def called(*command: str | Path, folder: Path) -> str:
    """Run a command in a folder, with nothing of this tree on Python's path, and return what it prints."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "XLA_FLAGS")}
    done = subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a release of this tree."""
    folder = tmp_path_factory.mktemp("release") / "dist"
    folder.mkdir()
    (folder / "notes.txt").write_text("Kept.")
    (folder / "shardwise-0.0.1-py3-none-any.whl").write_text("An older release.")
    called("make", "dist", f"DIST={folder}", folder=ROOT)
    return folder


def test_what_is_in_it(dist: Path) -> None:
    """Two wheels, three charts, and the checksum of each; an older release is gone, and nothing else that was there."""
    names = {path.name for path in dist.iterdir()}
    kinds = ["SHA256SUMS", "shardwise-*.whl", "shardwise_operator-*.whl"]
    kinds += ["shardwise-*.tgz", "training-job-*.tgz", "training-teams-*.tgz"]
    found = [path.name for kind in kinds for path in dist.glob(kind)]
    assert len(found) == len(kinds), found
    assert {*found, "notes.txt"} == names
    assert (dist / "notes.txt").read_text() == "Kept."
    assert "notes.txt" not in (dist / "SHA256SUMS").read_text()
    called("sha256sum", "--check", "--strict", "SHA256SUMS", folder=dist)


def test_the_wheel_runs_the_quickstart(dist: Path, tmp_path: Path) -> None:
    """`pip install` of the trainer's wheel in an empty environment gives a command that trains, and its license."""
    (wheel,) = dist.glob("shardwise-*.whl")
    called(UV, "venv", "--python", sys.executable, "own", folder=tmp_path)
    python = tmp_path / "own" / "bin" / "python"
    pins = ROOT / "requirements" / "train.txt"
    called(UV, "pip", "install", "--python", python, f"{wheel}[train]", "--constraint", pins, folder=tmp_path)
    (tmp_path / "README.md").write_bytes((ROOT / "README.md").read_bytes())

    shardwise = python.with_name("shardwise")
    called(shardwise, "run", QUICKSTART, "--dir", "run", "--set=training.steps=3", folder=tmp_path)
    status = json.loads(called(shardwise, "status", "run", "--json", folder=tmp_path))
    assert (status["status"], status["step"]) == ("complete", 3)
    where = called(python, "-c", "import shardwise; print(shardwise.__file__)", folder=tmp_path)
    assert Path(where.strip()).is_relative_to(tmp_path)
    assert list(python.parents[1].rglob("shardwise-*.dist-info/licenses/LICENSE"))


def test_the_pages_are_in_the_wheels(dist: Path) -> None:
    """What is no Python goes with it: the templates of both pages, and the style and script that they share."""
    for folder, package in (("trainer", "shardwise"), ("operator", "shardwise_operator")):
        (path,) = dist.glob(f"{package}-*.whl")
        there = (ROOT / folder / package / "page").iterdir()
        wanted = {f"{package}/page/{file.name}" for file in there if file.suffix in (".html", ".css", ".js")}
        assert wanted
        assert wanted <= set(ZipFile(path).namelist())


def test_the_charts_render(dist: Path, tmp_path: Path) -> None:
    """A packaged chart renders as the folder does, but for the key that each installation draws."""
    (package,) = dist.glob("shardwise-*.tgz")

    def rendered(chart: Path) -> list[str]:
        lines = called(programs() / "helm", "template", "shardwise", chart, folder=tmp_path).splitlines()
        return [line for line in lines if not line.startswith("  key: ")]

    assert rendered(package) == rendered(ROOT / "charts" / "shardwise")
    assert "kind: Deployment" in rendered(package)
