"""The agent of one host: parent of its trainer and of its Ray processes. `python -m shardwise.launcher.agent`.

Started by the command with an `AgentConfig` as one line on standard input; in a pod it is the first process (`pod.py`).
The end of that input ends the agent, and everything that it has started. The agent of host 0 is the leader too
(`gang.py`), and its exit code is the run's; the others follow it (`follower.py`).
"""

import asyncio
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from shardwise.job.contract import ExitCode
from shardwise.job.load import load
from shardwise.job.resolve import resolve
from shardwise.launcher import hand, processes
from shardwise.launcher.config import AgentConfig
from shardwise.launcher.follower import Follower
from shardwise.launcher.gang import Gang
from shardwise.launcher.host import Host
from shardwise.launcher.server import Server
from shardwise.launcher.tasks import cancel

_CONFIG_LIMIT_BYTES = 1 << 20


def main() -> None:
    """Be a host's agent until the run or the standard input ends."""
    sys.exit(asyncio.run(_main()))


async def _main() -> int:
    stdin = asyncio.StreamReader(limit=_CONFIG_LIMIT_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    line = await stdin.readline()
    if not line.endswith(b"\n"):
        return ExitCode.USAGE
    config = AgentConfig.loads(line.decode())
    orphaned = asyncio.create_task(stdin.read())
    code = await serve(config, orphaned, asked_to_end=Host.ask_stop)
    if orphaned.done():
        # Whoever started this run is gone, so nobody else will tidy up.
        shutil.rmtree(config.scratch, ignore_errors=True)
    return code


async def serve(config: AgentConfig, orphaned: "asyncio.Future[Any]", *, asked_to_end: Callable[[Host], None]) -> int:
    """Do a host's part in a run until the run is over, or the host goes away; nothing remains of what it has started.

    Args:
        config: the host's.
        orphaned: ends everything at once when it is done.
        asked_to_end: what SIGTERM means here.

    Returns:
        The exit code of the run, or `last_word.LEFT`.

    """
    processes.become_subreaper()
    processes.end_marked(Path(config.directory), config.host)
    job = resolve(load(Path(config.job_file)))
    host = Host(config, job)
    host.tidy(of_others=True)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked_to_end, host)
    async with AsyncExitStack() as stack:
        stack.callback(host.tidy, of_others=False)
        stack.push_async_callback(host.close)
        opened = await hand.serve(config.socket, host.answer)
        stack.callback(opened.close)
        looking = asyncio.create_task(host.run())
        stack.push_async_callback(cancel, looking)
        part: Gang | Follower = Gang(config, job, host) if config.host == 0 else Follower(config, host)
        board = part.board if isinstance(part, Gang) else None
        stack.enter_context(Server(config.listen, config.tokens, lambda: host.ready, board))
        working = asyncio.create_task(part.run())
        stack.push_async_callback(cancel, working)
        done, _ = await asyncio.wait({looking, working, orphaned}, return_when=asyncio.FIRST_COMPLETED)
        if orphaned in done:
            await host.end()
            return ExitCode.FAILURE
        if looking in done:
            looking.result()
        return working.result()


if __name__ == "__main__":
    main()
