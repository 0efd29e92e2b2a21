"""What the exit code of an own program means after it was told to stop. Pure."""

from shardwise.protocol.contract import ExitCode, Phase, Progress
from shardwise.protocol.orders import STOP_SIGNAL
from shardwise.protocol.report import Exit

_STOPPED = (ExitCode.OK, 128 + STOP_SIGNAL)


def understood(ended: Exit, reported: Progress | None) -> Exit:
    """Interpret how a program ended after it was told to stop; `reported` is its last progress record.

    A program handles SIGTERM as its author liked: it ends with 0, or as a shell reports a signal. Both mean that it has
    stopped. Only one that has reported its end is complete.
    """
    complete = reported is not None and reported.phase == Phase.DONE
    return ended if complete or ended.code not in _STOPPED else ended.model_copy(update={"code": ExitCode.SAVED})
