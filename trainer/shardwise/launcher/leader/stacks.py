"""DIR/logs/stacks-M-TIME.txt: where all ranks stood when attempt M stalled."""

import asyncio
import sys
import time

from shardwise.launcher.leader.channel import ANSWER_SECONDS
from shardwise.launcher.leader.old_logs import remove_stacks
from shardwise.launcher.leader.state import LeaderState
from shardwise.protocol.contract import LOGS
from shardwise.protocol.requests import ReadStacks, Stacks
from shardwise.protocol.storage import reason_of


async def write_stacks(attempt: int, state: LeaderState) -> None:
    """Ask every host for the stacks of its trainer, and write them; if that fails, the leader's log says so."""
    answers = await state.channel.ask_all(ReadStacks(), Stacks, ANSWER_SECONDS)
    parts = [
        f"rank {rank}: {answer.text if answer else 'its host did not answer'}\n"
        for rank, answer in sorted(answers.items())
    ]
    removed = await asyncio.to_thread(remove_stacks, state.directory, attempt)
    if state.copy and removed:
        await asyncio.to_thread(state.copy.remove_below, removed)
    name = f"stacks-{attempt}-{time.strftime('%Y%m%dT%H%M%S')}.txt"
    try:
        await asyncio.to_thread((state.directory / LOGS / name).write_text, "\n".join(parts), encoding="utf-8")
        state.events.write("stacks", attempt=attempt, file=f"{LOGS}/{name}")
    except OSError as error:  # whatever it is: they are for people, and no attempt ends for them
        sys.stderr.write(f"the stacks of attempt {attempt} could not be written: {reason_of(error)}\n")
