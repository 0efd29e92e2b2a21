"""Single lines of the screen of `shardwise top`: evaluations, checkpoints, mesh and memory, restarts with causes."""

from collections.abc import Iterator

from rich.text import Text

from shardwise.page.document import AttemptTimes, MemoryRow, Notice, PageDocument
from shardwise.protocol.eta import clock
from shardwise.protocol.evaluated import HELD_OUT
from shardwise.protocol.text import size

_MOST_RESTARTS = 3
_MOST_CHECKPOINTS = 5


def facts(document: PageDocument, most: int) -> list[Text]:
    """Return at most so many lines, the most important ones: the last restart goes before older ones."""
    restarts = [_restart(attempt) for attempt in document.attempts if attempt.cause][-_MOST_RESTARTS:]
    others = list(_others(document))
    kept = [*restarts[-1:], *others, *reversed(restarts[:-1])][: max(0, most)]
    return [line for line in (*others, *restarts) if line in kept]


def notice_line(notice: Notice) -> Text:
    """Return an event as one line that ends where the screen does."""
    at = "" if notice.step is None else f" at step {notice.step:,}"
    return Text(plain(f"{notice.event}{at}  {notice.text}"), "dim", no_wrap=True, overflow="ellipsis")


def plain(text: str) -> str:
    """Return what a process has said without anything that would steer the terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


def _others(document: PageDocument) -> Iterator[Text]:
    if document.set_losses:
        yield _line("evaluated", ", ".join(f"{name} {loss:.4f}" for name, loss in document.set_losses.items()))
    if document.set_answered:
        right = (f"{name} {share:.1%}" for name, share in document.set_answered.items())
        yield _line("answered right", ", ".join(right))
    if document.set_rewards:
        rewards = {"held-out" if name == HELD_OUT else name: reward for name, reward in document.set_rewards.items()}
        yield _line("reward", ", ".join(f"{name} {reward:.4f}" for name, reward in rewards.items()))
    if document.saves:
        yield _line("checkpoints", _checkpoints(document))
    if document.devices:
        yield _line("devices", _devices(document))


def _checkpoints(document: PageDocument) -> str:
    """Return the newest steps that are not known to be deleted, and what the last save took."""
    steps = [f"{save.step:,}" for save in document.saves if save.kept is not False]
    shown = ("… " if len(steps) > _MOST_CHECKPOINTS else "") + ", ".join(steps[-_MOST_CHECKPOINTS:])
    last = document.saves[-1]
    took = "" if last.durable_seconds is None else f"the last took {last.durable_seconds:.1f} s"
    waited = "" if last.blocked_seconds is None else f"training waited {last.blocked_seconds:.2f} s"
    return "; ".join(part for part in (shown and f"step {shown}", took, waited) if part)


def _devices(document: PageDocument) -> str:
    axes = " x ".join(f"{name} {size}" for name, size in document.mesh.items() if size > 1)
    fullest = max((_bytes(row) for row in document.memory), default=0)
    held = f"; the fullest holds {size(fullest)} in a step" if fullest else ""
    return f"{document.devices}{f' as {axes}' if axes else ''}{held}"


def _bytes(row: MemoryRow) -> int:
    return row.params_bytes + row.optimizer_bytes + row.batch_bytes + row.temporary_bytes


def _restart(attempt: AttemptTimes) -> Text:
    """Return how an attempt has come to a bad end."""
    lasted = clock((attempt.ended or attempt.last) - attempt.began)
    line = _line(f"attempt {attempt.number}", f"ended after {lasted}: ")
    return line.append(f"{attempt.cause}", "red").append(f", {plain(attempt.message)}" if attempt.message else "")


def _line(name: str, text: str) -> Text:
    return Text.assemble((f"{name} ", "dim"), plain(text), no_wrap=True, overflow="ellipsis")
