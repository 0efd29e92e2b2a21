"""shardwise.launcher.leader.old_logs: a run that restarts again and again keeps what was said last, and no more."""

from pathlib import Path

from shardwise.launcher.leader.old_logs import ATTEMPTS_KEPT, in_bucket, remove
from shardwise.protocol.contract import EVENTS, LOGS, log_path


def test_the_newest_attempts_are_kept(tmp_path: Path) -> None:
    """Logs and stacks of older attempts go; the events of the run, and files of other names, stay."""
    newest = ATTEMPTS_KEPT + 2
    for attempt in range(newest + 1):
        log = log_path(tmp_path, attempt, 0)
        log.parent.mkdir(parents=True)
        log.write_text("said\n")
        (tmp_path / LOGS / f"stacks-{attempt}-20260101T000000.txt").write_text("stood\n")
    for name in (EVENTS, "attempt-0.note", "attempts"):
        (tmp_path / LOGS / name).write_text("stays\n")

    remove(tmp_path, newest)

    left = range(newest - ATTEMPTS_KEPT + 1, newest + 1)
    expected = {f"attempt-{number}" for number in left} | {f"stacks-{number}-20260101T000000.txt" for number in left}
    assert {path.name for path in (tmp_path / LOGS).iterdir()} == expected | {EVENTS, "attempt-0.note", "attempts"}
    assert len(left) == ATTEMPTS_KEPT


def test_a_run_without_logs(tmp_path: Path) -> None:
    """A directory that nobody has logged to, or that is away, ends no run."""
    remove(tmp_path, 2 * ATTEMPTS_KEPT)

    assert list(tmp_path.iterdir()) == []


def test_in_a_bucket() -> None:
    """There goes what goes here at the start of the same attempt, and of no attempt whose number begins alike."""
    assert in_bucket(ATTEMPTS_KEPT - 1) == []
    assert in_bucket(ATTEMPTS_KEPT + 1) == [f"{LOGS}/attempt-1/", f"{LOGS}/stacks-1-"]
