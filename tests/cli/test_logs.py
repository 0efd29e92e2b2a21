"""shardwise.cli.logs and shardwise.cli.stop, without a live run; with one they are in tests/hosts."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.cli.conftest import COMMAND, Command, person
from tests.cli.test_status import Held

from shardwise.launcher.system.log_bound import cut
from shardwise.protocol.contract import ExitCode
from shardwise.protocol.leader_record import LeaderRecord, RunResult


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a run directory with the logs of two hosts, the second of which was lost in the second attempt."""
    (tmp_path / ".lock").touch()
    for attempt, hosts in ((0, (0, 1)), (10, (0,))):
        folder = tmp_path / "logs" / f"attempt-{attempt}"
        folder.mkdir(parents=True)
        for host in hosts:
            (folder / f"host-{host}.log").write_text(f"être {attempt} {host}\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "être 10 0\n"),
        (["--attempt", "0"], "être 0 0\n"),
        (["--host", "1", "--attempt", "0"], "être 0 1\n"),
    ],
    ids=["newest", "attempt", "host"],
)
def test_logs(options: list[str], text: str, directory: Path, command: Command) -> None:
    """Without options the log is host 0's of the newest attempt; it is printed as it is."""
    ended = command("logs", str(directory), *options)
    assert (ended.code, ended.out, ended.error) == (0, text, "")


def test_a_terminal_without_the_letters(directory: Path, tmp_path: Path) -> None:
    """What it cannot print is escaped; the command goes on."""
    ended = subprocess.run(
        [*COMMAND, "logs", str(directory)],
        env=person(tmp_path) | {"PYTHONIOENCODING": "iso8859-5"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "\\xeatre 10 0\n", "")


def test_log_that_is_not_there(directory: Path, command: Command) -> None:
    """A log that there is none of is wrong usage; what there is, is said."""
    ended = command("logs", str(directory), "--host", "1")
    assert (ended.code, ended.out) == (2, "")
    assert "no log of host 1 in attempt 10" in ended.error
    assert "attempts 0, 10" in ended.error
    assert "hosts 0" in ended.error


def test_logs_of_a_run_that_never_started(tmp_path: Path, command: Command) -> None:
    """A directory without any log says so."""
    (tmp_path / ".lock").touch()
    ended = command("logs", str(tmp_path))
    assert (ended.code, ended.out) == (2, "")
    assert "none" in ended.error


def test_follow(directory: Path, tmp_path: Path) -> None:
    """What a live run writes is printed as it is written, then a later attempt's log; it ends with the run."""
    logs = directory / "logs"
    with Held(directory):
        followed = subprocess.Popen(
            [*COMMAND, "logs", str(directory), "-f"], env=person(tmp_path), stdout=subprocess.PIPE, text=True
        )
        assert followed.stdout is not None
        assert followed.stdout.readline() == "être 10 0\n"
        with (logs / "attempt-10" / "host-0.log").open("a", encoding="utf-8") as log:
            log.write("step 1\nkilled in the middle")
        assert followed.stdout.readline() == "step 1\n"
        (logs / "attempt-11").mkdir()
        (logs / "attempt-11" / "host-0.log").write_text("step 2\n", encoding="utf-8")
        assert [followed.stdout.readline() for _ in range(3)] == [
            "killed in the middle\n",
            "==> attempt 11 <==\n",
            "step 2\n",
        ]
    assert followed.communicate()[0] == ""
    assert followed.returncode == 0


def test_follow_a_host_without_a_log(directory: Path, tmp_path: Path) -> None:
    """A live run may get that log yet, so it is waited for; that there is none, and which there are, is said."""
    with Held(directory):
        followed = subprocess.Popen(
            [*COMMAND, "logs", str(directory), "--host", "7", "-f"],
            env=person(tmp_path),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert followed.stderr is not None
        said = followed.stderr.readline()
    assert "no log of host 7 in attempt 10; there are attempts 0, 10, and in this one hosts 0" in said
    assert said.endswith("; waiting for it, as the run is live\n")
    assert followed.communicate()[0] == ""
    assert followed.returncode == 0


def test_logs_that_were_cut(directory: Path, command: Command) -> None:
    """All that is left of a log is printed in its order, with the lines that say what is not."""
    log = directory / "logs" / "attempt-10" / "host-0.log"
    for number in range(2):
        with log.open("a", encoding="utf-8") as file:
            file.write(f"step {number}\n")
        cut(log)
    with log.open("a", encoding="utf-8") as file:
        file.write("step 2\n")
    ended = command("logs", str(directory))
    assert (ended.code, ended.error) == (0, "")
    lines = ended.out.splitlines()
    assert [line for line in lines if not line.startswith("[shardwise: ")] == [
        "être 10 0",
        "step 0",
        "step 1",
        "step 2",
    ]
    assert command("logs", str(directory), "--host", "1").code == 2


def test_follow_over_a_cut(directory: Path, tmp_path: Path) -> None:
    """No line is missing where a log is cut under who follows it."""
    log = directory / "logs" / "attempt-10" / "host-0.log"
    with Held(directory):
        followed = subprocess.Popen(
            [*COMMAND, "logs", str(directory), "-f"], env=person(tmp_path), stdout=subprocess.PIPE, text=True
        )
        assert followed.stdout is not None
        assert followed.stdout.readline() == "être 10 0\n"
        with log.open("a", encoding="utf-8") as file:
            file.write("step 0\n")
        assert followed.stdout.readline() == "step 0\n"
        with log.open("a", encoding="utf-8") as file:
            file.write("step 1\n")
            file.flush()
            cut(log)
            file.write("step 2\n")
        assert followed.stdout.readline() == "step 1\n"
        assert followed.stdout.readline().startswith("[shardwise: the log was cut here")
        assert followed.stdout.readline() == "step 2\n"
    assert followed.communicate()[0] == ""


def test_follow_a_run_that_has_ended(directory: Path, command: Command) -> None:
    """Of a run that has ended --follow prints what there is, from the attempt on that is named."""
    ended = command("logs", str(directory), "--follow", "--attempt", "0")
    assert (ended.code, ended.out) == (0, "être 0 0\n==> attempt 10 <==\nêtre 10 0\n")


def test_nothing_to_stop(directory: Path, command: Command) -> None:
    """Where no run is alive there is nothing to stop, which is wrong usage."""
    ended = command("stop", str(directory))
    assert (ended.code, ended.out) == (2, "")
    assert "nothing to stop" in ended.error


def test_a_leader_that_cannot_be_asked(directory: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a live run on another machine `stop` says after a while why it cannot stop it, and where it can be stopped."""
    monkeypatch.setattr("shardwise.cli.stop._LEADER_SECONDS", 0.0)
    token = directory / "of-another-machine" / "status-token"
    where = {"url": "http://127.0.0.1:9", "tokenFile": str(token)}
    (directory / "logs" / "status.json").write_text(json.dumps(where), encoding="utf-8")
    with Held(directory):
        ended = command("stop", str(directory))
    assert (ended.code, ended.out) == (2, "")
    assert f"a live run holds {directory}" in ended.error
    assert f"No such file or directory: '{token}'" in ended.error
    assert "stop it on its machine, as its user" in ended.error


@pytest.mark.parametrize(
    ("result", "code", "said"),
    [
        (RunResult(code=ExitCode.SAVED, message="saved and stopped"), 0, "saved and stopped"),
        (RunResult(code=ExitCode.OK, message="complete"), 0, "complete"),
        (RunResult(code=ExitCode.STORAGE, message="no space, when it was asked to stop"), 1, "no space"),
        (None, 1, "without a word"),
    ],
    ids=["saved", "complete", "failed", "killed"],
)
def test_a_stop_says_how_the_run_has_ended(
    directory: Path,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    result: RunResult | None,
    code: int,
    said: str,
) -> None:
    """A run that could not be saved is not called stopped, and the exit code says so too."""
    held = Held(directory)
    record = LeaderRecord(run="uid", scratch="/s", leader_pid=1, port=1, started_at=1.0, result=result)

    def ends(*_: object) -> None:
        record.write(directory)
        held.__exit__()

    monkeypatch.setattr("shardwise.cli.stop.ask", ends)
    held.__enter__()
    ended = command("stop", str(directory))
    assert ended.code == code
    assert said in ended.out + ended.error
    assert "\nstopped\n" not in ended.out


@pytest.mark.parametrize("name", ["logs", "stop"])
def test_no_run_directory(name: str, tmp_path: Path, command: Command) -> None:
    """A directory that holds no run is refused in the words of every command."""
    ended = command(name, str(tmp_path))
    assert (ended.code, ended.out) == (2, "")
    assert "is no run directory" in ended.error
