"""shardwise.protocol.pods: what a pod leaves fits where the kubelet keeps it, and is read back as it was."""

import json

import pytest

from shardwise.protocol import pods
from shardwise.protocol.contract import Cause
from shardwise.protocol.message import MAX_INT32
from shardwise.protocol.pods import TERMINATION_RECORD_BYTES, TerminationRecord, Verdict
from shardwise.protocol.run_status import GOODPUT_CATEGORIES

RECORD = TerminationRecord(
    code=1,
    host=3,
    attempt=2,
    step=700,
    steps=1000,
    loss="2.5",
    checkpoint_step=650,
    digest=None,
    restarts={"failure": 3},
    goodput={"step": 12.5},
    cause="failure",
    rank=3,
    exit="signal SIGKILL",
    message="rank 3 ended with signal SIGKILL",
    tail="the end",
)
VERDICT = Verdict(
    fits=False,
    needed_bytes=44_238_000_000,
    limit_bytes=34_144_000_000,
    change="training.model.remat=full: 22.0 GiB of 31.8 GiB",
    stand_in=False,
)


def test_round_trip() -> None:
    """What was written is read."""
    assert TerminationRecord.loads(RECORD.dumps()) == RECORD


@pytest.mark.parametrize("letter", ["a", "\N{SNOWMAN}", "\N{SLEEPING FACE}", "\0"])
def test_too_long(letter: str) -> None:
    """Of a long log only the end is kept, of a long message the beginning, and everything else whole."""
    text = "first\n" + letter * 20_000 + "\nlast"
    short = TerminationRecord.loads(RECORD.model_copy(update={"tail": text}).dumps())
    assert short is not None
    assert short.tail.endswith(f"{letter}\nlast")
    assert short.model_copy(update={"tail": RECORD.tail}) == RECORD

    line = RECORD.model_copy(update={"tail": text, "message": text}).dumps()
    short = TerminationRecord.loads(line)
    assert len(line.encode()) <= TERMINATION_RECORD_BYTES
    assert short is not None
    assert short.message.startswith(f"first\n{letter}")
    assert short.model_copy(update={"tail": RECORD.tail, "message": RECORD.message}) == RECORD


@pytest.mark.parametrize("letter", ["a", "\N{BOX DRAWINGS LIGHT VERTICAL}", "\N{SLEEPING FACE}"])
def test_the_longest_run_leaves_room_for_words(letter: str) -> None:
    """The kubelet divides 12 KiB by the containers of a pod: a record is whole as one of six, however long."""
    counted = RECORD.model_copy(
        update={
            **dict.fromkeys(("attempt", "step", "steps", "checkpoint_step", "rank"), MAX_INT32),
            **dict.fromkeys(("loss", "held_out_loss"), "-2.2250738585072014e-308"),
            "restarts": dict.fromkeys(map(str, Cause), MAX_INT32),
            "goodput": dict.fromkeys(GOODPUT_CATEGORIES, 1e9 + 0.123),
            "digest": "d" * 64,
        }
    )

    line = counted.model_copy(update={"tail": f"{letter * 2000} the end", "message": "rank 3 ended"}).dumps()
    read = TerminationRecord.loads(line)

    assert len(line.encode()) <= 12 * 1024 // 6
    assert read is not None
    assert read.model_copy(update={"tail": ""}) == counted.model_copy(update={"tail": "", "message": "rank 3 ended"})
    assert read.tail.endswith(f"{letter} the end")


def test_a_record_without_words_is_written_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all else leaves no room for words, it is told without them."""
    monkeypatch.setattr(pods, "TERMINATION_RECORD_BYTES", 1024)
    full = RECORD.model_copy(update={"restarts": {f"{number:063}": 1 for number in range(16)}})

    assert TerminationRecord.loads(full.dumps()) == full.model_copy(update={"message": "", "tail": ""})


def test_a_name_that_is_no_utf_8() -> None:
    """Its bytes are told as numbers: JSON has no way to write them, and a record that cannot be read is none."""
    read = TerminationRecord.loads(TerminationRecord(code=81, host=0, message="caf\udce9.txt is not there").dumps())

    assert read is not None
    assert (read.code, read.message) == (81, r"caf\udce9.txt is not there")


def test_a_newer_release() -> None:
    """What it has added is left out; the rest is believed."""
    newer = json.loads(RECORD.dumps()) | {"weather": {"sun": [1]}}

    assert TerminationRecord.loads(json.dumps(newer)) == RECORD


@pytest.mark.parametrize(
    "change", [{"code": "ok"}, {"step": 2**31}, {"restarts": [1]}, {"goodput": {"step": "x"}}, {"loss": "x"}]
)
def test_another_shape(change: dict[str, object]) -> None:
    """Whoever runs in a pod writes what it likes."""
    assert TerminationRecord.loads(json.dumps(json.loads(RECORD.dumps()) | change)) is None


@pytest.mark.parametrize("text", ["", "Killed", "[]", "3", '{"code": 0}', "[" * 4096])
def test_no_record(text: str) -> None:
    """What a container that was killed leaves is no record."""
    assert TerminationRecord.loads(text) is None


def test_a_verdict_comes_back() -> None:
    """What a plan wrote is read; the last lines of a log are no verdict."""
    assert Verdict.loads(VERDICT.dumps()) == VERDICT
    assert [Verdict.loads(text) for text in ("", "Killed", "[]", "3", '{"fits": true}', RECORD.dumps())] == [None] * 6


@pytest.mark.parametrize("figure", ["neededBytes", "limitBytes"])
@pytest.mark.parametrize("value", [-1, 2**63 + 1, pytest.param(10**400, id="no float")])
def test_a_verdict_with_a_figure_that_nothing_has_is_none(figure: str, value: int) -> None:
    """Whoever runs in a pod writes what it likes, and no figure of it may end a pass of the operator."""
    assert Verdict.loads(json.dumps(json.loads(VERDICT.dumps()) | {figure: value})) is None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "peak 41.2 GiB a device of 31.8 GiB; what makes it fit: training.model.remat=full: 22.0 GiB of 31.8 GiB"),
        ({"change": None}, "peak 41.2 GiB a device of 31.8 GiB"),
        ({"change": None, "needed_bytes": 0}, "the compiler finds no room for it in 31.8 GiB"),
        ({"change": None, "limit_bytes": None}, "peak 41.2 GiB a device; the class does not say how much there is"),
        (
            {"change": None, "stand_in": True},
            "peak 41.2 GiB a device of 31.8 GiB; judged by the compiler for CPUs, as the image has none for the class",
        ),
    ],
)
def test_a_verdict_in_words(changed: dict[str, object], words: str) -> None:
    """The figures, the change that helps, and whose judgement it is."""
    assert VERDICT.model_copy(update=changed).words == words
