"""A job's paths from any folder."""

from pathlib import Path

import pytest

from shardwise.job.load import load
from shardwise.job.paths import with_absolute_paths

QUICKSTART = Path(__file__).parent / "golden" / "quickstart.yaml"


def test_relative_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of data, tokenizer, checkpoints and the run to start from; addresses, globs and `byte` mean what they did."""
    monkeypatch.chdir(tmp_path)
    overrides = [
        "training.data.train.0.paths=[my text/*.txt, gs://bucket/a.jsonl, /data/b.txt]",
        "training.evaluation.sets=[{name: books, paths: [books.txt, 's3://bucket/b.txt']}]",
        "training.data.tokenizer=gpt2/tokenizer.json",
        "training.startFrom.path=runs/base",
        "training.checkpoint.path=../kept",
        "training.data.store=tokens",
    ]
    training = with_absolute_paths(load(QUICKSTART, overrides)).spec.training
    assert training.data.train[0].paths == (f"{tmp_path}/my text/*.txt", "gs://bucket/a.jsonl", "/data/b.txt")
    assert training.evaluation.sets[0].paths == (f"{tmp_path}/books.txt", "s3://bucket/b.txt")
    assert training.data.tokenizer == f"{tmp_path}/gpt2/tokenizer.json"
    assert training.start_from
    assert training.start_from.path == f"{tmp_path}/runs/base"
    assert training.checkpoint.path == f"{tmp_path}/../kept"
    assert training.data.store == f"{tmp_path}/tokens"
    plain = with_absolute_paths(load(QUICKSTART)).spec.training
    assert (plain.data.tokenizer, plain.start_from, plain.checkpoint.path) == ("byte", None, None)


def test_a_working_directory_named_like_a_glob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below it a glob of the data counts no letter of its name; a path that is none stays as it is."""
    here = tmp_path / "runs [1]"
    (here / "text").mkdir(parents=True)
    (here / "text" / "b[2].txt").touch()
    monkeypatch.chdir(here)
    paths = "[text/*.txt, text, 'text/b[2].txt', /data/*.txt]"
    overrides = [
        f"training.data.train.0.paths={paths}",
        f"training.evaluation.sets=[{{name: books, paths: {paths}}}]",
        "training.data.store=tokens",
    ]
    training = with_absolute_paths(load(QUICKSTART, overrides)).spec.training
    expected = (f"{tmp_path}/runs [[]1]/text/*.txt", f"{here}/text", f"{here}/text/b[2].txt", "/data/*.txt")
    assert training.data.train[0].paths == training.evaluation.sets[0].paths == expected
    assert training.data.store == f"{here}/tokens"
