"""The agent of one host: parent of its trainer and of its Ray processes. `python -m shardwise.launcher.agent_main`.

Started by the command with an `AgentConfig` as one line on standard input; in a pod it is the first process (`pod.py`).
The end of that input ends the agent, and everything that it has started. The agent of host 0 is the leader too
(`leader/leader.py`), and its exit code is the run's; the others follow it (`agent/follower.py`).
"""

import asyncio
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from shardwise.job.load import load_own
from shardwise.job.resolve import resolve
from shardwise.launcher.agent.config import AgentConfig
from shardwise.launcher.agent.follower import Follower
from shardwise.launcher.agent.host import Host
from shardwise.launcher.agent.server import Server
from shardwise.launcher.agent.standby import remove_standby_logs
from shardwise.launcher.leader.leader import Leader
from shardwise.launcher.ray import rpc_server
from shardwise.launcher.system import processes
from shardwise.launcher.system.tasks import cancel
from shardwise.protocol.contract import ExitCode

if TYPE_CHECKING:  # only pods with a bucket need it, and what it stands on
    from shardwise.launcher.agent.run_copy import RunCopy

_CONFIG_LIMIT_BYTES = 1 << 20


def main() -> None:
    """Run a host's agent until the run or the standard input ends."""
    sys.exit(asyncio.run(_main()))


async def _main() -> int:
    stdin = asyncio.StreamReader(limit=_CONFIG_LIMIT_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    line = await stdin.readline()
    if not line.endswith(b"\n"):
        return ExitCode.USAGE
    config = AgentConfig.model_validate_json(line)
    orphaned = asyncio.create_task(stdin.read())
    code = await serve(config, orphaned, asked_to_end=Host.ask_stop)
    if orphaned.done():
        # The command is gone, which would have removed it.
        shutil.rmtree(config.scratch, ignore_errors=True)
    return code


async def serve(
    config: AgentConfig,
    orphaned: "asyncio.Future[Any]",
    *,
    asked_to_end: Callable[[Host], None],
    copy: "RunCopy | None" = None,
) -> int:
    """Do a host's part in a run until the run is over, or the host goes away; leave no process behind.

    Args:
        config: the host's.
        orphaned: ends everything at once when it is done.
        asked_to_end: what SIGTERM means here.
        copy: that of a run directory in a bucket.

    Returns:
        The exit code of the run, or `HOST_LEFT`.

    Raises:
        LeaderlessError: this host has heard nothing of host 0 for too long.

    """
    processes.become_subreaper()
    processes.end_marked(config.directory, config.host)
    job = resolve(load_own(config.job_file))
    host = Host(config, job)
    tidy = partial(remove_standby_logs, config.directory, config.host)
    tidy()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked_to_end, host)
    async with AsyncExitStack() as stack:
        stack.callback(tidy, of_others=False)
        stack.push_async_callback(host.close)
        opened = await rpc_server.serve(config.socket, host.answer)
        stack.callback(opened.close)
        looking = asyncio.create_task(host.run())
        stack.push_async_callback(cancel, looking)
        leads = config.host == 0
        part = Leader(config, job, host, copy) if leads else Follower(config, job.spec.recovery, host, copy)
        publisher = part.publisher if isinstance(part, Leader) else None
        stack.enter_context(Server(config.listen, config.tokens, lambda: host.ready, publisher))
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
