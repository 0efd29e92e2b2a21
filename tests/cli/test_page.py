"""shardwise.cli.page: the page of a run directory, as a file."""

import os
from pathlib import Path

from tests.cli.conftest import Command
from tests.page.building import make_run


def test_page_is_written_into_the_directory(tmp_path: Path, command: Command) -> None:
    """Without --out the page is in the run directory, and the command says where; nothing else is written."""
    directory = make_run(tmp_path / "run")
    before = set(directory.rglob("*"))
    ended = command("page", str(directory))
    page = directory / "page.html"
    assert (ended.code, ended.error) == (0, "")
    assert ended.out.startswith(f"{page}  ")
    assert set(directory.rglob("*")) - before == {page}
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert '"status":"complete"' in text
    assert '"kept":true' in text


def test_page_elsewhere(tmp_path: Path, command: Command) -> None:
    """--out names the file, so that a directory that cannot be written has a page too."""
    directory, out = make_run(tmp_path / "run"), tmp_path / "first.html"
    assert command("page", str(directory), "--out", str(out)).code == 0
    assert out.is_file()
    assert not (directory / "page.html").exists()


def test_page_on_the_output(tmp_path: Path, command: Command) -> None:
    """With --out - the page, and nothing else, is what is printed, as out of a pod; no file is written."""
    directory = make_run(tmp_path / "run")
    before = set(directory.rglob("*"))
    ended = command("page", str(directory), "--out", "-")
    assert (ended.code, ended.error) == (0, "")
    assert ended.out.startswith("<!doctype html>")
    assert ended.out.rstrip().endswith("</html>")
    assert set(directory.rglob("*")) == before


def test_a_pipe_and_a_link_stay_what_they_are(tmp_path: Path, command: Command) -> None:
    """What --out names is written to, as by any other command: no file takes the place of a pipe, device or link."""
    directory, pipe, link, target = (
        make_run(tmp_path / "run"),
        *(tmp_path / name for name in ("pipe", "link", "target")),
    )
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert command("page", str(directory), "--out", str(pipe)).code == 0
        assert pipe.is_fifo()
        assert os.read(reader, 15) == b"<!doctype html>"
    finally:
        os.close(reader)
    link.symlink_to(target)
    assert command("page", str(directory), "--out", str(link)).code == 0
    assert link.is_symlink()
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_page_that_cannot_be_written(tmp_path: Path, command: Command) -> None:
    """A place that is not there is wrong usage, with what would help."""
    ended = command("page", str(make_run(tmp_path / "run")), "--out", str(tmp_path / "none" / "page.html"))
    assert (ended.code, ended.out) == (2, "")
    assert "cannot be written" in ended.error
    assert "--out" in ended.error


def test_no_run_directory(tmp_path: Path, command: Command) -> None:
    """A directory that holds no run is refused in the words of every command."""
    ended = command("page", str(tmp_path))
    assert (ended.code, ended.out) == (2, "")
    assert "is no run directory" in ended.error
