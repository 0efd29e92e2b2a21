"""shardwise.cli.screen: a run's page on one screen."""

from pathlib import Path
from typing import Any

from rich.console import Console
from tests.cli.test_status import LIVE
from tests.page.building import BEGAN, lose_number, make_run, saved, started
from tests.page.building import lines as lines_of

from shardwise.cli.screen import Size, screen
from shardwise.page.document import Notice, PageDocument
from shardwise.page.gather import gather
from shardwise.protocol.run_status import RunStatus


def drawn(document: PageDocument, live: RunStatus | None, size: Size) -> list[str]:
    """Return the lines of a screen."""
    console = Console(width=size.columns, height=size.lines, color_system=None)
    with console.capture() as captured:
        console.print(screen(document, live, size))
    return [line.rstrip() for line in captured.get().splitlines()]


def crowd(count: int) -> RunStatus:
    """Return the status of a run of so many hosts, of which one is slow and another behind."""
    one: dict[str, Any] = LIVE["hosts"][0]
    hosts = [{**one, "host": host, "step": 7 if host == 500 else 11} for host in range(count)]
    return RunStatus.model_validate({**LIVE, "slowestHost": count - 1, "hosts": hosts})


def test_own_work_of_a_small_model(tmp_path: Path) -> None:
    """A host's own work of some microseconds is not shown as 0.0."""
    one: dict[str, Any] = LIVE["hosts"][0]
    hosts = [{**one, "host": host, "ownSeconds": seconds} for host, seconds in enumerate((4.2e-05, 0.0123))]
    live = RunStatus.model_validate({**LIVE, "hosts": hosts})
    lines = drawn(gather(make_run(tmp_path / "run"), live=live), live, Size(120, 50))
    at = next(number for number, line in enumerate(lines) if "own work, ms" in line)
    assert [line.split()[-2] for line in lines[at + 1 : at + 3]] == ["0.042", "12.3"]


def test_what_is_shown(tmp_path: Path) -> None:
    """A screen has the run's status, figures, curve, goodput with shares, and what happened last."""
    lines = drawn(gather(make_run(tmp_path / "run")), None, Size(120, 50))
    text = "\n".join(lines)
    assert lines[0] == f"quickstart  complete  {tmp_path / 'run'}"
    assert lines[1].startswith("step 6 of 100")
    figures = "loss 60.0000   held-out loss 4.5000   tokens/s 1,004   MFU 25.0%   saved at step 4   attempts 2"
    assert f"{figures}   restarts failure 1" == lines[2]
    assert "training loss" in text
    assert "■ step 62%   ■ start 25%   ■ recovery 10%   ■ lostSteps 2%" in text
    assert "saveFailed at step 5" in lines[-1]


def test_checkpoints_that_were_set_aside(tmp_path: Path) -> None:
    """A run that went back to step 4 does not say that a later step is saved."""
    directory = make_run(tmp_path / "run")
    events = [saved(6, BEGAN + 40), {"event": "setAside", "step": 4, "steps": [6]}, started(4, 2)]
    with (directory / "metrics.jsonl").open("a", encoding="utf-8") as metrics:
        metrics.write(lines_of(events))

    found = drawn(gather(directory), None, Size(120, 50))

    assert "saved at step 4" in found[2]
    assert "checkpoints step 4; the last took 1.5 s; training waited 0.25 s" in found


def test_a_loss_that_is_no_number(tmp_path: Path) -> None:
    """It is said of the newest step and the newest evaluation, and no older number in its place."""
    directory = make_run(tmp_path / "run")
    lose_number(directory)
    found = drawn(gather(directory), None, Size(120, 50))
    assert found[2].startswith("loss nan   held-out loss nan   tokens/s")
    assert "evaluated books nan" in found


def test_what_is_said_in_one_line_each(tmp_path: Path) -> None:
    """Evaluations, checkpoints, mesh with memory, and each bad end with its cause, as on the page."""
    document = gather(make_run(tmp_path / "run")).model_copy(update={"set_losses": {"books": 3.25, "web": 4.0}})
    document = document.model_copy(
        update={"set_answered": {"asked": 0.3751}, "set_rewards": {"heldOut": 0.5, "sums": 0.25}}
    )
    lines = drawn(document, None, Size(120, 50))
    for line in (
        "evaluated books 3.2500, web 4.0000",
        "answered right asked 37.5%",
        "reward held-out 0.5000, sums 0.2500",
        "checkpoints step 4; the last took 1.5 s; training waited 0.25 s",
        "devices 4 as data 2 x tensor 2; the fullest holds 0.0 MiB in a step",
        "attempt 0 ended after 0:00:30: failure, rank 1 ended with signal SIGKILL",
    ):
        assert line in lines


def test_a_small_terminal_has_the_last_restart(tmp_path: Path) -> None:
    """Of ten bad ends three are said, and where there is room for one line, that of the last."""
    document = gather(make_run(tmp_path / "run"))
    (bad,) = (attempt for attempt in document.attempts if attempt.cause)
    document = document.model_copy(update={"attempts": [bad.model_copy(update={"number": n}) for n in range(10)]})
    for lines, attempts in ((50, ["7", "8", "9"]), (12 + 2 + 5 + 1, ["9"]), (12, [])):
        shown = drawn(document, None, Size(120, lines))
        assert [line.split()[1] for line in shown if line.startswith("attempt ")] == attempts


def test_a_screen_is_never_longer_than_the_terminal(tmp_path: Path) -> None:
    """Of a thousand hosts there are as many as fit, with the slow one and the one behind; the others are counted."""
    document = gather(make_run(tmp_path / "run"))
    for size in (Size(80, 24), Size(120, 50), Size(200, 80)):
        lines = drawn(document, crowd(1024), size)
        assert len(lines) <= size.lines
        rows = [line.split()[0] for line in lines if " step " in line and line[0].isdigit()]
        assert {"500", "1023"} <= set(rows)
        assert f"and {1024 - len(rows):,} more hosts" in "\n".join(lines)


def test_a_run_that_has_only_begun(tmp_path: Path) -> None:
    """Before the first step there is a screen too, without a curve and without goodput."""
    directory = make_run(tmp_path / "run")
    for name in ("metrics.jsonl", "summary.json", "logs/launcher.jsonl"):
        (directory / name).unlink()
    lines = drawn(gather(directory), None, Size(80, 50))
    assert (len([line for line in lines if line]), lines[1].split()[:2]) == (2, ["step", "0"])


def test_a_stop_without_a_save(tmp_path: Path) -> None:
    """A run whose newest checkpoint is before its last step is not said to be saved."""
    document = gather(make_run(tmp_path / "run"), status="stopped")
    assert "stopped (on request; the same command goes on from step 4)" in drawn(document, None, Size(120, 50))[0]


def test_a_run_that_recovers(tmp_path: Path) -> None:
    """It is said once that it does, in yellow, and why; how the command before ended is not said of a live run."""
    directory = make_run(tmp_path / "run")
    (directory / "summary.json").write_text('{"status": "failed", "error": "of another command"}', encoding="utf-8")
    live = RunStatus.model_validate({**LIVE, "phase": "recovering", "reason": "rank 1 has ended"})
    document = gather(directory, live=live)
    console = Console(width=200, color_system="standard", force_terminal=True)
    with console.capture() as captured:
        console.print(screen(document, live, Size(200, 50)))
    first = captured.get().splitlines()[0]
    assert "\x1b[33mrecovering" in first
    assert "(its processes are started again: rank 1 has ended)" in first
    assert "another command" not in captured.get()


def test_words_cannot_steer_the_terminal(tmp_path: Path) -> None:
    """What a process has said is shown without its escape sequences and line breaks, and cannot be markup."""
    hostile = Notice(event="stalled", text="\x1b]0;taken over\x07 [bold]loud[/bold]\nnext")
    told = {"name": "a\x1b[5m", "status": "\x1b[2J", "restarts": {"\x07hang": 2}, "goodput": {"\x1b[31mstep": 1.0}}
    told |= {"error": "\x1b[2J gone", "directory": "runs/\x1b[31m"}
    document = gather(make_run(tmp_path / "run")).model_copy(update={"notices": [hostile], **told})
    text = "\n".join(drawn(document, None, Size(100, 24)))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[bold]loud[/bold] next" in text
