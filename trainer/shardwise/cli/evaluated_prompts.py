"""The rewards of a saved model's completions of prompts, which are made and asked about as the run itself does.

It imports JAX: import it after the environment is set, inside `trainer_imports`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from rich.console import Console
from rich.status import Status

from shardwise.job.accelerators import usable_bytes
from shardwise.job.spec import Training, TrainingJob
from shardwise.protocol.contract import Phase
from shardwise.train.completions import Completions
from shardwise.train.data.evaluation_sets import Evaluated
from shardwise.train.data.sequences import HeldOutSet
from shardwise.train.data.tokenizer import tokenizer_of
from shardwise.train.decoder import bytes_limit, window_for
from shardwise.train.evaluation import Rewarded
from shardwise.train.peers import WRITER, Peers
from shardwise.train.rewards import rewards_of
from shardwise.train.sampler import Ending, Programs, Sampler, lowering, room
from shardwise.train.state import Program, State


@dataclass(frozen=True)
class _Shown:
    """Shows a person on a terminal what is done, where a run records it for its watchdog."""

    status: Status

    def entered(self, _phase: Phase, /) -> nullcontext[None]:
        """Nothing is timed."""
        return nullcontext()

    def say(self, text: str) -> None:
        """Show it."""
        self.status.update(text)

    def beat(self) -> None:
        """Nobody watches."""


@contextmanager
def rewarding(
    job: TrainingJob, program: Program, sets: Sequence[Evaluated], run: Training, console: Console
) -> Iterator[Rewarded]:
    """Yield what finds the means over sets of prompts, while what rewards them runs.

    Args:
        job: that the model is of here.
        program: of the model.
        sets: some are of prompts.
        run: as the run trains, which says how many sequences a batch has: random numbers follow from that.
        console: is told which set it is, and how many completions there are.

    Raises:
        DataError: the program of rewards cannot be started.

    """
    assert run.reinforcement is not None, "a rule wants it of prompts"
    asked = [one.sequences for one in sets if one.has_prompts and isinstance(one.sequences, HeldOutSet)]
    sampler = _sampler(job, program, max(each.longest for each in asked))
    rewards, status = rewards_of(run.reinforcement.reward), console.status("")
    made = Completions(run, None, sampler, rewards, Peers(WRITER, 1), _Shown(status))

    def means(params: State, one: Evaluated) -> dict[str, float]:
        console.print(f"evaluating {one.name}: {one.sequences.num_sequences:,} prompts", markup=False)
        with status:
            return made.means(params, one)

    try:
        yield means
    finally:
        made.close()


def _sampler(job: TrainingJob, program: Program, longest: int) -> Sampler:
    """Return what completes prompts of up to so many tokens, compiled for this command alone."""
    num_rows, layout = room(program, usable_bytes(job) or bytes_limit(program))
    window, data = window_for(program, longest), program.training.data
    lower = lowering(program, layout, num_rows, window)
    return Sampler(
        program=program,
        layout=layout,
        num_rows=num_rows,
        window=window,
        ending=Ending.of(tokenizer_of(data), data.train[0].chat_template),
        programs=Programs(*(each().compile() for each in lower)),
    )
