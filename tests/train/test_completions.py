"""A batch of completions: where each token, weight and advantage is, who is asked when, and what hosts tell."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from shardwise.job.spec.reinforcement import Reward
from shardwise.protocol.errors import DataError, DeviceError, RewardError
from shardwise.train.completions import Completions
from shardwise.train.data.evaluation_sets import Evaluated
from shardwise.train.data.prompts import Prompt
from shardwise.train.data.sequences import HeldOutSet
from shardwise.train.peers import WRITER, Peers
from shardwise.train.reinforcement import advantages_of
from shardwise.train.rewards import Rewards, rewards_of
from shardwise.train.sampler import Completion
from shardwise.train.state import Program

MakeProgram = Callable[..., Program]
Tell = Callable[[int, Completion], None]
WORDS = (
    "data.train=[{name: some, paths: [some.jsonl], prompts: true}]",
    "batch.sequences=4",
    "reinforcement={samples: 2, maxTokens: 4, reward: {pattern: '(a)'}}",
)
PROMPTS = [Prompt([5, 6, 7], {"prompt": "a", "worth": 2}), Prompt([8], {"prompt": "b", "worth": 3})]
MADE = [[1, 2, 256], [1], [3, 3, 3, 3], [256]]
IS_CUT = [False, True, True, False]


class _Rewards:
    """Says that a completion is worth its line's number for each token, and remembers what it was asked."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.asked = error, list[Any]()
        self.answered = 0

    def ask(self, line: Any) -> None:
        self.asked.append(line)

    def answers(self, beat: Callable[[], None]) -> list[float]:
        if self.error:
            raise self.error
        beat()
        lines, self.answered = self.asked[self.answered :], len(self.asked)
        return [float(line["worth"] * len(line["completion"])) for line in lines]

    def close(self) -> None:
        """Nothing was started."""


def completions(
    program: Program, rewards: Rewards, peers: Any, complete: Callable[..., Any] | None = None
) -> Completions:
    """Completions of two prompts that a sampler always makes alike."""

    def made(_params: object, prompts: Sequence[Prompt], seed: int, tell: Tell, _beat: object) -> list[Completion]:
        assert seed == 3 << 32 | 7
        rows = zip(prompts, MADE, IS_CUT, strict=True)
        return told(tell, [Completion(prompt, new, is_cut, "x" * len(new)) for prompt, new, is_cut in rows])

    def prompts_of(numbers: Any) -> list[Prompt]:
        assert numbers.tolist() == [14, 15]
        return PROMPTS

    data = SimpleNamespace(train=SimpleNamespace(prompts=prompts_of))
    phases = SimpleNamespace(entered=lambda _: nullcontext(), beat=lambda: None, say=lambda _: None)
    sampler = SimpleNamespace(program=program, complete=complete or made)
    training = program.training.model_copy(update={"seed": 3})
    return Completions(training, cast("Any", data), cast("Any", sampler), rewards, peers, cast("Any", phases))


def told(tell: Tell, made: list[Completion]) -> list[Completion]:
    """The same, of each of which is told."""
    for row, each in enumerate(made):
        tell(row, each)
    return made


def peers(rank: int, of_other: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Two processes, of which the other tells what follows from what this one tells."""

    def exchange(_name: str, text: str) -> list[str]:
        texts = [text, json.dumps(of_other(json.loads(text)))]
        return texts if rank == 0 else texts[::-1]

    return SimpleNamespace(rank=rank, count=2, exchange=exchange)


ALONE = SimpleNamespace(rank=0, count=1, exchange=lambda _name, text: [text])


JUDGE = """
import json, pathlib, sys
for line in sys.stdin:
    seen = pathlib.Path(json.loads(line)["completion"])
    print(seen.name, flush=True)
    seen.touch()
"""


def test_each_token_is_where_it_was_made(make_program: MakeProgram) -> None:
    """A row is prompt, completion and room; a completion's tokens alone are targets, with its advantage."""
    program = make_program(*WORDS, num_devices=2)
    rewards = _Rewards()
    ((batch, figures),) = completions(program, rewards, ALONE).batches(7, {})
    worth = np.array([[6.0, 2.0], [12.0, 3.0]])
    assert program.training.reinforcement is not None
    advantages = advantages_of(worth, program.training.reinforcement).reshape(-1)

    for row, (prompt, made) in enumerate(zip([PROMPTS[0], PROMPTS[0], PROMPTS[1], PROMPTS[1]], MADE, strict=True)):
        whole, first = [*prompt.tokens, *made], len(prompt.tokens)
        learned = list(range(first - 1, len(whole) - 1))
        assert batch.tokens[row, : len(whole)].tolist() == whole
        assert batch.targets[row, np.array(learned)].tolist() == made
        assert np.flatnonzero(batch.weights[row]).tolist() == learned
        assert batch.advantages is not None
        np.testing.assert_array_equal(batch.advantages[row], np.asarray(batch.weights[row]) * advantages[row])
        assert np.flatnonzero(batch.segments[row])[0] == len(whole)
    assert rewards.asked[1] == {"prompt": "a", "worth": 2, "completion": "x"}
    assert figures == {"reward": 5.75, "sameRewards": 0.0, "completionTokens": 2.25, "cutCompletions": 0.5}


@pytest.mark.parametrize("rank", [0, 1])
def test_each_host_asks_about_its_part(make_program: MakeProgram, rank: int) -> None:
    """The rewards of all are those that one host would have found, in their order."""
    theirs = [[2.0, 3.0], [6.0, 12.0]][rank]
    rewards = _Rewards()
    both = peers(rank, lambda own: own | {"rewards": theirs})
    ((batch, figures),) = completions(make_program(*WORDS, num_devices=2), rewards, both).batches(7, {})
    ((alone, _),) = completions(make_program(*WORDS, num_devices=2), _Rewards(), ALONE).batches(7, {})

    assert [line["completion"] for line in rewards.asked] == [["xxx", "xxxx"], ["x", "x"]][rank]
    assert figures["reward"] == 5.75
    np.testing.assert_array_equal(batch.advantages, alone.advantages)


@pytest.mark.parametrize("error", [DataError("no number"), RewardError("it has ended")], ids=["answer", "end"])
def test_what_one_host_is_told_ends_all(make_program: MakeProgram, error: Exception) -> None:
    """The host that fails tells the others before it ends, and each ends by the same error, which names the host."""
    program, told = make_program(*WORDS, num_devices=2), list[dict[str, Any]]()

    def of_other(own: dict[str, Any]) -> dict[str, Any]:
        told.append(own)
        return {"made": own["made"], "rewards": [1.0, 1.0]}

    with pytest.raises(type(error), match=f"host 1: {error}"):
        completions(program, _Rewards(error), peers(1, of_other)).batches(7, {})
    there = peers(0, lambda _: told[0])
    with pytest.raises(type(error), match=f"host 1: {error}"):
        completions(program, _Rewards(), there).batches(7, {})


def test_hosts_that_make_other_completions_are_found(make_program: MakeProgram) -> None:
    """Of the same weights and prompts all make the same; the host that does not is named."""
    other = peers(0, lambda own: own | {"made": "others"})
    with pytest.raises(DeviceError, match="completions on rank 1 differ from those on rank 0"):
        completions(make_program(*WORDS, num_devices=2), _Rewards(), other).batches(7, {})


def test_a_set_of_prompts_is_completed_once(make_program: MakeProgram) -> None:
    """In pieces as large as a batch, the last one smaller; the means are over all prompts, by their own numbers."""
    seeds, asked = list[int](), list[list[int]]()

    def complete(_params: object, prompts: Sequence[Prompt], seed: int, tell: Tell, _beat: object) -> list[Completion]:
        seeds.append(seed)
        made = [
            Completion(each, each.tokens, is_cut=len(each.tokens) > 2, text="x" * len(each.tokens)) for each in prompts
        ]
        return told(tell, made)

    def prompts_of(numbers: Any) -> list[Prompt]:
        asked.append(numbers.tolist())
        return [Prompt([1] * (1 + number % 3), {"worth": 2}) for number in numbers]

    held_out = HeldOutSet.__new__(HeldOutSet)
    held_out.num_sequences = 6
    vars(held_out)["prompts"] = prompts_of
    program = make_program(*WORDS, num_devices=2)
    made = completions(program, _Rewards(), ALONE, complete)
    found = made.means({}, Evaluated(name="sums", sequences=held_out, batches=None, has_prompts=True))

    assert asked == [[0, 1, 2, 3], [4, 5]]
    assert seeds == [3 << 32 | 1 << 31, 3 << 32 | 1 << 31 | 1]
    assert found == {"reward": 4.0, "completionTokens": 2.0, "cutCompletions": 1 / 3, "prompts": 6}


def test_a_completion_is_judged_while_others_are_made(make_program: MakeProgram, tmp_path: Path) -> None:
    """The program has seen one that has ended before the next one ends, and each answer is that of its own row."""

    def complete(_params: object, prompts: Sequence[Prompt], _seed: int, tell: Tell, _beat: object) -> list[Completion]:
        made = [Completion(prompt, [7], False, str(tmp_path / str(row))) for row, prompt in enumerate(prompts)]
        for row in (2, 0, 3, 1):
            tell(row, made[row])
            until = time.monotonic() + 60
            while not (tmp_path / str(row)).exists():
                assert time.monotonic() < until, f"nobody has asked about {row} while others are made"
                time.sleep(0.01)
        return made

    program = make_program(*WORDS, num_devices=2)
    assert program.training.reinforcement is not None
    judge = rewards_of(Reward(command=(sys.executable, "-c", JUDGE)))
    made = completions(program, judge, Peers(WRITER, 1), complete)
    try:
        ((batch, figures),) = made.batches(7, {})
    finally:
        made.close()
    advantages = advantages_of(np.array([[0.0, 1.0], [2.0, 3.0]]), program.training.reinforcement)
    assert figures["reward"] == 1.5
    np.testing.assert_array_equal(np.asarray(batch.advantages).sum(axis=1), advantages.reshape(-1))
