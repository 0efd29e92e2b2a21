"""shardwise.train.git_state: what is recorded of the repository that a run was started in."""

import subprocess
from pathlib import Path

import pytest

from shardwise.train.git_state import GitState, git_state


def git(folder: Path, *words: str) -> str:
    """Run git there as somebody."""
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def test_a_commit_and_whether_files_differ_from_it(tmp_path: Path) -> None:
    """A folder within the repository will do; files that git does not know change nothing."""
    folder = tmp_path / "jobs"
    folder.mkdir()
    git(tmp_path, "init", "--quiet")
    assert git_state(folder) is None
    (folder / "job.yaml").write_text("a")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    (folder / "notes").write_text("b")
    assert git_state(folder) == GitState(commit, changed=False)
    (folder / "job.yaml").write_text("b")
    assert git_state(folder) == GitState(commit, changed=True)


def test_outside_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to record, and none without git either."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state(tmp_path) is None
    monkeypatch.setenv("PATH", "")
    assert git_state(tmp_path) is None
