"""The agent as the first process of a pod. `python -m shardwise.launcher.pod`.

The operator says in variables, mounts and the pod's labels what `job/pods.py` names; this module makes an `AgentConfig`
of it, and leaves a last record. The agent is the laptop's (`agent.py`), but for three things. SIGTERM means that this
pod goes away, not that the run stops: the run is saved, and goes on when the host has another pod. Host 0 claims the
run directory, as the command does on a laptop. And the pod's log shows what happens, and what this host's trainer says.
"""

import asyncio
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from shardwise.job import pods
from shardwise.job.accelerators import CLASS_VARIABLE
from shardwise.job.contract import CACHE_VARIABLE, LOGS, PROGRAMS, PROGRAMS_KEY_VARIABLE, PROGRAMS_VARIABLE
from shardwise.job.errors import JobError, Problem, RunDirectoryError, ShardwiseError, StorageError
from shardwise.job.load import load
from shardwise.job.pods import LastRecord
from shardwise.job.storage import in_words
from shardwise.job.topology import num_hosts
from shardwise.job.words import any_of
from shardwise.launcher import agent
from shardwise.launcher.claim import claimed
from shardwise.launcher.config import AgentConfig
from shardwise.launcher.host import Host
from shardwise.launcher.last_record import last_record, refused
from shardwise.launcher.last_word import LEFT
from shardwise.launcher.output import Output

_COLUMNS = 120  # of a log that no terminal reads
_LOOK_SECONDS = 0.5


def main() -> NoReturn:
    """Be the agent of this pod's host until the run ends or the pod does; the last record says how."""
    # The kernel ends no first process by a signal that it has no handler for. The agent sets its own later.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(LEFT))
    host, directory = int(os.environ[pods.RANK_VARIABLE]), Path(os.environ[pods.DIRECTORY_VARIABLE])
    try:
        _use_own_folders(directory)
        code = _work(_config(os.environ))
        ended_alone = code == LEFT
        record = last_record(directory, host, None if ended_alone else code, "this host goes away" * ended_alone)
    except ShardwiseError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201  the pod's log
        code, record = error.exit_code, refused(host, error)
        if isinstance(error, StorageError):  # this pod ends alone: the next one may find its volume well
            record = replace(record, code=None)
    except SystemExit:
        _leave(last_record(directory, host, None, "this host goes away, before it began"))
        raise
    except BaseException as error:
        _leave(last_record(directory, host, None, "".join(traceback.format_exception_only(error)).strip()))
        raise
    _leave(record)
    sys.exit(code)


def _use_own_folders(directory: Path) -> None:
    """The pod's root is read-only, and its user has no home: what writes to one finds it in the scratch.

    Programs take long to compile, so they outlive the pod: they lie on the volume.
    """
    home = Path(pods.SCRATCH_MOUNT) / "home"
    home.mkdir(exist_ok=True)
    os.environ |= {"HOME": str(home), CLASS_VARIABLE: str(Path(pods.JOB_MOUNT) / pods.CLASS_KEY)}
    os.environ.setdefault(CACHE_VARIABLE, str(Path(pods.SCRATCH_MOUNT) / "cache"))
    os.environ |= {
        PROGRAMS_VARIABLE: str(directory / PROGRAMS),
        PROGRAMS_KEY_VARIABLE: str(Path(pods.TOKEN_MOUNT) / pods.GANG_TOKEN_KEY),
    }


def _config(variables: Mapping[str, str]) -> AgentConfig:
    """What this pod's variables and mounts say; JobError where the job, its class or the contract is refused."""
    if (contract := variables.get(pods.CONTRACT_VARIABLE, pods.CONTRACT)) not in pods.CONTRACTS:
        given = f"an image that knows the contracts {any_of(pods.CONTRACTS)}"
        expected = f"one of the operator's release, which made this pod by contract {contract}"
        raise JobError([Problem(path="spec.pod.image", given=given, expected=expected)])
    job_file, tokens = Path(pods.JOB_MOUNT) / pods.JOB_KEY, Path(pods.TOKEN_MOUNT)
    address = variables[pods.ADDRESS_VARIABLE]
    return AgentConfig(
        run=variables[pods.RUN_VARIABLE],
        host=int(variables[pods.RANK_VARIABLE]),
        attempt=int(variables.get(pods.ATTEMPT_VARIABLE, 0)),  # an operator of before does not say it
        num_hosts=num_hosts(load(job_file).spec.hardware),
        job_file=str(job_file),
        directory=variables[pods.DIRECTORY_VARIABLE],
        scratch=pods.SCRATCH_MOUNT,
        listen=f"{address}:{pods.AGENT_PORT}",
        address=address,
        gang_token_file=str(tokens / pods.GANG_TOKEN_KEY),
        status_token_file=str(tokens / pods.STATUS_TOKEN_KEY),
        started_at=float(variables[pods.STARTED_VARIABLE]),
        fork=False,
        step=None,
    )


def _work(config: AgentConfig) -> int:
    directory = Path(config.directory)
    _make(directory / LOGS)
    with claimed(directory, config.run) if config.host == 0 else nullcontext(), _shown(config):
        return asyncio.run(_serve(config))


def _make(folder: Path) -> None:
    """Every host writes to the run directory, and none knows whether it is the first."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        words = (
            f"{folder}: cannot be made ({error.strerror}); spec.pod.directory must be on a volume that user "
            f"{os.getuid()} may write to"
        )
        raise in_words(error, words, RunDirectoryError) from error


async def _serve(config: AgentConfig) -> int:
    nobody = asyncio.get_running_loop().create_future()
    return await agent.serve(config, nobody, asked_to_end=Host.leave)


@contextmanager
def _shown(config: AgentConfig) -> Iterator[None]:
    """Have a thread show what happens to the run and what this host's trainer says."""
    output = Output(
        Path(config.directory), Console(width=_COLUMNS), Console(width=_COLUMNS, stderr=True), host=config.host
    )
    ended = threading.Event()

    def show() -> None:
        while not ended.wait(_LOOK_SECONDS):
            output.show()

    showing = threading.Thread(target=show, name="output", daemon=True)
    showing.start()
    try:
        yield
    finally:
        ended.set()
        showing.join()
        output.end()


def _leave(record: LastRecord) -> None:
    """Leave the last record where the kubelet takes the container's last message from."""
    Path(pods.TERMINATION_LOG).write_text(record.dumps(), encoding="utf-8")


if __name__ == "__main__":
    main()
