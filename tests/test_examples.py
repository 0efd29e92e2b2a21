"""What a newcomer reads and runs first: the job files are right, and README and docs say what is there."""

import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import typer.main
import yaml
from typer.testing import CliRunner

from shardwise.cli.app import app
from shardwise.job.load import dump, load
from shardwise.job.resolve import resolve
from shardwise.job.spec import Recovery
from shardwise.launcher.leader.causes import Ending
from shardwise.protocol.contract import (
    CHECKPOINTS,
    EVENTS,
    IDENTITY,
    JOB_FILE,
    LEADER_RECORD,
    LOCK,
    LOGS,
    METRICS,
    PAGE,
    PLOT,
    PROFILE,
    PROGRAMS,
    RUN_ID,
    STATUS,
    SUMMARY,
    Cause,
    ExitCode,
)
from shardwise.protocol.run_status import GOODPUT_CATEGORIES
from shardwise.protocol.takeover import ATTEMPT_FILE

Golden = Callable[[str, str], None]

ROOT = Path(__file__).parent.parent
JOBS = sorted((ROOT / "examples").glob("*.yaml"))
CLUSTER_JOBS = sorted((ROOT / "examples" / "kubernetes").glob("*.yaml"))
README = ROOT / "README.md"
TEXTS = [README, *sorted((ROOT / "docs").glob("*.md"))]
# Texts beside what they are about, and those for who works on the code.
ASIDE = [ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/decisions/*.md")), ROOT / "images" / "README.md"]
ASIDE += [ROOT / "tests" / "cluster" / "README.md", *sorted(ROOT.glob("charts/*/README.md"))]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PATH = re.compile(
    r"(?<![\w/.-])(?:trainer|operator|charts|images|examples|docs|tests|benchmarks|requirements)/[\w./-]*\w/?"
)
# A link into the tree. An admission message may hold a regular expression, which looks nearly like one.
_LINK = re.compile(r"\]\(([\w./-]+)(?:#[\w-]+)?\)")

named = pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.name)


@pytest.mark.parametrize("job", JOBS, ids=lambda path: path.stem)
def test_job_files(job: Path, golden: Golden) -> None:
    """`shardwise check` passes each job file of examples/, and a change of what one resolves to is seen in review."""
    result = CliRunner().invoke(app, ["check", str(job)])

    assert (result.exit_code, result.output[:3]) == (0, "ok\n")
    golden(f"resolved-{job.name}", dump(resolve(load(job))))


def test_jobs_are_found() -> None:
    """The listing of examples/ finds the job that the README shows and the demo's."""
    assert {"quickstart.yaml", "python.yaml"} <= {job.name for job in JOBS}


def test_readme_shows_the_quickstart() -> None:
    """The job in the README is the file, to the letter."""
    shown = [body for language, body in _FENCE.findall(README.read_text(encoding="utf-8")) if language == "yaml"]

    assert [(ROOT / "examples" / "quickstart.yaml").read_text(encoding="utf-8")] == shown


@named
def test_paths_exist(text: Path) -> None:
    """Each path that is named, and each target of a link, is there."""
    written = text.read_text(encoding="utf-8")
    paths = [ROOT / path for path in _PATH.findall(_without_links(written))]
    links = [text.parent / link for link in _LINK.findall(written)]

    assert paths or links or "```{include}" in written
    assert [path for path in [*paths, *links] if not path.exists()] == []


@pytest.mark.parametrize("text", ASIDE, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_links_go_somewhere(text: Path) -> None:
    """Each target of a link is there, also in texts that name paths of other places."""
    links = [text.parent / link for link in _LINK.findall(text.read_text(encoding="utf-8"))]

    assert [link for link in links if not link.exists()] == []


@pytest.mark.parametrize("text", [*TEXTS, *JOBS, *CLUSTER_JOBS], ids=lambda path: path.name)
def test_commands_parse(text: Path) -> None:
    """Each `shardwise` command that is shown has only arguments and options that the command takes."""
    group = typer.main.get_command(app)
    for words in _shown(text, "shardwise"):
        with group.make_context("shardwise", words[:1]) as context:
            command = group.get_command(context, words[0])  # type: ignore[attr-defined]

            assert command, words
            command.make_context(words[0], words[1:]).close()


@named
def test_make_targets_exist(text: Path) -> None:
    """Each `make` target that is shown is in the Makefile."""
    targets = set(re.findall(r"^\.PHONY: (\S+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))

    assert {words[0] for words in _shown(text, "make")} <= targets


def test_readme_has_every_command() -> None:
    """The table of commands lists what `shardwise --help` lists."""
    listed = re.findall(r"^\| `shardwise (\w+)", README.read_text(encoding="utf-8"), re.MULTILINE)

    assert sorted(typer.main.get_command(app).commands) == sorted(listed)  # type: ignore[attr-defined]


def test_every_job_file_is_listed() -> None:
    """docs/job-file.md says what each job file of examples/ shows, docs/kubernetes.md what those for clusters do."""
    listed = re.findall(r"^\| \[examples/([\w.-]+)\]", _read("docs/job-file.md"), re.MULTILINE)
    for_clusters = re.findall(
        r"^\| \[[\w-]+\]\(../examples/kubernetes/([\w.-]+)\)", _read("docs/kubernetes.md"), re.MULTILINE
    )

    assert [job.name for job in JOBS] == sorted(listed)
    assert [job.name for job in CLUSTER_JOBS] == sorted(for_clusters)


def test_run_directory_is_described() -> None:
    """docs/run-directory.md has every file of a run directory, and every exit code."""
    written = _read("docs/run-directory.md")
    folders = (f"{CHECKPOINTS}/", f"{LOGS}/", f"{PROFILE}/", f"{PROGRAMS}/")
    names = (JOB_FILE, METRICS, PLOT, PAGE, SUMMARY, LOCK, ATTEMPT_FILE, RUN_ID, *folders)
    tree = [line.split()[0] for line in _FENCE.findall(written)[0][1].splitlines()]
    codes = re.findall(r"^\| (\d+) \|", written, re.MULTILINE)

    assert sorted(names) == sorted(tree)
    assert {EVENTS, LEADER_RECORD, STATUS, IDENTITY} <= set(re.findall(r"^\| `([^`]+)` \|", written, re.MULTILINE))
    assert [int(code) for code in ExitCode] == [int(code) for code in codes]


def test_causes_are_described() -> None:
    """docs/many-hosts.md has every cause with its budget and the command's exit code, and every category of time."""
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in _read("docs/many-hosts.md").splitlines()]
    causes = {row[0]: row[2:] for row in rows if len(row) == 4}
    restarts = Recovery().restarts

    assert set(Cause) <= set(causes)
    for cause in set(Cause) - {Cause.BAD_INPUT}:
        code = Ending(cause=cause, rank=None, exit=None, message="").exit_code
        assert causes[cause] == [f"{cause}: {restarts.of(cause)}", str(int(code))]
    assert set(GOODPUT_CATEGORIES) <= {name.strip(" `") for row in rows if len(row) == 2 for name in row[0].split(",")}


def test_recovery_is_described() -> None:
    """docs/job-file.md shows the recovery section with every default."""
    shown = [yaml.safe_load(body) for language, body in _FENCE.findall(_read("docs/job-file.md")) if language == "yaml"]
    defaults = json.loads(Recovery().model_dump_json(by_alias=True, exclude_none=True))

    assert [job["spec"]["recovery"] for job in shown if "recovery" in job.get("spec", {})] == [defaults]


def test_demo_begins_anew(demo: ModuleType, tmp_path: Path) -> None:
    """The demo removes what an earlier demo left, and leaves a file that is not its own."""
    directory = tmp_path / "demo"
    demo._empty(directory)
    theirs = ("metrics.jsonl", "loss.png", ".attempt", "logs/leader.json", "checkpoints/step-00000001/COMMITTED")
    for name in (*theirs, "mine.txt"):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).touch()

    demo._empty(directory)

    assert sorted(path.name for path in directory.iterdir()) == sorted([LOCK, demo.MARK, "mine.txt"])


def test_demo_refuses_a_directory_of_others(demo: ModuleType, tmp_path: Path) -> None:
    """A directory that no demo made is refused, and nothing in it is touched."""
    kept = tmp_path / "metrics.jsonl"
    kept.write_text("{}\n", encoding="utf-8")

    with pytest.raises(demo.DemoError, match="no demo made"):
        demo._empty(tmp_path)
    assert list(tmp_path.iterdir()) == [kept]


def test_demo_fails_where_it_cannot_go_on(
    demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A part that fails ends the demo with 1 and the reason."""
    monkeypatch.setattr(sys, "argv", ["demo.py", "--dir", str(tmp_path / "demo"), "--text", str(tmp_path / "none.txt")])

    code = demo.main()

    assert code == ExitCode.FAILURE
    assert "no file matches" in capsys.readouterr().out


def test_demo_recovery_table(demo: ModuleType) -> None:
    """The parts of a recovery add up to its time; what a process did before its orders is no part of it."""
    events = [
        {"event": "attempt", "time": 1.0, "attempt": 0},
        {"event": "running", "time": 2.0, "attempt": 0, "fromStep": 0},
        {"event": "ended", "time": 10.25, "attempt": 0, "cause": "failure", "rank": 1, "exit": "signal SIGKILL"},
        {"event": "attempt", "time": 10.5, "attempt": 1},
        {"event": "running", "time": 14.0, "attempt": 1, "fromStep": 40},
    ]
    phases = {"interpreter": 1.0, "imports": 7.0, "join": 0.5, "restore": 0.25, "compile": 0.75, "step": 9.0}

    table = demo._recovery_table(10.0, events, phases)
    written = [cell for cell in table.columns[1].cells if isinstance(cell, str)]
    *parts, total = [float(cell) for cell in written[2:]]

    assert written[:2] == ["failure, 1, signal SIGKILL", "40"]
    assert (sum(parts), total) == (4.0, 4.0)


@pytest.mark.parametrize(
    ("code", "restarts", "words"),
    [(ExitCode.OK, {"failure": 1}, "expected 80"), (ExitCode.SAVED, {}, "expected one for the trainer")],
)
def test_demo_fails_where_nothing_was_survived(
    demo: ModuleType, tmp_path: Path, code: ExitCode, restarts: dict[str, int], words: str
) -> None:
    """A run that was not stopped and saved, or that did not count the kill, fails the demo."""
    (tmp_path / SUMMARY).write_text(json.dumps({"restarts": restarts, "steps": 80}), encoding="utf-8")

    with pytest.raises(demo.DemoError, match=words):
        demo._stopped(code, tmp_path)


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    """The demo as a module; importing it starts nothing."""
    spec = importlib.util.spec_from_file_location("demo", ROOT / "examples" / "demo.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _shown(text: Path, program: str) -> Iterator[list[str]]:
    """The words after `program` of each command line in a text's plain code blocks, or in a job file's comments."""
    written = text.read_text(encoding="utf-8")
    if text.suffix == ".yaml":
        lines = [line.lstrip("# ") for line in written.splitlines() if line.startswith("#")]
    else:
        lines = [line for language, body in _FENCE.findall(written) if not language for line in body.splitlines()]
    for line in lines:
        if line.startswith(f"{program} "):
            yield shlex.split(line, comments=True)[1:]


def _without_links(written: str) -> str:
    return _LINK.sub("]", written)


def _read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_the_status_that_is_shown_is_of_the_example() -> None:
    """What docs/many-hosts.md shows of a run has the name and the steps of examples/two-hosts.yaml, which made it."""
    job = load(ROOT / "examples" / "two-hosts.yaml")
    shown = _read("docs/many-hosts.md").partition("$ shardwise status runs/two\n")[2].partition("```")[0]

    assert f"run             {job.metadata.name} in runs/two\n" in shown
    assert re.search(rf"^step +\d+ of {job.spec.training.steps}$", shown, re.MULTILINE)
    assert set(re.findall(r'shardwise_\w+\{.*?job="(.*?)"', _read("docs/many-hosts.md"))) == {job.metadata.name}
