"""The fault table: that its faults are put and measured, on a few of them, and that its page has a row for each.

Only the measuring is tested here, on a few faults; that runs survive them is shown by the tests of each level.
"""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from benchmarks.faults import __main__ as chaos  # noqa: E402  the folder is a script's, found by path
from benchmarks.faults import page  # noqa: E402
from benchmarks.faults.ground import ground  # noqa: E402
from benchmarks.faults.outcome import EQUAL, NotShownError, Outcome, Row  # noqa: E402
from benchmarks.faults.rows import NOT_SHOWN, ROWS  # noqa: E402
from benchmarks.faults.watch import Told, way_back  # noqa: E402

MACHINE = {"date": "2026-01-01", "cores": 2, "processor": "any", "memory_gib": 1, "load": 0, "python": "3", "jax": "0"}
OUTCOME = Outcome(
    detected_seconds=0.25,
    cause="failure",
    charged="failure 1",
    steps_lost=2,
    next_step_seconds={"noticed": 0.25, "first step": 1.0},
    equal=EQUAL,
    note="a | b",
)


@pytest.fixture(scope="module")
def _closed_ground() -> Iterator[None]:
    yield
    ground().close()
    ground.cache_clear()


def row(fault: str, *phases: str, raises: Exception | None = None) -> Row:
    """Return a row that measures nothing."""

    def measure(_: str) -> Outcome:
        if raises:
            raise raises
        return OUTCOME

    return Row(place="local", fault=fault, phases=phases, measure=measure)


@pytest.mark.usefixtures("_closed_ground")
@pytest.mark.parametrize(
    ("fault", "phase", "charged", "steps_lost"),
    [
        ("out of memory", "step", "outOfMemory 1", 2),
        pytest.param("late rank", "save before commit", "nothing", 0, marks=pytest.mark.long),
    ],
)
def test_faults_are_put_and_measured(fault: str, phase: str, charged: str, steps_lost: int) -> None:
    """Each costs what it must, is told soon after it, and leaves no trace in the state at the end."""
    [measured] = [one for one in ROWS if (one.place, one.fault) == ("local", fault)]
    outcome = measured.measure(phase)

    assert (outcome.charged, outcome.equal) == (charged, EQUAL)
    assert outcome.steps_lost >= steps_lost
    assert (outcome.detected_seconds is None) == (charged == "nothing")
    assert sum(outcome.next_step_seconds.values()) >= (outcome.detected_seconds or 0.0)


def test_the_operator_of_a_fault_is_the_command() -> None:
    """With other agents in it, which are found where the command takes them from."""
    stand_in = (sys.executable, "-m", "benchmarks.faults.stand_in_operator", "run", "--help")
    ended = subprocess.run(stand_in, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "--lease-name" in ended.stdout


@pytest.mark.long
def test_faults_of_the_control_plane_are_put_and_measured() -> None:
    """On a real API server, to the operator's process; a job that is on its way comes to its end."""
    [measured] = [one for one in ROWS if (one.place, one.fault) == ("control plane", "events twice")]
    outcomes = [measured.measure(phase) for phase in measured.phases]

    assert [one.charged for one in outcomes] == ["nothing", "nothing beside eviction 1", "nothing"]
    assert all(one.detected_seconds is not None for one in outcomes)


def test_the_way_back_adds_up() -> None:
    """What the launcher and rank 0 say of it is cut out of the time to the next step; the rest is the first step's."""

    def told(at: float, event: str | None, **more: Any) -> Told:
        file = "metrics.jsonl" if event in (None, "restored") else "launcher.jsonl"
        return Told(at=at, file=file, record={"event": event, **more})

    after = [
        told(10.5, None, step=7),
        told(11.0, "ended"),
        told(13.0, "attempt", attempt=1),
        told(19.0, "restored", attempt=1),
        told(20.0, None, step=5),
    ]
    phases = {"imports": 9.0, "join": 1.0, "data": 0.01, "compile": 2.0, "step": 99.0}

    whole = way_back(after, 10.0, {"attempts": 2, "phases": phases})
    assert list(whole.items()) == [
        ("noticed", 1.0),
        ("restart", 2.0),
        ("join", 1.0),
        ("compile", 2.0),
        ("first step", 4.0),
    ]
    assert way_back(after, 10.0, {"attempts": 3, "phases": phases}) == {
        "noticed": 1.0,
        "restart": 2.0,
        "first step": 7.0,
    }
    assert way_back(after[:1], 10.0, {}) == {"step": 0.5}


def test_a_broken_promise_ends_it_badly_after_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All rows are measured; what failed is kept and told, and measured again where only what is missing is asked."""
    broken = row("one", "start", raises=RuntimeError("the digest is another"))
    monkeypatch.setattr(chaos, "ROWS", (broken, row("two", "start", "step")))
    monkeypatch.setattr(chaos, "_RESULTS", tmp_path / "runs" / "chaos.json")

    with pytest.raises(SystemExit, match="1 of 3 faults did not end as they must"):
        chaos.chaos()
    said = capsys.readouterr().out
    assert "one, start" in said
    assert "two, step" in said

    monkeypatch.setattr(chaos, "ROWS", (row("one", "start"), row("two", "start", "step")))
    chaos.chaos(missing=True)
    assert "two, step" not in capsys.readouterr().out
    with pytest.raises(chaos.ChosenError):
        chaos.chaos(only=["three"])


def test_a_row_says_what_was_measured() -> None:
    """A cell is never empty and never ends its table; what failed, and what could not be shown, is in the note."""
    rows = (row("good", "step"), row("bad", "step"), row("out of reach", "step"), row("not measured", "step"))
    results: dict[str, Any] = {
        "local: good, step": {"outcome": vars(OUTCOME)},
        "local: bad, step": {"failed": "charged twice"},
        "local: out of reach, step": {"notShown": str(NotShownError("it takes root"))},
    }
    text = page.text(
        rows, {key: {**one, "machine": MACHINE, "seconds": 60.0} for key, one in results.items()}, ["rain"]
    )

    assert "| good | step | 0.25 | failure | failure 1 | 2 | 1.2 = noticed 0.2 + first step 1.0 | yes | a / b |" in text
    assert "| bad | step | - | - | - | - | - | **no** | **failed**: charged twice |" in text
    assert "| out of reach | step | - | - | - | - | - | - | could not be shown: it takes root |" in text
    assert "not measured" not in text
    assert "3 runs, 3 minutes, on 2026-01-01: 2 cores (any)" in text
    assert "- rain" in text


def test_a_row_that_is_not_measured_here_keeps_its_line() -> None:
    """A part that is measured again takes its rows' places; the others stay, with how they were measured."""
    rows = (row("one", "start", "step"), row("two", "step"), row("three", "step"))
    result = {"outcome": vars(OUTCOME), "machine": MACHINE, "seconds": 60.0}
    first = page.text(rows, {page.key(rows[0], "start"): result, page.key(rows[0], "step"): result}, ["rain"])
    other = {**result, "outcome": vars(OUTCOME) | {"steps_lost": 7}, "machine": MACHINE | {"cores": 64}}
    again = page.text(rows, {page.key(rows[0], "step"): other, page.key(rows[1], "step"): other}, ["rain"], first)

    lines = {line[: line.index("|", 8)]: line for line in again.splitlines() if line.startswith("| ")}
    assert " 2 | 1.2" in lines["| one | start "]
    assert " 7 | 1.2" in lines["| one | step "]
    assert " 7 | 1.2" in lines["| two | step "]
    assert "three" not in again
    assert "\n2 runs, 2 minutes, on 2026-01-01: 64 cores" in again
    assert "\n1 rows are of earlier runs: 2 runs, 2 minutes, on 2026-01-01: 2 cores" in again
    assert page.measured(again, rows) == {"local: one, start", "local: one, step", "local: two, step"}

    more = {page.key(row, phase): other for row in rows for phase in row.phases if phase == "step"}
    third = page.text(rows, more, ["rain"], again)
    assert "\n3 runs, 3 minutes, on 2026-01-01: 64 cores" in third
    assert third.count("64 cores") == 1, "the runs of now are not those of before"
    assert "\n1 rows are of earlier runs: 2 runs, 2 minutes, on 2026-01-01: 2 cores" in third
    failed = {"failed": "charged twice", "machine": MACHINE, "seconds": 60.0}
    assert page.measured(page.text(rows, {page.key(rows[1], "step"): failed}, []), rows) == set()
    assert page.text(rows, {}, ["rain"], page.DOCUMENT.read_text()).count("\n| ") == 0


def test_every_fault_and_phase_is_there_once() -> None:
    """A result is kept by place, fault and phase."""
    counted = Counter(page.key(one, phase) for one in ROWS for phase in one.phases)
    assert [key for key, count in counted.items() if count > 1] == []


def test_the_page_has_a_row_for_each_and_no_cell_empty() -> None:
    """A new row must be measured before it is kept."""
    text = page.DOCUMENT.read_text()
    tables = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    found = Counter((cells[0], cells[1]) for cells in tables if cells[0] not in ("---", page.COLUMNS[0]))

    assert found == Counter((one.fault, phase) for one in ROWS for phase in one.phases)
    assert all(len(cells) == len(page.COLUMNS) and all(cell.strip() for cell in cells) for cells in tables)
    assert all(f"- {one}" in text for one in NOT_SHOWN)
