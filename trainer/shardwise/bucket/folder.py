"""A local path, file://, gs:// or s3:// as TensorStore's key-value stores know it.

They write a local file beside its name, flush it and rename it, and an object in one request. A write may say which
content it replaces.
"""

import errno
import os
from pathlib import Path
from typing import Any, TypeVar

import tensorstore as ts

from shardwise.protocol.contract import address_parts
from shardwise.protocol.errors import CheckpointError

_Answer = TypeVar("_Answer")

Found = ts.KvStore.ReadResult
BUCKET_DRIVERS = {"gs": "gcs", "s3": "s3"}
_TRIES = {"max_retries": 5}
RETRIES = {"gcs_request_retries": _TRIES, "s3_request_retries": _TRIES}
"""Of one request; its own 32 last for a quarter of an hour, without a word."""
ANSWER_SECONDS = 60.0
"""Of a small request, with its retries. The wait for a store that is not there any more would have no end."""
_S3_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""What AWS's own clients look at for an S3 that is not Amazon's, in this order. TensorStore looks at neither."""
_S3_KEY_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
"""If they are set, nothing else is looked at: by itself TensorStore prints an error for each file that is not there."""


def description(root: str) -> dict[str, Any]:
    """Return TensorStore's description of a folder, whose bucket has to exist; CheckpointError for another kind."""
    scheme, name, path = address_parts(root)
    if scheme in ("", "file"):
        # TensorStore takes no `..`, and only the file system knows where one leads behind a link.
        return {"driver": "file", "path": f"{Path(path).resolve()}/"}
    if scheme in BUCKET_DRIVERS and name:
        prefix = path.strip("/")
        place = {"driver": BUCKET_DRIVERS[scheme], "bucket": name, "path": f"{prefix}/" if prefix else ""}
        return place | (_s3_settings() if scheme == "s3" else {})
    raise CheckpointError(f"checkpoint path {root!r}: expected a local path, file://, gs://BUCKET/.. or s3://BUCKET/..")


def open_folder(place: dict[str, Any], context: ts.Context | None = None) -> ts.KvStore:
    """Return the files in a folder of this description; each new context looks for the bucket's credentials again."""
    return ts.KvStore.open(place, context=context or ts.Context(RETRIES)).result()


def answer_of(future: ts.Future[_Answer], seconds: float = ANSWER_SECONDS) -> _Answer:
    """Return the result of a request; TimeoutError, which may pass, if the store has not answered within that time."""
    try:
        return future.result(timeout=seconds)
    except TimeoutError:
        raise TimeoutError(errno.ETIMEDOUT, f"the store has not answered within {seconds:g} s") from None


def remove_below(folder: ts.KvStore, prefix: str) -> None:
    """Remove the files whose names begin with this; ValueError, OSError if the store refuses."""
    folder.delete_range(ts.KvStore.KeyRange(prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1))).result()


def _s3_settings() -> dict[str, Any]:
    """Return the settings of the environment that TensorStore does not read itself."""
    settings: dict[str, Any] = {}
    if endpoint := next((value for name in _S3_ENDPOINT_VARIABLES if (value := os.environ.get(name))), None):
        settings["endpoint"] = endpoint
    if all(os.environ.get(name) for name in _S3_KEY_VARIABLES):
        settings["aws_credentials"] = {"type": "environment"}
    return settings
