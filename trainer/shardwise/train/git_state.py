"""Which commit a run was started from."""

import subprocess
from pathlib import Path
from typing import NamedTuple

_STATUS = ("git", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--untracked-files=no")
_COMMIT = "# branch.oid "
_SECONDS = 2.0


class GitState(NamedTuple):
    """A commit, and whether a file that git knows differs from it."""

    commit: str
    changed: bool


def git_state(folder: Path) -> GitState | None:
    """Return the state of the repository that the folder is in.

    None outside of a repository, before its first commit, without a git that may read it, as in an image, and where git
    takes more than two seconds: a start does not wait for a record.
    """
    try:
        done = subprocess.run(_STATUS, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False)  # noqa: S603  our own words
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.splitlines()
    commit = next((line.removeprefix(_COMMIT) for line in lines if line.startswith(_COMMIT)), "(initial)")
    if done.returncode != 0 or commit == "(initial)":
        return None
    return GitState(commit, changed=any(not line.startswith("#") for line in lines))
