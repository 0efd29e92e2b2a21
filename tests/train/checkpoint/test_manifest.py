"""The manifest: it comes back as it was, and refuses what could lead out of the checkpoint or is not understood."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from shardwise.job.errors import CheckpointError
from shardwise.train.checkpoint import manifest as manifests
from shardwise.train.checkpoint.manifest import ArrayEntry, History, Manifest, decode, encode


def _entry(**changes: Any) -> ArrayEntry:
    plain = {"shape": (4, 6), "dtype": "bfloat16", "file_shape": (4, 2), "chunk_shape": (2, 2), "digest": "a" * 32}
    return ArrayEntry(**plain | changes)


def _manifest(path: str = "params.kernel") -> Manifest:
    return Manifest(
        kind="state",
        step=3,
        run="r",
        incarnation=1,
        created=datetime(2030, 1, 2, tzinfo=UTC),
        identity={"model": "toy", "seed": 3, "rate": 0.5, "tied": True, "rotary": None},
        arrays={path: _entry()},
    )


def test_round_trip() -> None:
    """Every field survives, the types of identity's values included."""
    assert decode(*encode(_manifest()), 3) == _manifest()


def test_history() -> None:
    """What later steps depend on comes back bit for bit; without any, older releases read the manifest too."""
    history = History(left_out=(3, 44), losses=((7, 0.1), (9, 2.5000000000000004)))
    manifest = _manifest().model_copy(update={"history": history})

    assert decode(*encode(manifest), 3).history == history
    assert "history" not in json.loads(encode(_manifest())[0])


@pytest.mark.parametrize(
    "path", ["", "..", "a..b", "../a", "/a", "a/b", "a\\b", ".hidden", "a.", "a b", "x" * 201, "é"]
)
def test_unsafe_paths_are_refused(path: str) -> None:
    """A path is a name below the checkpoint and nothing else."""
    with pytest.raises(ValidationError):
        _manifest(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"file_shape": (3, 2)},
        {"chunk_shape": (4, 4)},
        {"chunk_shape": (2,)},
        {"shape": (4, 0)},
        {"shape": (4, 2**33)},
        {"dtype": "float64"},
        {"dtype": "object"},
        {"digest": "a" * 31},
    ],
)
def test_impossible_arrays_are_refused(changes: dict[str, Any]) -> None:
    """Cuts that do not divide, sizes and types that are never written."""
    with pytest.raises(ValidationError):
        _entry(**changes)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[]", "is not a JSON object"),
        (b"{}", "has no format_version"),
        (b'{"format_version": 9}', "COMMITTED has format 9, written by a newer Shardwise"),
        (b'{"format_version": 2}', "SHA-256 differs"),
        (b" " * 5000, "COMMITTED has 5000 bytes"),
    ],
)
def test_bad_markers_are_refused(content: bytes, words: str) -> None:
    """The marker is checked before a word of the manifest is believed."""
    with pytest.raises(CheckpointError, match=words):
        decode(encode(_manifest())[0], content, 3)


def test_what_could_not_be_read_back_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit on the size holds on both sides."""
    content, marker = encode(_manifest())
    monkeypatch.setattr(manifests, "MAX_MANIFEST_BYTES", 100)
    with pytest.raises(CheckpointError, match="at most 100"):
        encode(_manifest())
    with pytest.raises(CheckpointError, match="at most 100"):
        decode(content, marker, 3)
