"""Parquet files and folders of Hugging Face `datasets`: the documents and tokens of the same text as JSONL."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from shardwise.job.spec.data import Data
from shardwise.protocol.errors import DataError
from shardwise.train.data.dataset import Dataset, Reading, prepare
from shardwise.train.data.files import find_files
from shardwise.train.data.opening import Watch
from shardwise.train.data.sources import documents
from shardwise.train.data.store_builder import Built, build

TEXTS = [f"zeile {number} — " * (number % 9) for number in range(3000)]  # some are empty
TYPES = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]


def nothing(*_: object) -> None:
    """Takes any report."""


def table(kind: Any = None) -> Any:
    """The texts, among other columns."""
    texts = pa.array(TEXTS).cast(kind or pa.string())
    return pa.table({"id": pa.array(range(len(TEXTS))), "body": texts, "text": pa.array(["no"] * len(TEXTS))})


def save_parquet(path: Path, kind: Any = None) -> Path:
    """Writes row groups of 100."""
    plain = table(kind).cast(table().schema) if kind == pa.string_view() else table(kind)
    parquet.write_table(plain, path, row_group_size=100)
    return path


def save_stream(path: Path, kind: Any = None) -> Path:
    """Writes record batches of 100, as `datasets` does."""
    with ipc.new_stream(path, table(kind).schema) as writer:
        writer.write_table(table(kind), max_chunksize=100)
    return path


def save_file(path: Path, kind: Any = None) -> Path:
    """Writes the format that has a footer."""
    with ipc.new_file(path, table(kind).schema) as writer:
        writer.write_table(table(kind), max_chunksize=100)
    return path


def save_dataset(folder: Path) -> Path:
    """A folder as `Dataset.save_to_disk` writes it: two shards, and what they are."""
    folder.mkdir(parents=True)
    names = [f"data-{number:05d}-of-00002.arrow" for number in range(2)]
    for name, part in zip(names, (table().slice(0, 1700), table().slice(1700)), strict=True):
        with ipc.new_stream(folder / name, part.schema) as writer:
            writer.write_table(part, max_chunksize=100)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "1", "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def section(path: Path, **fields: Any) -> Data:
    """A data section over one path."""
    source = {"name": "rows", "paths": [str(path)], "textField": "body"}
    return Data.model_validate({"train": [source], "heldOut": 0.25, "attendAcross": "document", **fields})


def prepared(data: Data, cache: Path) -> Dataset:
    """What a job prepares."""
    reading = Reading(seq_len=32, sequences=4, steps=100, seed=3)
    return prepare(data, reading, cache_root=cache, watch=Watch())


def stored(data: Data, to: Path, part_bytes: int = 8000) -> Built:
    """The store of a data section."""
    (made,) = build(data, str(to), run=map, progress=nothing, part_bytes=part_bytes)
    return made


def everything(data: Dataset) -> tuple[np.ndarray, ...]:
    """All tokens and ends of documents."""
    assert data.held_out is not None
    streams = (data.train._sequences.streams[0], data.held_out._sequences.streams[0])
    return tuple(array for each in streams for array in (each.read(0, each.num_tokens), each.ends_within(1, 2**40)))


@pytest.fixture
def as_lines(tmp_path: Path) -> tuple[np.ndarray, ...]:
    """What the same texts give as JSONL."""
    path = tmp_path / "lines" / "a.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps({"body": text}) + "\n" for text in TEXTS))
    return everything(prepared(section(path), tmp_path / "lines"))


@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize(
    ("save", "name"), [(save_parquet, "a.parquet"), (save_stream, "a.arrow"), (save_file, "b.arrow")]
)
def test_columns_give_the_tokens_of_lines(
    tmp_path: Path, as_lines: tuple[np.ndarray, ...], save: Any, name: str, kind: Any
) -> None:
    """Whatever the format and the type of the column, tokenised by the job and as a store in parts, bit for bit."""
    data = section(save(tmp_path / name, kind))
    made = stored(data, tmp_path / "tokens")
    naming = data.model_copy(update={"train": (data.train[0].model_copy(update={"paths": (made.url,)}),)})

    own, of_store = prepared(data, tmp_path / "cache"), prepared(naming, tmp_path / "cache")

    is_cut = not (pa.types.is_dictionary(kind) and name.endswith("arrow"))
    assert (len(made.index.parts) > 2) == is_cut
    assert own.fingerprint == of_store.fingerprint
    for found in (own, of_store):
        assert all(np.array_equal(one, other) for one, other in zip(everything(found), as_lines, strict=True))


def test_a_saved_dataset_is_one_path(tmp_path: Path, as_lines: tuple[np.ndarray, ...]) -> None:
    """The folder stands for its Arrow files; one of several splits is refused with their names."""
    folder = save_dataset(tmp_path / "all" / "train")
    save_dataset(tmp_path / "all" / "test")

    found = everything(prepared(section(folder), tmp_path / "cache"))

    assert all(np.array_equal(one, other) for one, other in zip(found, as_lines, strict=True))
    with pytest.raises(DataError, match=r"several splits; expected one of them: .*all/test', .*all/train'"):
        find_files([str(tmp_path / "all")])


def test_the_same_file_gives_the_same_store(tmp_path: Path) -> None:
    """Its key and bytes follow from the content of the file and the field, wherever it lies."""
    (tmp_path / "moved").mkdir()
    one = stored(section(save_parquet(tmp_path / "a.parquet")), tmp_path / "one")
    other = stored(section(save_parquet(tmp_path / "moved" / "b.parquet")), tmp_path / "other")
    another = section(tmp_path / "a.parquet")
    source = another.train[0].model_copy(update={"text_field": "text"})

    files = [{path.name: path.read_bytes() for path in Path(each.url).iterdir()} for each in (one, other)]
    assert files[0] == files[1]
    assert Path(one.url).name == Path(other.url).name
    assert (
        Path(stored(another.model_copy(update={"train": (source,)}), tmp_path / "one").url).name != Path(one.url).name
    )


@pytest.mark.parametrize(
    ("name", "write", "field", "message"),
    [
        (
            "a.parquet",
            save_parquet,
            "words",
            r"no column 'words' \(its columns: 'id', 'body', 'text'\).* Set textField",
        ),
        ("a.arrow", save_stream, "words", r"no column 'words' \(its columns: 'id', 'body', 'text'\).* Set textField"),
        ("a.parquet", save_parquet, "id", r"column 'id' holds int64; expected text, as in 'body', 'text'"),
        ("a.parquet", lambda path: path.write_bytes(b"PAR1 and no more"), "body", "is not what its suffix says"),
        ("a.arrow", lambda path: path.write_bytes(b"no arrow at all"), "body", "is not what its suffix says"),
        ("a.parquet.gz", save_parquet, "body", "is a compressed .parquet file"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, name: str, write: Any, field: str, message: str) -> None:
    """A column that is not there, one without text, and a file that is none of them."""
    write(tmp_path / name)
    (file,) = find_files([str(tmp_path / name)])

    with pytest.raises(DataError, match=message):
        list(documents(file, field))


def test_null_is_a_mistake_with_its_row(tmp_path: Path) -> None:
    """As in JSONL, a document without text has none to train on."""
    parquet.write_table(pa.table({"text": ["one", None]}), tmp_path / "a.parquet")
    (file,) = find_files([str(tmp_path / "a.parquet")])

    with pytest.raises(DataError, match=r"a\.parquet, row 2: null in 'text'"):
        list(documents(file, "text"))


def test_what_is_missing_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyarrow a Parquet file is refused with the extra that has it."""
    (file,) = find_files([str(save_parquet(tmp_path / "a.parquet"))])
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(DataError, match=r"needs pyarrow, .* pip install \"shardwise\[train,parquet\]\""):
        list(documents(file, "body"))


def test_conversations_in_columns_are_refused_in_words(tmp_path: Path) -> None:
    """Published ones mostly are: it is said what to write instead, and not that a column without a name is missing."""
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    path = tmp_path / "chats.parquet"
    parquet.write_table(pa.table({"messages": [messages] * 9}), path)
    data = Data.model_validate({"train": [{"name": "chats", "paths": [str(path)], "chatTemplate": "chatml"}]})

    with pytest.raises(DataError, match=r"chats.parquet' is a .parquet file; expected conversations .*\.jsonl file"):
        prepare(data, Reading(seq_len=8, sequences=2, steps=5, seed=0), cache_root=tmp_path / "cache", watch=Watch())
