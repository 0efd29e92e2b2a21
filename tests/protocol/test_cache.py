"""shardwise.protocol.cache: where it is, and what is refused before a run begins."""

import os
import pwd
import stat
from pathlib import Path

import pytest

from shardwise.protocol import cache
from shardwise.protocol.contract import CACHE_VARIABLE, PROGRAMS_VARIABLE
from shardwise.protocol.errors import UsageError


@pytest.fixture(autouse=True)
def _of_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (cache.JAX_CACHE_VARIABLE, PROGRAMS_VARIABLE):
        monkeypatch.delenv(name, raising=False)


def test_it_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The variable names the folder; without it the folder lies below the home folder."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    assert cache.cache_directory() == tmp_path
    monkeypatch.delenv(CACHE_VARIABLE)
    assert cache.cache_directory() == Path.home() / ".cache" / "shardwise"


@pytest.mark.parametrize("trainer", [True, False])
def test_no_home(monkeypatch: pytest.MonkeyPatch, *, trainer: bool) -> None:
    """A user without a home is told of the variable, for an own program too."""
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)

    with pytest.raises(UsageError, match=r"no home directory .* Set SHARDWISE_CACHE to a folder"):
        cache.refuse_unusable_cache(trainer=trainer)


@pytest.mark.parametrize("variable", [CACHE_VARIABLE, cache.JAX_CACHE_VARIABLE])
def test_a_folder_that_cannot_be_made(variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The words name the variable that has named the folder. An own program has no programs of ours to keep."""
    (tmp_path / "file").touch()
    monkeypatch.setenv(variable, str(tmp_path / "file"))

    with pytest.raises(UsageError, match=f"{tmp_path}/file.*: Not a directory. .* set {variable} to another one"):
        cache.refuse_unusable_cache(trainer=True)
    cache.refuse_unusable_cache(trainer=False)


def test_a_folder_that_cannot_be_written_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """That of another user, or on a volume that is only read, is refused as well."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)  # root, as tests may run, can write everywhere

    with pytest.raises(UsageError, match="executables/programs': Permission denied"):
        cache.refuse_unusable_cache(trainer=True)


def test_a_folder_that_can_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is made, and closed to others; one that is there stays as it is."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))

    for _ in range(2):
        cache.refuse_unusable_cache(trainer=True)

    made = tmp_path / "cache" / "executables" / "programs"
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
