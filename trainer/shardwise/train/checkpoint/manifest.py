"""The format of a checkpoint's manifest and of the marker that commits it; `save.py` writes them.

    step-00000040/
        arrays/<path>/zarr.json, c.0.1 ...   one zarr3 array for each path
        manifest.json                        this manifest
        COMMITTED                            written last: the SHA-256 of manifest.json
        SET_ASIDE                            in its place if the run went back to a checkpoint before this one

It touches no file: bytes come in and go out.
"""

import hashlib
import json
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from shardwise.protocol.contract import COMMITTED
from shardwise.protocol.errors import CheckpointError
from shardwise.protocol.message import MAX_INT32

FORMAT_VERSION = 2
"""2: each weight has `embed` as its first dimension; 1 had it where the layer read it."""
MANIFEST = "manifest.json"
SET_ASIDE = "SET_ASIDE"
ARRAYS = "arrays"
MAX_MANIFEST_BYTES = 64 << 20
MAX_MARKER_BYTES = 4096
MAX_ARRAYS = 100_000

Kind = Literal["state", "weights"]
IdentityValue = str | int | float | bool | None
_Size = Annotated[int, Field(ge=1, le=2**32)]
_Sizes = Annotated[tuple[_Size, ...], Field(max_length=16)]
_Text = Annotated[str, Field(max_length=4096)]
ArrayPath = Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$")]


class _Model(BaseModel):
    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, validate_by_name=True, serialize_by_alias=True
    )


class ArrayEntry(_Model):
    """One array: what it is, how it is cut into files and chunks, and the digest of its values (32 hex digits)."""

    shape: _Sizes
    dtype: Annotated[str, Field(pattern=r"^(bool|bfloat16|float(16|32)|u?int(8|16|32))$")]
    file_shape: _Sizes
    chunk_shape: _Sizes
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]

    @model_validator(mode="after")
    def _cuts_divide(self) -> Self:
        for outer, inner in ((self.shape, self.file_shape), (self.file_shape, self.chunk_shape)):
            if len(outer) != len(inner) or any(a % b for a, b in zip(outer, inner, strict=True)):
                raise ValueError(f"{inner} does not divide {outer}")
        return self


class History(_Model):
    """What the steps after a checkpoint depend on, besides its arrays, in a job with `training.badSteps`."""

    left_out: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=100_000)] = ()
    """Batches, counted from 0, that the run has left out by itself, ascending."""
    losses: Annotated[tuple[tuple[int, float], ...], Field(max_length=10_000)] = ()
    """(step, loss) of the last steps, ascending: what a spike would be one above."""
    skipped: Annotated[int, Field(ge=0, le=MAX_INT32, exclude_if=lambda steps: steps == 0)] = 0
    """How many of the last steps were skipped, one after the other; unsaid if it is 0, as for `history` below."""


NO_HISTORY = History()


class Manifest(_Model):
    """What a checkpoint holds. `kind` "weights" has parameters only; `identity` is what the run is, flat."""

    format_version: Literal[2] = 2
    kind: Kind
    step: Annotated[int, Field(ge=0, le=MAX_INT32)]
    run: _Text
    # The restart attempt that wrote it, under the name that this format has had from its first version.
    attempt: Annotated[int, Field(ge=0, alias="incarnation")]
    created: AwareDatetime
    identity: Annotated[dict[_Text, IdentityValue | _Text], Field(max_length=10_000)]
    arrays: Annotated[dict[ArrayPath, ArrayEntry], Field(min_length=1, max_length=MAX_ARRAYS)]
    history: History = NO_HISTORY


def array_directory(path: str) -> str:
    """Return where an array lies in the checkpoint's directory; the pattern of `ArrayPath` keeps it inside."""
    return str(PurePosixPath(ARRAYS, path))


def encode(manifest: Manifest) -> tuple[bytes, bytes]:
    """Return the bytes of the manifest and of its marker."""
    # Left out if it is empty, so that releases which know no history read the checkpoints of other jobs.
    unsaid = {"history"} if manifest.history == NO_HISTORY else None
    text = manifest.model_dump_json(exclude=unsaid).encode()
    if len(text) > MAX_MANIFEST_BYTES:
        raise CheckpointError(f"the manifest has {len(text)} bytes; at most {MAX_MANIFEST_BYTES} can be read back")
    marker = {"format_version": FORMAT_VERSION, "manifest_sha256": hashlib.sha256(text).hexdigest()}
    return text, json.dumps(marker).encode()


def decode(manifest: bytes | None, marker: bytes | None, step: int) -> Manifest:
    """Return the manifest, or raise a `CheckpointError` that says which of the two files is wrong, and how."""
    if marker is None:
        raise CheckpointError(f"it was never committed, or was set aside: {COMMITTED} is missing")
    if manifest is None:
        raise CheckpointError(f"{MANIFEST} is missing")
    _refuse_large(COMMITTED, marker, MAX_MARKER_BYTES)
    _refuse_large(MANIFEST, manifest, MAX_MANIFEST_BYTES)
    _refuse_other(COMMITTED, marker)
    if _object(COMMITTED, marker).get("manifest_sha256") != hashlib.sha256(manifest).hexdigest():
        raise CheckpointError(
            f"{MANIFEST} is not the one that was committed: its SHA-256 differs from the one in {COMMITTED}"
        )
    _refuse_other(MANIFEST, manifest)
    try:
        decoded = Manifest.model_validate_json(manifest)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise CheckpointError(f"{MANIFEST} is not valid: {place}: {first['msg']}") from error
    if decoded.step != step:
        raise CheckpointError(f"{MANIFEST} is of step {decoded.step}, but lies in the directory of step {step}")
    return decoded


def _refuse_large(name: str, content: bytes, limit_bytes: int) -> None:
    if len(content) > limit_bytes:
        raise CheckpointError(f"{name} has {len(content)} bytes; expected at most {limit_bytes}")


def _refuse_other(name: str, content: bytes) -> None:
    version = _object(name, content).get("format_version")
    if not isinstance(version, int) or version < 1:
        raise CheckpointError(f"{name} has no format_version")
    if version > FORMAT_VERSION:
        raise CheckpointError(
            f"{name} has format {version}, written by a newer Shardwise; this one reads format {FORMAT_VERSION}"
        )
    if version < FORMAT_VERSION:
        raise CheckpointError(
            f"{name} has format {version}, written by an older Shardwise whose weights had another shape; this one "
            f"reads format {FORMAT_VERSION}. Export it with the older one (shardwise export) and import the file here"
        )


def _object(name: str, content: bytes) -> dict[str, object]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:  # what is nested too deep is JSON, but no manifest
        raise CheckpointError(f"{name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{name} is not a JSON object")
    return value
