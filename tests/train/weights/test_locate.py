"""What a person gives as a model, and what the answer is where it is none."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from shardwise.protocol.errors import DataError
from shardwise.train.weights import read
from shardwise.train.weights.locate import locate


def holding(files: Mapping[str, str]) -> Callable[[Path], None]:
    """Makes these files in a folder."""

    def make(folder: Path) -> None:
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")

    return make


SHARDS = {
    "model.safetensors.index.json": json.dumps({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}),
    "m-1.safetensors": "",
}
BINS = {"pytorch_model.bin.index.json": json.dumps({"weight_map": {"a": "pytorch_model-1.bin"}})}
CONVERT = r"write them with transformers: .*save_pretrained"
GIVEN = {
    "a name of the hub": ({}, "openai/gpt2", r"nothing is downloaded here; .*hf download \S*openai/gpt2 --local-dir"),
    "a file that is not there": ({}, "x/model.safetensors", r"cannot be read: No such file .*expected a safetensors"),
    "a .bin": ({"pytorch_model.bin": "PK"}, "pytorch_model.bin", f"is no safetensors file; .*{CONVERT}"),
    "the folder of a .bin": ({"pytorch_model.bin": "PK"}, "", f"expected .*, found pytorch_model.bin; .*{CONVERT}"),
    "an index of .bin": (BINS, "pytorch_model.bin.index.json", f"no safetensors files; .*{CONVERT}"),
    "config.json": ({"config.json": "{}"}, "config.json", r"no index of weights; give the folder"),
    "one shard": (SHARDS, "m-1.safetensors", r"one of several files .*give their index, \S*model.safetensors.index"),
    "shards without the index": ({"m-1.safetensors": ""}, "", r"found m-1\.safetensors; get the index too"),
    "a cache of downloads": ({"snapshots/ab/config.json": "{}"}, "", r"cache of downloads; give .*snapshots/ab"),
    "text": ({"a.txt": ""}, "", r"a folder without weights, expected model\.safetensors or"),
}


def test_one_file_comes_before_an_index(tmp_path: Path) -> None:
    """As transformers takes them: an export among published shards is what the folder means."""
    holding({**SHARDS, "model.safetensors": ""})(tmp_path)
    assert locate(tmp_path) == tmp_path / "model.safetensors"


@pytest.mark.parametrize("given", GIVEN)
def test_what_is_no_model_is_answered_with_what_to_do(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hub names, PyTorch's files, parts of a model and other folders: each with the way to a model."""
    files, path, words = GIVEN[given]
    holding(files)(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=words):
        read(Path(path) if path else tmp_path)
