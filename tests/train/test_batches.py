"""shardwise.train.batches: which batch, or which part of what is made at once, each step is taken on."""

from types import SimpleNamespace
from typing import Any, cast

from tests.train.conftest import SMALL

from shardwise.job.load import loads
from shardwise.train.batches import Batches


def of(*words: str, first_step: int = 0, left_out: tuple[int, ...] = ()) -> Batches:
    """The batches of a job, and what makes completions, which says what it is asked for."""
    training = loads(SMALL, [f"spec.training.{word}" for word in words]).spec.training
    made = SimpleNamespace(
        batches=lambda number, _: [
            SimpleNamespace(batch=(number, part), figures={}) for part in range(training.updates)
        ]
    )
    program = SimpleNamespace(training=training, layout=None, config=SimpleNamespace(seq_len=32))
    data = SimpleNamespace(train=SimpleNamespace(rows=None))
    completions = made if training.reinforcement else None
    start = SimpleNamespace(program=program, data=data, completions=completions, first_step=first_step)
    return Batches(cast("Any", start), left_out)


PROMPTS = "data.train=[{name: some, paths: [some.jsonl], prompts: true}]"
GROUPS = "reinforcement={samples: 4, maxTokens: 4, updates: 3, reward: {pattern: '(a)'}}"


def test_each_step_of_a_group_has_its_own_part() -> None:
    """From where the run goes on, to its last step; a group that is left out is so for all of its steps."""
    batches = of(PROMPTS, GROUPS, "steps=12", first_step=3, left_out=(2,))
    taken = cast("list[tuple[int, int]]", list(batches.of_all_steps(dict)))

    assert taken == [(number, part) for number in (1, 3, 4) for part in range(3)]
    assert [batches.number(step) for step in range(4, 13)] == [number for number, _ in taken]
    assert [step for step in range(4, 13) if batches.ends_at(step)] == [6, 9, 12]
    assert batches.steps_left_out() == {6, 7, 8}


def test_without_groups_each_step_has_its_batch() -> None:
    """Numbers are of batches, and a run may be saved at every step."""
    batches = of("steps=12", left_out=(2,))

    assert [batches.number(step) for step in (1, 2, 3, 4)] == [0, 1, 3, 4]
    assert all(batches.ends_at(step) for step in range(1, 13))
    assert batches.steps_left_out() == {2}
