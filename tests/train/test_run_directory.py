"""The run directory's small files: whole or absent."""

from pathlib import Path

import pytest

from shardwise.protocol.errors import RunDirectoryError
from shardwise.train.run_directory import RunDirectory


def test_a_machine_is_measured_once_in_a_run(tmp_path: Path) -> None:
    """What a machine can do is kept over restarts, so that the MFU does not jump; another machine is measured."""
    (tmp_path / "logs").mkdir()
    assert RunDirectory(tmp_path, 0).peak_flops("one", lambda: 2e9) == 2e9
    assert RunDirectory(tmp_path, 1).peak_flops("one", lambda: 9e9) == 2e9
    assert RunDirectory(tmp_path, 1).peak_flops("other", lambda: 9e9) == 9e9


def test_summaries_are_whole_or_absent(tmp_path: Path) -> None:
    """A summary is read back as written, is empty before the first, and a broken one is refused by name."""
    run = RunDirectory(tmp_path, 0)
    assert run.read_summary() == {}
    run.write_summary({"status": "running"})
    assert run.read_summary() == {"status": "running"}
    (tmp_path / "summary.json").write_text("[]")
    with pytest.raises(RunDirectoryError, match="expected a JSON object"):
        run.read_summary()


@pytest.mark.parametrize("content", [b'{"batches": [1', b"", b"\xff\xfe"])
def test_a_file_that_is_cut_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    """As what it holds is not known, a person decides; the words are one line."""
    (tmp_path / "logs").mkdir()
    run = RunDirectory(tmp_path, 0)
    reads = {
        "summary.json": run.read_summary,
        "logs/left-out.json": run.read_left_out,
        "logs/forks.json": run.read_forks,
    }
    for file, read in reads.items():
        (tmp_path / file).write_bytes(content)
        with pytest.raises(RunDirectoryError) as caught:
            read()
        words = str(caught.value)
        assert words == f"{tmp_path / file}: expected a JSON object, found no JSON; restore the file or remove it"


def test_a_directory_has_one_word_for_its_run(tmp_path: Path) -> None:
    """The same for every start, and wherever it is moved to; another directory has another."""
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    word = RunDirectory(tmp_path / "one", 0).run_id()
    moved = (tmp_path / "one").rename(tmp_path / "moved")

    assert RunDirectory(moved, 1).run_id() == word
    assert RunDirectory(tmp_path / "other", 0).run_id() != word
