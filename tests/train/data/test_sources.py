"""Documents from files, and the held-out split."""

import gzip
import json
from pathlib import Path

import pytest

from shardwise.protocol.errors import DataError
from shardwise.train.data.compression import BLOCK_BYTES
from shardwise.train.data.files import DataFile, find_files
from shardwise.train.data.sources import Document, documents, is_held_out


def found(path: Path) -> DataFile:
    """The file as `find_files` sees it."""
    (file,) = find_files([str(path)])
    return file


def texts(path: Path, text_field: str = "text") -> list[bytes]:
    """The documents of a file, whole."""
    return [b"".join(document.parts()) for document in documents(found(path), text_field)]


def document(*parts: bytes) -> Document:
    """A document of these parts."""
    return Document(where="here", row=0, parts=lambda: iter(parts))


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    """Whatever its suffix and bytes, a text file is one document; an empty one is none."""
    (tmp_path / "a.py").write_bytes(b"\xff\n\nx")
    (tmp_path / "b.txt").touch()

    assert (texts(tmp_path / "a.py"), texts(tmp_path / "b.txt")) == ([b"\xff\n\nx"], [])


def test_a_large_text_file_is_given_in_parts_again_and_again(tmp_path: Path) -> None:
    """A file above the block size is never one part, and its parts may be read twice."""
    content = bytes(range(256)) * (BLOCK_BYTES // 100)
    (tmp_path / "a.txt").write_bytes(content)

    (only,) = documents(found(tmp_path / "a.txt"), "text")

    assert max(len(part) for part in only.parts()) <= BLOCK_BYTES
    assert [b"".join(only.parts()) for _ in range(2)] == [content, content]


def test_a_jsonl_line_is_a_document(tmp_path: Path) -> None:
    """Lines of any length give the chosen field in UTF-8; blank lines and empty texts give nothing."""
    long = "é" * BLOCK_BYTES
    lines = [{"body": "one\ntwo"}, {"body": ""}, {"body": long, "other": 1}, {"body": "last"}]
    content = "\r\n\n".join(json.dumps(line) for line in lines)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(content.encode()))

    assert texts(tmp_path / "a.jsonl.gz", "body") == [b"one\ntwo", long.encode(), b"last"]


def test_lines_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """The mark that some editors write first is no part of the first line; anywhere else it stays."""
    content = '{"text": "one"}\n{"text": "\ufefftwo"}\n'
    (tmp_path / "a.jsonl").write_text(content, encoding="utf-8-sig")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(content.encode("utf-8-sig")))

    for name in ("a.jsonl", "b.jsonl.gz"):
        assert texts(tmp_path / name) == [b"one", "\ufefftwo".encode()]
    (tmp_path / "a.jsonl").write_text("\n\ufeff{}", encoding="utf-8-sig")
    with pytest.raises(DataError, match="line 2: not JSON"):
        texts(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"text": "x"', "line 2: not JSON .* given .*expected a JSON object with a string in 'text'"),
        (b"[" * 100_000, "line 2: not JSON .* given '.{60}"),
        (
            b'{"text": "x", "n": ' + b"9" * 5000 + b"}",
            r"line 2: an integer of more than 4,300 digits, given .*; expected .* write it as a string",
        ),
        (b'["text"]', "line 2: given .* expected a JSON object"),
        (b'{"body": "x", "id": 1}', r"line 2: no string in 'text' \(its fields: 'body', 'id'\).* Set textField"),
        (b'{"text": 7}', "line 2: no string in 'text'"),
        (b'{"text": "\xff"}', "line 2: byte 10 of the line is not UTF-8"),
        (b'{"text": "\\ud800"}', "line 2: half a surrogate pair at character 0"),
    ],
)
def test_a_bad_line_is_refused_by_its_number(tmp_path: Path, line: bytes, words: str) -> None:
    """A line that cannot be used names the file, the line, what was given and what was expected."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "good"}\n' + line + b"\n")

    with pytest.raises(DataError, match=words) as caught:
        texts(path)

    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("name", ["a.json", "a.ndjson.gz", "a.jsonlines"])
def test_json_is_refused(name: str, tmp_path: Path) -> None:
    """Such a file is neither lines nor text, and the error says what to write instead."""
    (tmp_path / name).write_text("{}")

    with pytest.raises(DataError, match=r"is a .(json|ndjson|jsonlines) file; expected .jsonl"):
        texts(tmp_path / name)


@pytest.mark.parametrize("name", ["a.jsonl.bz2", "a.txt.XZ", "a.zip", "a.tar.gz"])
def test_another_packing_is_refused(name: str, tmp_path: Path) -> None:
    """Its bytes are no text, whatever is in it; what can be read is named."""
    (tmp_path / name).write_bytes(b"packed")

    with pytest.raises(DataError, match=r"expected a plain file, or one that is compressed as .gz or .zst"):
        texts(tmp_path / name)


def test_the_split_keeps_its_share() -> None:
    """Over many documents, the held-out share is the fraction asked for; a fraction of 0 holds out none."""
    all_documents = [document(str(number).encode()) for number in range(10_000)]

    share = sum(is_held_out(each, 0.1) for each in all_documents) / len(all_documents)

    assert abs(share - 0.1) < 0.01
    assert not any(is_held_out(each, 0) for each in all_documents)


def test_the_split_depends_on_content_alone_and_grows_with_the_fraction() -> None:
    """The same bytes fall on the same side however they are cut; a larger fraction only adds documents."""
    for number in range(300):
        text = f"document {number}".encode()
        cut = document(text[:5], text[5:])

        assert is_held_out(document(text), 0.3) == is_held_out(cut, 0.3)
        assert is_held_out(document(text), 0.5) >= is_held_out(document(text), 0.3)
