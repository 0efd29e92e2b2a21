"""Checkpoints: asynchronous to write, exact or refused to read, on any mesh.

    writer   save(): a host copy, and the rest in the background, one save at a time
    save     that rest: what all processes do of it together, the marker last
    reader   restore(): the newest one that is whole, straight into the run's shardings
    staging  the host copy; put: its way to disk; fetch: the way back, one of its chunks after the other: chunks
    layout   which process writes which file; manifest: what a checkpoint holds; retention: which ones go
    store    the files, in a folder or a bucket; zarr: how an array is described to TensorStore

It knows arrays and their paths, not the model.
"""

from shardwise.train.checkpoint.manifest import NO_HISTORY, ArrayEntry, History, Manifest
from shardwise.train.checkpoint.reader import Restored, load_numpy, read_manifest, restore, steps
from shardwise.train.checkpoint.retention import set_aside
from shardwise.train.checkpoint.save import SaveTicket
from shardwise.train.checkpoint.store import prepare_bucket
from shardwise.train.checkpoint.writer import CheckpointWriter

__all__ = [
    "NO_HISTORY",
    "ArrayEntry",
    "CheckpointWriter",
    "History",
    "Manifest",
    "Restored",
    "SaveTicket",
    "load_numpy",
    "prepare_bucket",
    "read_manifest",
    "restore",
    "set_aside",
    "steps",
]
