"""shardwise.cli.status: what a run directory's files say, without JAX."""

import fcntl
import json
import os
import re
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fsspec
import pytest
from tests.cli.conftest import QUICKSTART, Command

from shardwise.cli import run_files
from shardwise.cli.recovery import Recovery
from shardwise.cli.run_files import read_overview
from shardwise.cli.status import meaning_of
from shardwise.job.load import dump, load
from shardwise.job.resolve import resolve
from shardwise.protocol.contract import checkpoint_name
from shardwise.protocol.run_status import RunStatus


def make_run(directory: Path, *overrides: str, status: str = "running") -> Path:
    """Make the files of a run that has taken 10 steps of 2 s and saved two checkpoints, a third unfinished."""
    (directory / "logs").mkdir(parents=True)
    (directory / "job.yaml").write_text(dump(resolve(load(QUICKSTART, overrides))), encoding="utf-8")
    summary = {"status": status, "steps": 0, "phases": {"compile": 3.5}, "initialDigest": "ab" * 16}
    (directory / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    (directory / ".lock").touch()
    records = [
        {"step": step, "loss": 5 - step / 10, "tokensPerSecond": 1024.0, "mfu": 0.25, "stepSeconds": 2.0}
        for step in range(1, 11)
    ]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    for step, committed in ((4, True), (8, True), (10, False)):
        folder = directory / "checkpoints" / checkpoint_name(step)
        folder.mkdir(parents=True)
        if committed:
            (folder / "COMMITTED").touch()
    return directory


_NOBODY = 65534


class Held:
    """The lock of a run, as its process holds it."""

    def __init__(self, directory: Path) -> None:
        self._handle = os.open(directory / ".lock", os.O_RDWR)

    def __enter__(self) -> None:
        fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)


def test_live_run(tmp_path: Path, command: Command) -> None:
    """A run whose lock is held is running: its step, speed, time left and committed checkpoints are measured."""
    directory = make_run(tmp_path / "run")
    with Held(directory):
        known = json.loads(command("status", str(directory), "--json").out)
    assert known == {
        "name": "quickstart",
        "status": "running",
        "phase": None,
        "recovery": None,
        "reason": None,
        "attempt": None,
        "hosts": [],
        "slowestHost": None,
        "restarts": {},
        "goodput": {},
        "step": 10,
        "of": 100,
        "loss": 4.0,
        "evaluated": None,
        "tokensPerSecond": 1024.0,
        "mfu": 0.25,
        "etaSeconds": 180.0,
        "checkpointRoot": str(directory / "checkpoints"),
        "checkpoints": [4, 8],
        "phases": {"compile": 3.5},
        "initialDigest": "ab" * 16,
        "digest": None,
        "error": None,
        "checkpoint": None,
        "failedSaves": None,
        "localStep": None,
    }


def test_the_time_left_of_a_run_within_its_ramp(tmp_path: Path, command: Command) -> None:
    """At two seconds a step, ten more of 8 sequences and then eighty of 16 take as long as 170 of 8."""
    directory = make_run(tmp_path / "run", "training.batch.rampUp=[{untilStep: 20, sequences: 8}]")
    with Held(directory):
        known = json.loads(command("status", str(directory), "--json").out)
    assert known["etaSeconds"] == 340.0


def test_answers_to_questions_are_shares(tmp_path: Path, command: Command) -> None:
    """Of the last evaluation, beside the losses of all sets."""
    directory = make_run(tmp_path / "run")
    sets = {"books": {"loss": 3.0, "accuracy": 0.5}, "asked": {"loss": 2.0, "accuracy": 0.25, "questions": 1200.0}}
    with (directory / "metrics.jsonl").open("a", encoding="utf-8") as metrics:
        metrics.write(json.dumps({"event": "evaluated", "step": 10, "sets": sets}) + "\n")
    shown = [" ".join(line.split()) for line in command("status", str(directory)).out.splitlines()]
    assert "evaluated at step 10: loss books 3.0000, asked 2.0000" in shown
    assert "answered right 25.0% of 1,200 of asked" in shown


def test_rewards_are_of_so_many_prompts(tmp_path: Path, command: Command) -> None:
    """Of the last evaluation; prompts have no loss, and losses of other sets are beside them."""
    directory = make_run(tmp_path / "run")
    of_prompts = {"reward": 0.25, "prompts": 1200, "completionTokens": 3.5, "cutCompletions": 0.0}
    for sets, losses in (({}, ""), ({"books": {"loss": 3.0}}, ": loss books 3.0000")):
        record = {"event": "evaluated", "step": 10, "sets": {"heldOut": of_prompts, **sets}}
        with (directory / "metrics.jsonl").open("a", encoding="utf-8") as metrics:
            metrics.write(json.dumps(record) + "\n")
        shown = [" ".join(line.split()) for line in command("status", str(directory)).out.splitlines()]
        assert f"evaluated at step 10{losses}" in shown
        assert "reward 0.2500, the mean of 1,200 prompts of held-out" in shown


def _host(host: int, pid: int | None, step: int, seconds: float, doing: str = "") -> dict[str, Any]:
    phase = ("data" if doing else "step") if pid else None
    measured = {"ownSeconds": None, "ageSeconds": 0.5, "state": "R", "standby": True, "phases": {"step": 2.5}}
    measured["doing"] = doing
    return {
        "host": host,
        "agentPid": 3,
        "trainerPid": pid,
        "phase": phase,
        "step": step,
        "stepSeconds": seconds,
        **measured,
    }


LIVE: dict[str, Any] = {
    "name": "quickstart",
    "raySession": 1,
    "progress": {"step": 11, "of": 100, "etaSeconds": 44.5},
    "checkpoint": {"step": 8, "savedAt": 1e9, "seconds": 1.5, "ageSeconds": 1300.5},
    "failedSaves": {"inARow": 2, "reason": "[Errno 5]"},
    "phase": "recovering",
    "reason": "rank 1 ended with signal SIGKILL",
    "attempt": 1,
    "restarts": {"failure": 1, "hang": 0},
    "goodput": {"step": 12.5},
    "slowestHost": 1,
    "localStep": 12,
    "hosts": [
        _host(0, 5, 11, 0.25),
        _host(1, 6, 11, 0.5),
        _host(2, None, 0, 0.0),
        _host(3, 7, 0, 0.0, "tokenising web: 1.0 of 9.0 MB, 0:01:20 left"),
    ],
}
SHOWN = (
    "checkpoint",
    "failedSaves",
    "localStep",
    "phase",
    "reason",
    "attempt",
    "restarts",
    "goodput",
    "slowestHost",
    "hosts",
)


def test_what_the_launcher_knows(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a live run each host, the slow one, the restarts and the phase are shown; its step is the trainers'."""
    monkeypatch.setattr(run_files, "live_status", lambda _: RunStatus.model_validate(LIVE))
    directory = make_run(tmp_path / "run")
    with Held(directory):
        known = json.loads(command("status", str(directory), "--json").out)
        lines = [" ".join(line.split()) for line in command("status", str(directory)).out.splitlines()]
    assert {key: known[key] for key in SHOWN} == {key: LIVE[key] for key in SHOWN}
    assert (known["step"], known["etaSeconds"]) == (11, 44.5)
    assert "phase recovering: rank 1 ended with signal SIGKILL" in lines
    assert "host 0 step, step 11, 0.25 s a step" in lines
    assert "host 1 step, step 11, 0.50 s a step the slowest" in lines
    assert "host 2 no trainer" in lines
    assert "host 3 data: tokenising web: 1.0 of 9.0 MB, 0:01:20 left" in lines
    assert "restarts failure 1" in lines
    assert "newest saved 0:21:40 ago" in lines
    assert "on the hosts the local checkpoint of step 12" in lines
    assert "failed saves 2 since then: [Errno 5]" in lines


def test_of_many_hosts_those_that_say_most(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow one and those that are furthest behind; what follows them stays within reach of the eye."""
    one: dict[str, Any] = LIVE["hosts"][0]
    hosts = [{**one, "host": number, "step": 7 if number == 500 else 11} for number in range(1024)]
    live = RunStatus.model_validate({**LIVE, "hosts": hosts, "slowestHost": 900})
    monkeypatch.setattr(run_files, "live_status", lambda _: live)
    directory = make_run(tmp_path / "run")
    with Held(directory):
        lines = [" ".join(line.split()) for line in command("status", str(directory)).out.splitlines()]
    named = [line.split()[1] for line in lines if line.startswith("host ")]
    assert len(named) == 16
    assert {"500", "900"} <= set(named)
    assert "other hosts 1,008, none of them slower or further behind" in lines


@pytest.mark.parametrize("arguments", [["status"], ["page", "--out", "-"], ["top"]], ids=lambda words: words[0])
def test_a_live_run_of_another_user(arguments: list[str], tmp_path: Path, command: Command) -> None:
    """Where its token cannot be read, what the files say is shown."""
    directory = make_run(tmp_path / "run")
    (tmp_path / "token").mkdir()  # which cannot be read as a file, by root neither
    where = {"url": "http://127.0.0.1:9", "tokenFile": str(tmp_path / "token")}
    (directory / "logs" / "status.json").write_text(json.dumps(where), encoding="utf-8")
    with Held(directory):
        ended = command(arguments[0], str(directory), *arguments[1:])
    assert (ended.code, ended.error) == (0, "")
    assert "running" in ended.out


@pytest.mark.parametrize("reason", ["rank 1 ended with signal SIGKILL", ""], ids=("before the new start", "after it"))
def test_a_run_that_recovers(reason: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so while it does, since when and why, also when its next processes have got their orders."""
    live = RunStatus.model_validate(LIVE | {"reason": reason})
    monkeypatch.setattr(run_files, "live_status", lambda _: live)
    directory, since = make_run(tmp_path / "run"), time.time() - 65.0
    events = [
        {"event": "restarting", "time": since - 100, "waitSeconds": 0.0, "cause": "hang", "message": "stands still"},
        {"event": "running", "time": since - 90, "attempt": 1, "fromStep": 4, "sinceEndSeconds": 9.0},
        {
            "event": "restarting",
            "time": since,
            "waitSeconds": 2.0,
            "cause": "failure",
            "message": "rank 1 was [killed]",
        },
        {"event": "attempt", "time": since + 2, "attempt": 2},
    ]
    (directory / "logs" / "launcher.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    with Held(directory):
        known = json.loads(command("status", str(directory), "--json").out)
        words = " ".join(command("status", str(directory)).out.split())
    assert known["status"] == "recovering"
    assert known["recovery"] == {"since": since, "cause": "failure", "message": "rank 1 was [killed]"}
    assert re.search(r"status recovering \(for 0:01:[01]\d: rank 1 was \[killed\] \(failure\)\)", words)


def test_a_run_that_recovers_from_the_loss_of_its_leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has noted when that was: an older restart, which is over, is not taken for it."""
    monkeypatch.setattr(run_files, "live_status", lambda _: RunStatus.model_validate(LIVE))
    directory = make_run(tmp_path / "run")
    events = [
        {"event": "restarting", "time": 1.0, "waitSeconds": 0.0, "cause": "hang", "message": "stands still"},
        {"event": "running", "time": 2.0, "attempt": 1, "fromStep": 4, "sinceEndSeconds": 9.0},
    ]
    (directory / "logs" / "launcher.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    with Held(directory):
        recovery = read_overview(directory).recovery
    assert recovery == Recovery(since=None, cause=None, message=LIVE["reason"])


@pytest.mark.parametrize(
    ("phase", "status"),
    [
        ("waiting", "starting"),
        ("starting", "starting"),
        ("running", "running"),
        ("stalled", "running"),
        ("stopping", "failed"),
        ("done", "failed"),
    ],
)
def test_a_live_run_after_one_that_failed(
    phase: str, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the summary says is of the command before this one, until this one has ended."""
    monkeypatch.setattr(run_files, "live_status", lambda _: RunStatus.model_validate(LIVE | {"phase": phase}))
    directory = make_run(tmp_path / "run")
    (directory / "summary.json").write_text(json.dumps({"status": "failed", "error": "no such file"}))
    with Held(directory):
        found = read_overview(directory)
    assert found.status == status
    assert found.as_json()["error"] == ("no such file" if status == "failed" else None)


def test_the_last_restart(tmp_path: Path, command: Command) -> None:
    """Why the newest one was needed, and how it went on, is said as the run itself said it; earlier ones are not."""
    directory = make_run(tmp_path / "run")
    summary = json.loads((directory / "summary.json").read_text())
    (directory / "summary.json").write_text(json.dumps(summary | {"restarts": {"failure": 1, "hang": 1}}))
    again = {"event": "restarting", "waitSeconds": 0.0}
    events = [
        {**again, "cause": "hang", "message": "rank 0 stands still"},
        {"event": "running", "attempt": 1, "fromStep": 4, "sinceEndSeconds": 9.0},
        {**again, "cause": "failure", "message": "rank 1 ended with signal SIGKILL"},
        {"event": "running", "attempt": 2, "fromStep": 8, "sinceEndSeconds": 4.649},
        {"time": 5.0, "message": "a damaged line"},
        {"event": "restarting", "cause": "hang"},
    ]
    logs = directory / "logs"
    logs.mkdir(exist_ok=True)
    (logs / "launcher.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    words = " ".join(command("status", str(directory)).out.split())
    assert "restarts failure 1, hang 1" in words
    assert (
        "last restart rank 1 ended with signal SIGKILL (failure); starting again; "
        "recovered: training goes on from step 8, 4.6 s later"
    ) in words
    assert "stands still" not in words


@pytest.mark.parametrize(("phase", "status"), [("starting", "starting"), ("running", "running")])
def test_a_program_that_reports_nothing(
    phase: str, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes no summary; while it runs its leader's word is its status."""
    monkeypatch.setattr(run_files, "live_status", lambda _: RunStatus.model_validate(LIVE | {"phase": phase}))
    (tmp_path / ".lock").touch()
    with Held(tmp_path):
        assert read_overview(tmp_path).status == status


def test_asking_leaves_the_lock_free(tmp_path: Path) -> None:
    """After a look at a run its directory can be taken at once."""
    directory = make_run(tmp_path / "run")
    assert read_overview(directory).status == "dead"
    with Held(directory):
        assert read_overview(directory).status == "running"


@pytest.mark.parametrize("status", ["running", "starting"])
def test_dead_run(status: str, tmp_path: Path, command: Command) -> None:
    """A run that says it goes on while nobody holds its lock is dead, and the person is told what to do."""
    ended = command("status", str(make_run(tmp_path / "run", status=status)))
    assert ended.code == 0
    assert "dead" in ended.out
    assert "the same command goes on" in " ".join(ended.out.split())


@pytest.mark.parametrize("status", ["failed", "dead"])
def test_a_first_run_that_failed_before_its_first_step(status: str, tmp_path: Path, command: Command) -> None:
    """Without a checkpoint nothing goes on from one: the person is told that the same command begins anew."""
    directory = make_run(tmp_path / "run", status=status)
    for file in ("metrics.jsonl", "checkpoints"):
        (directory / file).rename(tmp_path / file)
    words = " ".join(command("status", str(directory)).out.split())
    assert "the same command begins anew" in words
    assert "step 0 of 100" in words
    assert "none yet in" in words
    assert "last checkpoint" not in words


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        ([4, 10], "saved on request; the same command goes on"),
        ([4, 8], "on request; the same command goes on from step 8"),
        ([], "on request; the same command starts it again"),
        (None, "on request; the same command goes on"),
    ],
    ids=["at its last step", "before it", "never", "not known"],
)
def test_a_stopped_run(saved: list[int] | None, words: str) -> None:
    """It is said to be saved only where a checkpoint of its last step is there."""
    assert meaning_of("stopped", step=10, saved=saved) == ("yellow", words)


@pytest.mark.parametrize("status", ["complete", "stopped", "failed", "nonfinite"])
def test_ended_run_keeps_its_word(status: str, tmp_path: Path) -> None:
    """A run that ended is what its summary says, and has no time left to show."""
    found = read_overview(make_run(tmp_path / "run", status=status))
    assert (found.status, found.eta_seconds, found.as_json()["phase"]) == (status, None, None)


def test_human_view(tmp_path: Path, command: Command) -> None:
    """The view for people has the same facts in words."""
    directory = make_run(tmp_path / "run")
    with Held(directory):
        lines = [" ".join(line.split()) for line in command("status", str(directory)).out.splitlines()]
    assert "status running (training)" in lines
    assert "step 10 of 100" in lines
    assert "loss 4.0000" in lines
    assert "speed 1,024 tokens/s, MFU 25.0%" in lines
    assert "time left 0:03:00" in lines
    assert "seconds compile 3.5" in lines


def test_of_many_checkpoints_the_newest(tmp_path: Path, command: Command) -> None:
    """A run of weeks that keeps hundreds for good does not fill the screen with them; --json has them all."""
    directory = make_run(tmp_path / "run")
    for step in range(100, 10_100, 100):
        folder = directory / "checkpoints" / checkpoint_name(step)
        folder.mkdir()
        (folder / "COMMITTED").touch()

    lines = " ".join(command("status", str(directory)).out.split())

    assert "step 10000 is the newest of 90 earlier ones, 8900, 9000, 9100, 9200" in lines
    assert "9900, 10000 in " in lines
    assert len(json.loads(command("status", str(directory), "--json").out)["checkpoints"]) == 102


def test_a_loss_that_is_no_number(tmp_path: Path, command: Command) -> None:
    """It is said so; as JSON, which has no such number, it is null."""
    directory = make_run(tmp_path / "run")
    with (directory / "metrics.jsonl").open("a", encoding="utf-8") as metrics:
        metrics.write('{"step": 11, "loss": null, "tokensPerSecond": 1024.0}\n')
    shown = [" ".join(line.split()) for line in command("status", str(directory)).out.splitlines()]
    assert shown[shown.index("step 11 of 100") + 1] == "loss nan"
    assert json.loads(command("status", str(directory), "--json").out)["loss"] is None


def test_plot(tmp_path: Path, command: Command) -> None:
    """--plot draws the curve below the facts, no wider than the terminal."""
    ended = command("status", str(make_run(tmp_path / "run")), "--plot")
    plot = ended.out.split("initial digest")[1].splitlines()[1:]
    assert "training loss" in ended.out
    assert len(plot) > 10
    assert max(map(len, plot)) <= 80


def test_plot_of_a_long_run(tmp_path: Path, command: Command) -> None:
    """Its curve begins with the first step, though what is said of the run needs the last ones alone."""
    directory = make_run(tmp_path / "run")
    records = ({"step": step, "loss": 700.0 if step == 1 else 3.0} for step in range(1, 100))
    (directory / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    assert "700" in command("status", str(directory), "--plot").out


def test_a_program_that_reports_a_speed_alone(tmp_path: Path, command: Command) -> None:
    """Its speed is shown without an MFU, and instead of a curve it is said that there is no loss."""
    directory = make_run(tmp_path / "run")
    (directory / "metrics.jsonl").write_text('{"step": 1, "tokensPerSecond": 1024.0}\n', encoding="utf-8")
    ended = command("status", str(directory), "--plot")
    assert (ended.code, ended.error) == (0, "")
    lines = [" ".join(line.split()) for line in ended.out.splitlines()]
    assert "speed 1,024 tokens/s" in lines
    assert "no step has a loss to draw" in lines


def test_never_started_run(tmp_path: Path) -> None:
    """A directory with a job file alone, as an import leaves it, is ready."""
    (tmp_path / "job.yaml").write_bytes(QUICKSTART.read_bytes())
    (tmp_path / ".lock").touch()
    found = read_overview(tmp_path)
    assert (found.status, found.step, found.num_steps, found.checkpoints) == ("ready", 0, 100, [])


@pytest.mark.parametrize("made", [True, False], ids=["other", "missing"])
def test_no_run_directory(made: bool, tmp_path: Path, command: Command) -> None:  # noqa: FBT001
    """A directory that holds no run, be it with a job file, is wrong usage; the words say what was expected."""
    directory = tmp_path / "other"
    if made:
        directory.mkdir()
        (directory / "job.yaml").write_bytes(QUICKSTART.read_bytes())
    ended = command("status", str(directory))
    assert (ended.code, ended.out) == (2, "")
    assert "is no run directory" in ended.error
    assert "--dir" in ended.error


def test_damaged_summary(tmp_path: Path, command: Command) -> None:
    """A summary that is not JSON is named."""
    directory = make_run(tmp_path / "run")
    (directory / "summary.json").write_text("{", encoding="utf-8")
    ended = command("status", str(directory))
    assert ended.code == 81
    assert str(directory / "summary.json") in ended.error
    assert "remove it" in ended.error


def test_nothing_in_a_run_directory_steers_the_terminal(tmp_path: Path, command: Command) -> None:
    """What a run has said is shown without it, line by line; as JSON it is there as it was, and steers nothing."""
    directory = make_run(tmp_path / "run", status="failed")
    said = {"status": "failed\x1b[2J", "error": "no space\n  \x1b]0;title\x07left \x9b1m", "digest": "ab\x1b[1m"}
    summary = json.loads((directory / "summary.json").read_text()) | {"entropy": {"byte\x1b[2J": 4.2}}
    (directory / "summary.json").write_text(json.dumps(summary | said), encoding="utf-8")
    shown = command("status", str(directory), "--plot").out
    assert not [character for character in shown if not character.isprintable() and character != "\n"]
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert lines[lines.index("error no space") + 1] == "]0;title left 1m"
    as_json = command("status", str(directory), "--json").out
    assert ("\x1b" in as_json, json.loads(as_json)["error"]) == (False, said["error"])


def test_a_damaged_line_of_metrics(tmp_path: Path, command: Command) -> None:
    """It is named with its number, and hides nothing of the run."""
    directory = make_run(tmp_path / "run")
    with (directory / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 11, "lo\n{"step": 12, "loss": 1.0}\n')
    number = len((directory / "metrics.jsonl").read_bytes().splitlines()) - 1
    ended = command("status", str(directory))
    assert ended.code == 0
    assert f"line {number} cannot be read as JSON" in " ".join(ended.out.split())
    assert json.loads(command("status", str(directory), "--json").out)["step"] == 12


def test_checkpoints_in_a_bucket(tmp_path: Path) -> None:
    """Committed checkpoints below a URL are found as those in a folder are."""
    files = fsspec.filesystem("memory")
    for step in (20, 40):
        files.pipe_file(f"/bucket/run/{checkpoint_name(step)}/COMMITTED", b"{}")
    files.pipe_file(f"/bucket/run/{checkpoint_name(60)}/manifest.json", b"{}")
    found = read_overview(make_run(tmp_path / "run", "training.checkpoint.path=memory://bucket/run"))
    assert found.checkpoints == [20, 40]


def test_bucket_out_of_reach(tmp_path: Path, command: Command) -> None:
    """A bucket that cannot be listed is said to be so, with the cause; the rest of the status is there."""
    directory = make_run(tmp_path / "run", "training.checkpoint.path=nowhere://bucket/run")
    ended = command("status", str(directory))
    assert ended.code == 0
    words = " ".join(ended.out.split())
    assert "could not be listed" in words
    assert "step 10 of 100" in words


@pytest.mark.parametrize("closed", ["", ".lock", "summary.json"])
def test_a_run_directory_of_another_person(command: Command, closed: str) -> None:
    """Where this person may not read, they are told so and where, by the exit code of wrong usage."""
    own = os.geteuid()
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        directory = make_run(Path(folder) / "run")
        (directory / closed).chmod(0)
        os.seteuid(own or _NOBODY)  # root may read everything
        try:
            ended = command("status", str(directory))
        finally:
            os.seteuid(own)
            (directory / closed).chmod(0o700)
    assert (ended.code, ended.out) == (2, "")
    assert f"{directory / closed} cannot be read (Permission denied)" in ended.error
