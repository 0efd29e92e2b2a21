"""DIR/logs/stacks-M-TIME.txt: where all ranks stood when attempt M stalled."""

import time

from shardwise.launcher.leader.channel import ANSWER_SECONDS
from shardwise.launcher.leader.state import LeaderState
from shardwise.protocol.contract import LOGS
from shardwise.protocol.requests import ReadStacks, Stacks


async def write_stacks(attempt: int, state: LeaderState) -> None:
    """Ask every host for the stacks of its trainer, and write them."""
    answers = await state.channel.ask_all(ReadStacks(), Stacks, ANSWER_SECONDS)
    parts = [
        f"rank {rank}: {answer.text if answer else 'its host did not answer'}\n"
        for rank, answer in sorted(answers.items())
    ]
    name = f"stacks-{attempt}-{time.strftime('%Y%m%dT%H%M%S')}.txt"
    (state.directory / LOGS / name).write_text("\n".join(parts), encoding="utf-8")
    state.events.write("stacks", attempt=attempt, file=f"{LOGS}/{name}")
