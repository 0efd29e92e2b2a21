"""The manifest: it comes back as it was, and refuses what could lead out of the checkpoint or is not understood."""

import hashlib
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from shardwise.protocol.errors import CheckpointError
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
        attempt=1,
        created=datetime(2030, 1, 2, tzinfo=UTC),
        identity={"model": "toy", "seed": 3, "rate": 0.5, "tied": True, "rotary": None},
        arrays={path: _entry()},
    )


def test_round_trip() -> None:
    """Every field survives, the types of identity's values included."""
    assert decode(*encode(_manifest()), 3) == _manifest()


def test_an_attempt_keeps_the_name_that_it_has_in_earlier_checkpoints() -> None:
    """Releases before and after this one read each other's checkpoints."""
    content, _ = encode(_manifest())

    assert json.loads(content)["incarnation"] == 1
    assert "attempt" not in json.loads(content)


def test_history() -> None:
    """What later steps depend on comes back bit for bit; without any, older releases read the manifest too."""
    history = History(left_out=(3, 44), losses=((7, 0.1), (9, 2.5000000000000004)))
    manifest = _manifest().model_copy(update={"history": history})

    assert decode(*encode(manifest), 3).history == history
    assert "history" not in json.loads(encode(_manifest())[0])


def test_skipped_steps_are_said_only_where_there_are_some() -> None:
    """Releases that know no such count read the checkpoints of runs without; and theirs are of none."""
    losses = History(losses=((7, 0.5),))
    skipped = losses.model_copy(update={"skipped": 3})
    without, some = (encode(_manifest().model_copy(update={"history": one}))[0] for one in (losses, skipped))

    assert json.loads(without)["history"] == {"left_out": [], "losses": [[7, 0.5]]}
    assert json.loads(some)["history"]["skipped"] == 3
    assert decode(*encode(_manifest().model_copy(update={"history": skipped})), 3).history == skipped
    assert decode(*encode(_manifest().model_copy(update={"history": losses})), 3).history.skipped == 0


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


_ABSURD = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
        st.sampled_from([-1, 0, 2**31, 2**64, 10**400, "..", "../../etc", "/", "\0", "a" * 5000, [[]] * 20]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=6,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place of a JSON value, the whole one too."""
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in below for place in _places(each, (*path, key)))]


_WHOLE = json.loads(encode(_manifest())[0])


@st.composite
def _mutated(draw: st.DrawFn) -> bytes:
    """The manifest with other values, more of them, or fewer, in some of its places."""
    value = json.loads(json.dumps({"manifest": _WHOLE}))
    for _ in range(draw(st.integers(1, 3))):
        *above, last = draw(st.sampled_from([place for place in _places(value) if place]))
        node = value
        for key in above:
            node = node[key]
        if draw(st.booleans()):
            node[last] = draw(_ABSURD)
        elif isinstance(node, dict) and len(above) and draw(st.booleans()):
            node[draw(st.sampled_from(["more", "", last + "x", "../x"]))] = node.pop(last)
    return json.dumps(value["manifest"]).encode()


@st.composite
def _damaged(draw: st.DrawFn) -> bytes:
    """The manifest with bytes that are others, are missing, or were not there."""
    content = bytearray(encode(_manifest())[0])
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(content)))
        content[at : at + draw(st.integers(0, 40))] = draw(st.binary(max_size=9))
    return bytes(content)


@given(st.one_of(_mutated(), _damaged(), st.binary(max_size=50), st.just(b"")))
@example(b"[" * 3_000)
@example(b'{"format_version":' * 3_000)
@example(b'{"format_version": ' + b"9" * 5000 + b"}")
@example(b'{"format_version": 2, "arrays": ' + b'{"a":' * 3_000)
@example(b'{"format_version": true}')
@example("{}".encode("utf-16"))
@example(b'{"format_version": 2, "run": "\\ud800"}')
def test_a_committed_manifest_that_is_another(content: bytes) -> None:
    """Whatever its marker vouches for is what it says, as a whole, or is refused by the name of the file."""
    digest = hashlib.sha256(content).hexdigest()
    try:
        decoded = decode(content, json.dumps({"format_version": 2, "manifest_sha256": digest}).encode(), 3)
    except CheckpointError as error:
        assert str(error).startswith("manifest.json")  # noqa: PT017  not every drawn one is refused
    else:
        assert decoded == Manifest.model_validate_json(json.dumps(json.loads(content)))


@given(st.one_of(st.binary(max_size=60), _ABSURD.map(lambda value: json.dumps(value).encode())))
@example(b"[" * 4000)
@example(b'{"a":' * 800)
@example(b'{"format_version": 1e999}')
def test_a_marker_that_is_another(content: bytes) -> None:
    """No other marker vouches for a manifest, however it reads."""
    assume(content != encode(_manifest())[1])
    with pytest.raises(CheckpointError, match="COMMITTED"):
        decode(encode(_manifest())[0], content, 3)


@given(_damaged())
def test_a_manifest_that_was_damaged_later(content: bytes) -> None:
    """One changed byte is enough."""
    whole, marker = encode(_manifest())
    assume(content != whole)
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        decode(content, marker, 3)
