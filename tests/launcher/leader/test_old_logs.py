"""shardwise.launcher.leader.old_logs: a run that restarts again and again keeps what was said last, and no more."""

from pathlib import Path

from shardwise.launcher.leader.old_logs import ATTEMPTS_KEPT, STACKS_KEPT, in_bucket, remove, remove_stacks
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

    assert remove_stacks(tmp_path, 1) == []
    assert list(tmp_path.iterdir()) == []


def test_in_a_bucket() -> None:
    """There goes what goes here at the start of the same attempt, and of no attempt whose number begins alike."""
    assert in_bucket(ATTEMPTS_KEPT - 1) == []
    assert in_bucket(ATTEMPTS_KEPT) == [f"{LOGS}/attempt-0/", f"{LOGS}/stacks-0-"]
    assert in_bucket(ATTEMPTS_KEPT + 1) == [f"{LOGS}/attempt-1/", f"{LOGS}/stacks-1-"]


def test_an_attempt_that_stalls_again_and_again(tmp_path: Path) -> None:
    """Its first stacks and the newest are kept, with those that are written next; other attempts keep theirs."""
    logs = tmp_path / LOGS
    logs.mkdir()
    others = {"stacks-10-20260101T000000.txt", "stacks-0-20260101T000000.txt", "stacks-1.note"}
    for name in others:
        (logs / name).write_text("stays\n")
    names = [f"stacks-1-20260101T{minute:04}00.txt" for minute in range(3 * STACKS_KEPT)]
    removed = list[str]()
    for number, name in enumerate(names):
        removed += remove_stacks(tmp_path, 1)
        (logs / name).write_text("stood\n")
        assert len(list(logs.glob("stacks-1-*"))) == min(number + 1, 1 + STACKS_KEPT)

    assert {path.name for path in logs.iterdir()} == others | {names[0], *names[-STACKS_KEPT:]}
    assert removed == [f"{LOGS}/{name}" for name in names[1:-STACKS_KEPT]]
