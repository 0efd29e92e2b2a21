"""How an array of a checkpoint is described to TensorStore, and what its errors mean in plain words.

zarr3 with `sharding_indexed`: a file holds chunks and an index, and both carry crc32c. Chunks of zeros are stored
too, so that a missing chunk is an error and never reads as zeros. Every save has a context of its own without a cache
pool: a shared one keeps what passed through it. The reader knows the format by itself (`chunks`) and takes from here
only what an error means.
"""

from typing import Any

import numpy as np
import tensorstore as ts

from shardwise.bucket.folder import RETRIES
from shardwise.protocol.storage import first_line, may_pass
from shardwise.train.checkpoint.layout import Shape

_COPY_CONCURRENCY = 4
_CODECS = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
_FULL = {
    "No space left on device": "the disk is full",
    "Disk quota exceeded": "the disk quota is used up",
    "File too large": "a file reached the size limit of this process or file system",
    "Read-only file system": "the file system is read-only",
    "Permission denied": "this user may not write there",
}


def context(num_file_operations: int) -> ts.Context:
    """Return the context of one save: at most so many files at a time and no cache."""
    return ts.Context(
        {
            "file_io_concurrency": {"limit": num_file_operations},
            "data_copy_concurrency": {"limit": _COPY_CONCURRENCY},
            "cache_pool": {"total_bytes_limit": 0},
            **RETRIES,
        }
    )


def array_spec(
    kvstore: dict[str, Any], shape: Shape, dtype: np.dtype[Any], file_shape: Shape, chunk_shape: Shape
) -> dict[str, Any]:
    """Return the whole description: what is on disk already must agree with all of it."""
    sharding = {"chunk_shape": chunk_shape, "codecs": _CODECS, "index_codecs": _CODECS}
    return {
        "driver": "zarr3",
        "kvstore": kvstore,
        "store_data_equal_to_fill_value": True,
        "metadata": {
            "shape": shape,
            "data_type": str(dtype),
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": file_shape}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        },
    }


def is_out_of_reach(error: Exception) -> bool:
    """Return whether the store cannot be read now, which says nothing about the checkpoint."""
    return may_pass(error) or str(error).startswith("PERMISSION_DENIED")


def write_cause(error: Exception) -> str:
    """Return why a write failed: a known cause in plain words, with the system's own message."""
    known = next((words for text, words in _FULL.items() if text in str(error)), "writing failed")
    return f"{known} ({first_line(error)})"
