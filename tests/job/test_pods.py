"""shardwise.job.pods: a pod's last record fits where the kubelet keeps it, and is read back as it was."""

from dataclasses import replace

import pytest

from shardwise.job.pods import LAST_RECORD_BYTES, LastRecord

RECORD = LastRecord(
    code=1,
    host=3,
    incarnation=2,
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


def test_round_trip() -> None:
    """What was written is read."""
    assert LastRecord.loads(RECORD.dumps()) == RECORD


@pytest.mark.parametrize("letter", ["a", "\N{SNOWMAN}", "\N{SLEEPING FACE}", "\0"])
def test_too_long(letter: str) -> None:
    """Of a long log only the end is kept, of a long message the beginning, and everything else whole."""
    text = "first\n" + letter * 20_000 + "\nlast"
    short = LastRecord.loads(replace(RECORD, tail=text).dumps())
    assert short is not None
    assert short.tail.endswith(f"{letter}\nlast")
    assert replace(short, tail=RECORD.tail) == RECORD

    line = replace(RECORD, tail=text, message=text).dumps()
    short = LastRecord.loads(line)
    assert len(line.encode()) <= LAST_RECORD_BYTES
    assert short is not None
    assert short.message.startswith(f"first\n{letter}")
    assert replace(short, tail=RECORD.tail, message=RECORD.message) == RECORD


@pytest.mark.parametrize("text", ["", "Killed", "[]", "3", '{"code": 0}'])
def test_no_record(text: str) -> None:
    """What a container that was killed leaves is no record."""
    assert LastRecord.loads(text) is None
