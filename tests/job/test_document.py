"""shardwise.job.document: one YAML document, YAML 1.2's scalars, a place for every value."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.job.document import MAX_BYTES, parse_document, read_document, write_document
from shardwise.protocol.errors import JobError


def value_of(scalar: str) -> Any:
    """What the scalar reads as."""
    return parse_document(f"key: {scalar}", source="job.yaml").data["key"]


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("3e-4", 3e-4),
        ("1E5", 100000),
        ("1e4", 10000),
        ("100.0", 100),
        (".5", 0.5),
        ("-2.5", -2.5),
        ("+7", 7),
        ("0o17", 15),
        ("0x1F", 31),
        ("0", 0),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("null", None),
        ("nullable", "nullable"),
        ("truely", "truely"),
        ("1x8", "1x8"),
        ("1.2.3", "1.2.3"),
        ("e5", "e5"),
        ("'3e-4'", "3e-4"),
        ('"on"', "on"),
        ("'017'", "017"),
        ("10m", "10m"),
        ("=", "="),
        ("<<", "<<"),
        ("99999999999999999999", 99999999999999999999),
    ],
)
def test_plain_scalars_mean_what_yaml_1_2_says(scalar: str, value: Any) -> None:
    """The value and its type are those of the core schema; whole floats are integers, as in JSON."""
    assert value_of(scalar) == value
    assert type(value_of(scalar)) is type(value)


@pytest.mark.parametrize(
    "scalar", ["on", "Yes", "no", "OFF", "y", "N", "017", "-08", "1_000", "1_0.5", "0b101", "0x_1", "-0x1F", "+0o7"]
)
def test_scalars_that_readers_dispute_are_refused(scalar: str) -> None:
    """A plain scalar that YAML 1.1 and 1.2 readers take for different values is refused with the way out."""
    with pytest.raises(JobError) as refused:
        value_of(scalar)
    assert f"job.yaml:1  key: given {scalar}, expected" in str(refused.value)
    assert f'quote it ("{scalar}")' in str(refused.value)


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("a: 1\nb: {c: 1, c: 2}", ["job.yaml:2  b.c", '"c" again', "first at job.yaml:2"]),
        ("a: 1\n---\nb: 2", ["job.yaml:2", "one document"]),
        ("- 1", ["given a list", "a mapping"]),
        ("", ["given nothing", "a mapping"]),
        ("hello", ['given "hello"', "a mapping"]),
        ("a: &x 1", ["job.yaml:1", "anchors"]),
        ("a: 1\nb: *x", ["job.yaml:2", "aliases"]),
        ("a: !!str 3", ["without tags"]),
        ("a: !!python/object/apply:os.system [ls]", ["without tags"]),
        ("a: 1\nb: [1,", ["job.yaml:", "YAML ("]),
        ("a: 1\n\tb: 2", ["job.yaml:2", "YAML ("]),
        ("1: a", ["given the key 1, expected keys that are text", 'quote it ("1")']),
        ("a:\n  0x10: a", ["job.yaml:2  a: given the key 0x10,", 'quote it ("0x10")']),
        ("True: a", ["given the key True,", 'quote it ("True")']),
        (".inf: a", ["given the key .inf,", 'quote it (".inf")']),
        ("~: a", ["given the key ~,", 'quote it ("~")']),
        ("a: 1\n? \n: 5", ["job.yaml:2: given an empty key, expected keys that are text"]),
        ("[1]: a", ["given a list as a key, expected keys that are text"]),
        ("? {a: 1}\n: a", ["given a mapping as a key, expected keys that are text"]),
        ("a: " + "[" * 5000, ["levels of nesting"]),
        ("a: \0", ["printable"]),
        ("a: " + "x" * MAX_BYTES, ["at most"]),
    ],
)
def test_what_is_no_plain_document_is_refused(text: str, fragments: list[str]) -> None:
    """The refusal names the line and what is expected."""
    with pytest.raises(JobError) as refused:
        parse_document(text, source="job.yaml")
    for fragment in fragments:
        assert fragment in str(refused.value)


def test_every_value_knows_its_line() -> None:
    """A value's place is the line of its key, a list item's its own, a missing one's that of the group around it."""
    document = parse_document("a:\n  b: 1\n  c:\n    - p\n    - q\n", source="f.yaml")
    assert document.where(("a", "b")) == "f.yaml:2"
    assert document.where(("a", "c")) == "f.yaml:3"
    assert document.where(("a", "c", 1)) == "f.yaml:5"
    assert document.where(("a", "missing", "deeper")) == "f.yaml:1"


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    """A missing file, a folder, other encodings and huge files are refused by name."""
    binary, huge = tmp_path / "binary.yaml", tmp_path / "huge.yaml"
    binary.write_bytes(b"a: \xff")
    huge.write_bytes(b"#" * (MAX_BYTES + 1))
    expected = {tmp_path / "none.yaml": "No such file", tmp_path: "directory", binary: "UTF-8", huge: "at most"}
    for path, fragment in expected.items():
        with pytest.raises(JobError) as refused:
            read_document(path)
        assert str(path) in str(refused.value)
        assert fragment in str(refused.value)


_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=8) | st.sampled_from(
    ["on", "3e-4", "1_0", "017", "0o7", "1:30", ".inf", "null", "", "~", "<<", "=", "- a", "# b", "0x1", "-0x1", "y"]
)


@given(st.dictionaries(_TEXT, st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.lists(_TEXT)))
def test_what_is_written_reads_back(data: dict[str, Any]) -> None:
    """Any data is written so that the reader takes it for the same, quotes where they are needed."""
    assert parse_document(write_document(data), source="x").data == data
