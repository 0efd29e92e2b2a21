"""Checkpoints: asynchronous to write, exact or refused to read, on any mesh.

    writer   save(): a host copy, then files in the background, the marker last
    reader   restore(): the newest one that is whole, straight into the run's shardings
    staging  the host copy; put: its way to disk; fetch: the way back
    layout   which process writes which file; manifest: what a checkpoint says of itself; retention: which ones go
    lease    which run may write
    store, zarr   files and arrays, through TensorStore

Used by the step loop and by the commands that read or import weights. It knows arrays and their paths, not the model.
"""

from shardwise.train.checkpoint.lease import Lease
from shardwise.train.checkpoint.manifest import ArrayEntry, Manifest
from shardwise.train.checkpoint.reader import Restored, load_numpy, read_manifest, restore, steps
from shardwise.train.checkpoint.writer import CheckpointWriter, SaveTicket

__all__ = [
    "ArrayEntry",
    "CheckpointWriter",
    "Lease",
    "Manifest",
    "Restored",
    "SaveTicket",
    "load_numpy",
    "read_manifest",
    "restore",
    "steps",
]
