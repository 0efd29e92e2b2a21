"""`shardwise tokenize` as a person calls it; what the stores hold is for `tests/train/data`."""

from pathlib import Path

import pytest
import yaml
from tests.cli.conftest import QUICKSTART, Command


@pytest.fixture
def data(tmp_path: Path) -> dict[str, object]:
    """A data section over one text."""
    (tmp_path / "book.txt").write_text("call me Ishmael\n" * 100)
    return {"train": [{"name": "book", "paths": [str(tmp_path / "book.txt")]}]}


def written(path: Path, data: object) -> str:
    """The path of a new YAML file."""
    path.write_text(yaml.safe_dump(data))
    return str(path)


def test_a_data_section_and_a_whole_job_make_one_store(
    command: Command, tmp_path: Path, data: dict[str, object]
) -> None:
    """Both are taken, the second finds what the first has made, and the last line is what a job is to have."""
    job = yaml.safe_load(QUICKSTART.read_text())
    job["spec"]["training"]["data"] = data
    to = str(tmp_path / "tokens")

    first = command("tokenize", written(tmp_path / "data.yaml", data), "--to", to, "--workers", "1")
    second = command("tokenize", written(tmp_path / "job.yaml", job), "--to", to, "--workers", "1")

    (store,) = (tmp_path / "tokens").glob("book-*")
    assert (first.code, second.code) == (0, 0)
    assert "book: 1 documents, 1,601 tokens in 1 parts, 1 of them made now" in first.out
    assert "tokenising book: 0.0 of 0.0 MB, " in first.out
    assert "in 1 parts, all of them there already" in second.out
    assert first.out.splitlines()[-1] == second.out.splitlines()[-1] == f"  - {{name: book, paths: [{store}]}}"


def test_repeated_documents_are_counted(command: Command, tmp_path: Path) -> None:
    """With dedup each source's line says how many of its documents are left out."""
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_text("call me Ishmael\n" * (2 if name == "b.txt" else 1))
    sources = [{"name": "two", "paths": [f"{tmp_path}/[ab].txt"]}, {"name": "one", "paths": [f"{tmp_path}/c.txt"]}]
    data = written(tmp_path / "data.yaml", {"train": sources, "dedup": "exact"})

    ended = command("tokenize", data, "--to", str(tmp_path / "tokens"), "--workers", "1")

    assert ended.code == 0
    assert "two: 2 documents, without 0 that repeat earlier ones, 50 tokens in 1 parts" in ended.out
    assert "one: 0 documents, without 1 that repeat earlier ones, 0 tokens in 1 parts" in ended.out


def test_mistakes_are_refused_before_anything_is_made(
    command: Command, tmp_path: Path, data: dict[str, object]
) -> None:
    """A wrong key and a missing file are each a message with what is expected, and no folder."""
    wrong = command("tokenize", written(tmp_path / "wrong.yaml", {**data, "weights": 1}), "--workers", "1")
    assert (wrong.code, wrong.out) == (81, "")
    assert 'given the unknown key "weights"' in wrong.error
    section = written(tmp_path / "data.yaml", {"train": [{"name": "none", "paths": ["no-such-file.txt"]}]})
    missing = command("tokenize", section, "--to", str(tmp_path / "tokens"), "--workers", "1")
    assert missing.code == 81
    assert "no file matches 'no-such-file.txt'" in missing.error
    assert not (tmp_path / "tokens").exists()
