"""Where the time went: the categories add up to the wall time, whatever the trainers report."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.launcher.leader.goodput import UNDER_WAY, Ledger, attempt, with_lost
from shardwise.protocol.contract import Phase
from shardwise.protocol.run_status import GOODPUT_CATEGORIES

SECONDS = {"imports": 1.0, Phase.RESTORE: 2.0, Phase.COMPILE: 3.0, Phase.STEP: 20.0, "wait": 4.0, Phase.SAVE: 5.0}
_some = st.floats(min_value=0, max_value=1e6)


@pytest.mark.parametrize(
    ("recovering", "expected"),
    [
        (False, {"start": 1, "restore": 2, "compile": 3, "step": 16, "wait": 4, "save": 5, "other": 9}),
        (True, {"recovery": 6, "step": 16, "wait": 4, "save": 5, "other": 9}),
    ],
)
def test_attempt(recovering: bool, expected: dict[str, float]) -> None:  # noqa: FBT001  a column of a table
    """Waits are taken out of the steps; after a bad end the time up to the first step is recovery."""
    split = attempt(40.0, SECONDS, recovering=recovering)
    assert {name: seconds for name, seconds in split.items() if seconds} == expected


@given(elapsed=_some, seconds=st.dictionaries(st.sampled_from([*Phase, "wait", "imports"]), _some), bad=st.booleans())
def test_adds_up(elapsed: float, seconds: dict[str, float], bad: bool) -> None:  # noqa: FBT001  drawn
    """No time is counted twice or left out, even if a standby had worked before it got its orders."""
    split = attempt(elapsed, seconds, recovering=bad)
    assert tuple(split) == GOODPUT_CATEGORIES
    assert sum(split.values()) == pytest.approx(elapsed)
    assert min(split.values()) >= 0


def test_lost_steps() -> None:
    """The time of repeated steps counts as lost, up to the time of all steps."""
    split = attempt(40.0, SECONDS, recovering=False)
    assert with_lost(split, 6.0)["step"] == 10.0
    assert with_lost(split, 6.0)["lostSteps"] == 6.0
    assert with_lost(split, 100.0)["step"] == 0.0


def test_before_the_first_report() -> None:
    """An attempt that nothing is known of yet is starting, or recovering."""
    for recovering, category in ((False, "start"), (True, "recovery")):
        split = attempt(10.0, {}, recovering=recovering)
        assert {name: seconds for name, seconds in split.items() if seconds} == {category: 10.0}


@pytest.mark.parametrize(("recovering", "category"), [(False, "start"), (True, "recovery")])
def test_a_program_that_reports_no_phases(recovering: bool, category: str) -> None:  # noqa: FBT001  a column of a table
    """Only the time before it counted as under way is its start, or a recovery."""
    split = attempt(40.0, {UNDER_WAY: 25.0}, recovering=recovering)
    assert {name: seconds for name, seconds in split.items() if seconds} == {category: 15.0, "other": 25.0}


def test_the_time_after_a_good_end() -> None:
    """Belongs to no start."""
    ledger = Ledger({}, 100.0)
    ledger.began(103.0)
    ledger.ended(113.0, {Phase.STEP: 10.0}, well=True)

    total = ledger.total(120.0, {})
    assert {name: seconds for name, seconds in total.items() if seconds} == {"start": 3.0, "step": 10.0, "other": 7.0}


def test_ledger() -> None:
    """A start, an attempt, a recovery, an attempt: the sum is the time since the command began."""
    ledger = Ledger({}, 100.0)
    ledger.began(103.0)
    ledger.ended(113.0, {Phase.STEP: 10.0}, well=False)
    ledger.began(114.0)
    total = ledger.total(120.0, {Phase.RESTORE: 2.0, Phase.STEP: 3.0})
    assert {name: seconds for name, seconds in total.items() if seconds} == {
        "start": 3.0,
        "step": 13.0,
        "recovery": 3.0,
        "other": 1.0,
    }


def test_successor() -> None:
    """A successor that continues a lost leader's ledger counts the time between them as recovery."""
    total = Ledger({"step": 7.0}, 50.0).total(52.0, {})
    assert total["recovery"] == 2.0
    assert total["step"] == 7.0
