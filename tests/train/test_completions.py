"""Completions and what they are worth: when a program is asked about each, and whose answer is whose."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from tests.train.test_work import WORDS

from shardwise.job.spec.reinforcement import Reward
from shardwise.train.completions import Completions
from shardwise.train.data.prompts import Prompt
from shardwise.train.peers import WRITER, Peers
from shardwise.train.rewards import rewards_of
from shardwise.train.sampler import Completion
from shardwise.train.state import Program

JUDGE = """
import json, pathlib, sys
for line in sys.stdin:
    seen = pathlib.Path(json.loads(line)["completion"])
    print(seen.name, flush=True)
    seen.touch()
"""
ENDED = (2, 0, 3, 1)
"""The rows in the order in which their completions end."""


def test_a_completion_is_judged_while_others_are_made(make_program: Callable[..., Program], tmp_path: Path) -> None:
    """The program has seen one that has ended before the next one ends, and each answer is that of its own row."""
    program, told = make_program(*WORDS, num_devices=2), list[str]()

    def complete(
        _params: Mapping[str, jax.Array],
        prompts: Sequence[Prompt],
        _seed: int,
        tell: Callable[[int, Completion], None],
        _beat: Callable[[], None],
    ) -> list[Completion]:
        made = [Completion(prompt, [7], False, str(tmp_path / str(row))) for row, prompt in enumerate(prompts)]
        for row in ENDED:
            tell(row, made[row])
            until = time.monotonic() + 60
            while not (tmp_path / str(row)).exists():
                assert time.monotonic() < until, f"nobody has asked about {row} while others are made"
                time.sleep(0.01)
        return made

    sampler: Any = SimpleNamespace(program=program, complete=complete)
    data: Any = SimpleNamespace(train=SimpleNamespace(prompts=lambda numbers: [Prompt([5], {})] * len(numbers)))
    phases: Any = SimpleNamespace(entered=lambda _: nullcontext(), say=told.append, beat=lambda: None)
    rewards = rewards_of(Reward(command=(sys.executable, "-c", JUDGE)))
    completions = Completions(program.training, data, sampler, rewards, Peers(WRITER, 1), phases)
    try:
        (part,) = completions.batches(0, {})
    finally:
        completions.close()
    assert told == [f"{number} of 4 completions" for number in (1, 2, 3, 4)]
    assert part.figures["reward"] == 1.5
    advantages = np.asarray(part.batch.advantages).sum(axis=1)
    assert np.sign(advantages).tolist() == [-1, 1, -1, 1]
