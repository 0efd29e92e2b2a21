"""Whether every host sees the run directory that host 0 writes to: host 0 leaves a word there, and each host reads it.

Called by the leader, which writes its agent's id, and by the followers, which say in every poll what they have read. A
directory that is not the same everywhere would let each host train on, and restore, something else.
"""

from pathlib import Path

from shardwise.job.contract import LOGS
from shardwise.job.files import replace_file

SHARED_SECONDS = 120.0  # network file systems keep for up to a minute that a file is not there
_WORD = "leader"


def leave_word(directory: Path, word: str) -> None:
    """Write a word for all hosts to read."""
    replace_file(directory / LOGS / _WORD, word, durable=True)


def read_word(directory: Path) -> str:
    """The word, or why it cannot be read."""
    try:
        return (directory / LOGS / _WORD).read_text(encoding="utf-8")
    except OSError as error:
        return str(error)
