"""Local checkpoints: in a folder of each host, often in its memory, with a copy on another host.

    writer      save(): a host copy, and the rest in the background, what all hosts do of it together
    transfer    the files of one host, as another one fetches them
    folder      what a host has: its own files of a checkpoint, the copies of another's, and the list of both
    neighbours  whose copies a host keeps, and where the files of each are
    resume      which one a run goes on from, and what a host that was replaced fetches for it

They are checkpoints of the usual format, cut over the hosts. Such a save waits for no volume and no bucket, so it may
come often, and a run that loses a trainer or a host repeats few steps. What loses two hosts that hold a part of it
between them goes on from the last checkpoint on its storage (docs/decisions/0061).
"""

from shardwise.train.local_checkpoints.neighbours import Neighbours, hosts_apart, neighbours
from shardwise.train.local_checkpoints.resume import newest_local
from shardwise.train.local_checkpoints.writer import LocalWriter

__all__ = ["LocalWriter", "Neighbours", "hosts_apart", "neighbours", "newest_local"]
