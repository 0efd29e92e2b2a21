"""The hosts of a run as keepers of each other's local checkpoints: whose copies each keeps, and where its files are."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shardwise.job.spec import Hardware
from shardwise.job.topology import num_hosts
from shardwise.protocol.contract import checkpoint_name
from shardwise.protocol.orders import LocalPlace
from shardwise.train.local_checkpoints.folder import LocalFolder
from shardwise.train.local_checkpoints.transfer import FileServer, fetch_files, token_of
from shardwise.train.peers import Peers


def hosts_apart(hardware: Hardware) -> int:
    """Return how many ranks a host is from the one that keeps its copies: one, or a slice, which is lost as a whole."""
    return num_hosts(hardware) // hardware.slices if hardware.slices > 1 else 1


@dataclass(frozen=True)
class Neighbours:
    """This process's folder, and where the others' files are fetched: `addresses` by rank, none of a run of one host.

    A host keeps copies of the one `apart` ranks before it.
    """

    folder: LocalFolder
    peers: Peers
    apart: int
    addresses: tuple[str, ...] = ()
    token: str = ""

    @property
    def before(self) -> int:
        """Return the rank whose copies this host keeps; its own if there is no other."""
        return (self.peers.rank - self.apart) % self.peers.count

    def fetch(self, step: int, names: Mapping[int, Iterable[str]], moved: Callable[[], None] = lambda: None) -> None:
        """Fetch files of a step, {rank: paths in the checkpoint's folder}, from those ranks' hosts.

        Raises:
            OSError: one cannot be had, or written.

        """
        inside = checkpoint_name(step)
        files = {self.addresses[rank]: [f"{inside}/{name}" for name in names[rank]] for rank in names}
        fetch_files(self.folder.path, self.token, files, moved)


@contextmanager
def neighbours(place: LocalPlace, attempt: int, peers: Peers, *, apart: int) -> Iterator[Neighbours]:
    """Serve this host's files while the block runs, and yield where those of all are. Every process calls it."""
    folder = LocalFolder(Path(place.folder))
    if peers.count == 1:
        yield Neighbours(folder, peers, apart)
        return
    token = token_of(Path(place.token_file).read_text(encoding="utf-8").strip(), attempt)
    with FileServer(place.address, folder.path, token) as server:
        addresses = peers.exchange("local addresses", server.address)
        yield Neighbours(folder, peers, apart, tuple(addresses), token)
