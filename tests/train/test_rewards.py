"""Rewards: an answer that a pattern finds, and a program that is asked, in every way in which it can fail."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from shardwise.job.spec.reinforcement import Reward
from shardwise.launcher.system.processes import readable, send_signal
from shardwise.protocol.errors import DataError, RewardError
from shardwise.train.rewards import Answer, Program, Rewards, rewards_of

LINES = [{"prompt": "a", "answer": "1", "completion": "x" * size} for size in (0, 3, 5)]
GOOD = "import json, sys\nfor line in sys.stdin: print(len(json.loads(line)['completion']) / 2, flush=True)"


def program(code: str, within: str = "20s") -> Program:
    """A program of Python."""
    found = rewards_of(Reward.model_validate({"command": [sys.executable, "-c", code], "within": within}))
    assert isinstance(found, Program)
    return found


def asked(rewards: Rewards, lines: list[dict[str, Any]] = LINES) -> list[float]:
    """What it says of lines; whatever comes of it, it is ended."""
    try:
        return worth(rewards, lines)
    finally:
        rewards.close()


def worth(rewards: Rewards, lines: list[dict[str, Any]], beat: Callable[[], None] = lambda: None) -> list[float]:
    """What it says of lines."""
    for line in lines:
        rewards.ask(line)
    return rewards.answers(beat)


@pytest.mark.parametrize(
    ("answer", "completion", "expected"),
    [
        ("12", "so #### 12", 1.0),
        (12, "#### 12 ", 1.0),
        ("12", "#### 3, no, #### 12", 1.0),
        ("12", "#### 12, no, #### 3", 0.0),
        ("12", "12", 0.0),
        ("12", "", 0.0),
        ("12", "#### 123", 0.0),
    ],
)
def test_the_last_answer_counts(answer: object, completion: str, expected: float) -> None:
    """It is what the group of the last match has, as a text, without the space around it."""
    line = {"answer": answer, "completion": completion}
    assert worth(Answer(re.compile(r"#### *([0-9]+)"), "answer"), [line]) == [expected]


def test_an_answer_must_be_there() -> None:
    """A line without the right answer is refused, with the fields that it has."""
    with pytest.raises(DataError, match=r"has 'null' in 'result'; expected the right answer.*its fields: answer, comp"):
        worth(Answer(re.compile("(a)"), "result"), [{"answer": 1, "completion": "a"}])


def test_a_program_says_what_each_is_worth() -> None:
    """It is started once, gets whole lines, and answers step after step."""
    rewards = program(GOOD)
    assert worth(rewards, LINES) == [0.0, 1.5, 2.5]
    assert asked(rewards, LINES[1:]) == [1.5, 2.5]


def test_neither_side_waits_for_the_other() -> None:
    """More than both pipes hold goes in and comes out, of a program that answers line by line or at the end alone."""
    lines: list[dict[str, Any]] = [{"completion": "x" * 4000} for _ in range(300)]
    assert asked(program(GOOD), lines) == [2000.0] * 300
    last = "import sys\nlines = [next(sys.stdin) for _ in range(300)]\nprint('\\n'.join(['0.5' + ' ' * 999] * 300))"
    assert asked(program(last), lines) == [0.5] * 300


@pytest.mark.parametrize(
    ("code", "error", "expected"),
    [
        ("import sys; next(sys.stdin); print(1); sys.exit(3)", RewardError, r"ended \(exit code 3\) after 1 of 3 ans"),
        ("import os, sys; next(sys.stdin); os.kill(os.getpid(), 9)", RewardError, r"ended \(signal 9\) after 0 of 3"),
        ("import time; time.sleep(60)", RewardError, r"given 0 of 3 answers within 1 s; expected all of them"),
        (GOOD.replace("print(", "print('good',"), DataError, r"answered line 1 with 'good 0.0'; expected a number"),
        (GOOD.replace("print(", "print('nan' or "), DataError, r"answered line 1 with 'nan'"),
        (GOOD.replace("print(", "print('NaN' or "), DataError, r"answered line 1 with 'NaN'"),
        (GOOD.replace("print(", "print('true' or "), DataError, r"answered line 1 with 'true'"),
        (GOOD.replace("print(", "print('\\n' or "), DataError, r"answered"),
        ("import os; os.write(1, b'1\\n2\\n3\\n4\\n')", DataError, r"has answered 3 lines with more: '4'"),
    ],
    ids=["exit", "signal", "hangs", "word", "nan", "NaN", "true", "empty", "too many"],
)
def test_a_program_that_fails(code: str, error: type[Exception], expected: str) -> None:
    """What it did is said, and what was expected; it is gone afterwards."""
    rewards = program(code, within="1s" if "60" in code else "20s")
    with pytest.raises(error, match=expected):
        asked(rewards)
    assert rewards._process.returncode is not None


def test_what_is_said_unasked_is_refused(tmp_path: Path) -> None:
    """A line too many, behind those of a step, would shift all answers of the next."""
    go, said = tmp_path / "go", tmp_path / "said"
    code = f"""
    import os, sys, time
    for line in sys.stdin:
        print(1, flush=True)
        while not os.path.exists({str(go)!r}):
            time.sleep(0.01)
        print(7, flush=True)
        open({str(said)!r}, "w").close()
    """
    rewards = program(dedent(code))
    try:
        assert worth(rewards, LINES[:1]) == [1.0]
    finally:
        go.touch()
    while not said.exists():
        time.sleep(0.01)
    with pytest.raises(DataError, match=r"has said '7\\n' unasked; expected a line for each that it is given"):
        asked(rewards)


def test_a_long_answer_makes_progress() -> None:
    """While it is waited for, whoever watches is told."""
    beats: list[float] = []
    rewards = program("import sys, time\nfor line in sys.stdin: time.sleep(1.2); print(1, flush=True)")
    worth(rewards, LINES[:2], lambda: beats.append(time.monotonic()))
    rewards.close()
    assert max(later - before for before, later in pairwise(beats)) < 1.5
    assert len(beats) >= 4


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    """It is refused as the run starts."""
    with pytest.raises(DataError, match=r"cannot be started: No such file or directory"):
        rewards_of(Reward.model_validate({"command": [str(tmp_path / "none")]}))


def test_a_program_that_hangs_ends_with_its_trainer() -> None:
    """However a trainer with threads ends, of which nobody is told, and whatever the program heeds."""
    judge = """
    import os, signal, sys
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    next(sys.stdin)
    print(os.getpid(), flush=True)
    while True: signal.pause()
    """
    trainer = f"""
    import sys, threading
    from shardwise.job.spec.reinforcement import Reward
    from shardwise.train.rewards import rewards_of
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    rewards = rewards_of(Reward.model_validate({{"command": [sys.executable, "-c", {dedent(judge)!r}]}}))
    rewards.ask({{"completion": ""}})
    print(int(rewards.answers(lambda: None)[0]), flush=True)
    sys.stdin.read()
    """
    own = subprocess.Popen([sys.executable, "-c", dedent(trainer)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with own:
        assert own.stdout is not None
        handle = os.pidfd_open(int(own.stdout.readline()))
        try:
            assert not readable(handle)
            own.kill()
            assert readable(handle, within_seconds=20)
        finally:
            send_signal(handle, signal.SIGKILL)
            os.close(handle)
