"""DIR/logs/leader: where host 0 is. It writes its address there, and every other host reads it.

A host that finds its leader therefore sees the run directory that the leader writes to. A host that saw another
directory would read other data and restore other checkpoints. In a cluster this replaces a DNS name: the run directory
is there anyway.
"""

from pathlib import Path

from shardwise.protocol.contract import LEADER_ADDRESS, LOGS
from shardwise.protocol.files import replace_file
from shardwise.protocol.message import Message


class LeaderAddress(Message):
    """Which agent leads a life of the command, or a round of a job (`run`), and where: "ip:port"."""

    run: str
    agent_id: str
    address: str

    def write(self, directory: Path) -> None:
        """Write it for all hosts to read."""
        replace_file(directory / LOGS / LEADER_ADDRESS, self.model_dump_json(), durable=True)

    @classmethod
    def read(cls, directory: Path) -> "LeaderAddress":
        """Return the address of the last leader; OSError or ValueError if none can be read."""
        return cls.model_validate_json((directory / LOGS / LEADER_ADDRESS).read_bytes())
