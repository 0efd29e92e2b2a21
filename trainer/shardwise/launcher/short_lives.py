"""What the command says when an agent ends again and again, as soon as it is started."""

from pathlib import Path

from shardwise.launcher.agent.trainer import tail
from shardwise.protocol.files import replace_file
from shardwise.protocol.storage import reason_of

_PROBE_BYTES = 1 << 16  # more than any file that a leader has to write before it leads


def why_given_up(host: int, lives: int, code: int | None, log: Path) -> str:
    """Return that the agent of a host is started no more, and why; `log` is its log, in the run directory's folder."""
    ended = (
        f"the agent of host {host} ended {lives} times as soon as it was started, the last time with exit code {code}"
    )
    # A full disk takes no last words either, so the log says nothing of it.
    if reason := _refusal_of(log.parent):
        return f"{ended}: {log.parent.parent} cannot be written ({reason}); give the command again once it can"
    return f"{ended}; its log ends with:\n{tail(log)}"


def _refusal_of(folder: Path) -> str:
    """Return why the folder takes no file; "" if it does."""
    probe = folder / "written.probe"
    try:
        replace_file(probe, "-" * _PROBE_BYTES, durable=True)
    except OSError as error:
        return reason_of(error)
    finally:
        for left in (probe, *folder.glob(f"{probe.name}.*.partial")):
            left.unlink(missing_ok=True)
    return ""
