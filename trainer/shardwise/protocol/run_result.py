"""How a run ended: the leader decides it, and leaves it in its record, in the last event and to the other hosts."""

from shardwise.protocol.message import Message


class RunResult(Message):
    """The exit code of the run (`ExitCode`), and a message for people.

    The other fields describe a bad end that no restart follows. `cause` is a `Cause`, None for a good end; `rank`,
    `exit` (how that rank's trainer ended) and `log_tail` (the end of its log) are empty if no single trainer explains
    the end.
    """

    code: int
    message: str
    cause: str | None = None
    rank: int | None = None
    exit: str | None = None
    log_tail: str = ""
