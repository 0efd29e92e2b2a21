"""The agent as the first process of a pod. `python -m shardwise.launcher.pod`.

It makes an `AgentConfig` of the variables and mounts that `protocol/pods.py` names, and leaves a termination record.
The agent is the same as on a laptop (`agent_main.py`), with three differences. SIGTERM means that this pod goes away,
not that the run stops: the run is saved, and goes on when the host has another pod. Host 0 claims the run directory, as
the command does on a laptop; what is in a bucket is copied to and from a folder of the host's own
(`agent/run_copy.py`). And the pod's log shows the events of the run, which with a bucket only host 0 has, and the
output of this host's trainer.
"""

import asyncio
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from shardwise.job.accelerators import CLASS_VARIABLE
from shardwise.job.load import load_own
from shardwise.job.resolve import resolve
from shardwise.job.topology import num_hosts
from shardwise.launcher import agent_main
from shardwise.launcher.agent.config import AgentConfig
from shardwise.launcher.agent.host import Host
from shardwise.launcher.claim import claimed
from shardwise.launcher.job_file import keep_job
from shardwise.launcher.output import Output
from shardwise.launcher.system.consoles import consoles
from shardwise.launcher.termination import refused, termination_record
from shardwise.protocol import pods
from shardwise.protocol.contract import (
    CACHE_VARIABLE,
    HOST_LEFT,
    LOGS,
    PROGRAMS,
    PROGRAMS_KEY_VARIABLE,
    PROGRAMS_VARIABLE,
)
from shardwise.protocol.errors import JobError, Problem, RunDirectoryError, ShardwiseError, StorageError
from shardwise.protocol.pods import TerminationRecord
from shardwise.protocol.storage import in_words
from shardwise.protocol.text import any_of

if TYPE_CHECKING:
    from shardwise.launcher.agent.run_copy import RunCopy

_COLUMNS = 120  # of a log that no terminal reads
_LOOK_SECONDS = 0.5


def main() -> NoReturn:
    """Run the agent of this pod's host until the run or the pod ends; leave a termination record of that."""
    # The kernel ends no first process by a signal that it has no handler for. The agent sets its own later.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(HOST_LEFT))
    host, (directory, _) = int(os.environ[pods.RANK_VARIABLE]), _place(os.environ)
    try:
        _use_own_folders(directory)
        code = _work(_config(os.environ))
        if code == HOST_LEFT:
            record = termination_record(directory, host, None, "this host goes away")
        else:
            record = termination_record(directory, host, code)
    except ShardwiseError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201  the pod's log
        code, record = error.exit_code, refused(host, error)
        if isinstance(error, StorageError):  # this pod ends alone: the next one may find its volume well again
            record = record.model_copy(update={"code": None})
    except BaseException as error:
        end = "".join(traceback.format_exception_only(error)).strip()
        message = "this host goes away, before it began" if isinstance(error, SystemExit) else end
        _leave(termination_record(directory, host, None, message))
        raise
    _leave(record)
    sys.exit(code)


def _use_own_folders(directory: Path) -> None:
    """Put home and cache into the scratch folder: the pod's root is read-only, and its user has no home.

    Compiled programs lie on the volume, so that they outlive the pod: they take long to make.
    """
    home = Path(pods.SCRATCH_MOUNT) / "home"
    home.mkdir(exist_ok=True)
    os.environ |= {"HOME": str(home), CLASS_VARIABLE: str(Path(pods.JOB_MOUNT) / pods.CLASS_KEY)}
    os.environ.setdefault(CACHE_VARIABLE, str(Path(pods.SCRATCH_MOUNT) / "cache"))
    os.environ |= {
        PROGRAMS_VARIABLE: str(directory / PROGRAMS),
        PROGRAMS_KEY_VARIABLE: str(Path(pods.TOKEN_MOUNT) / pods.GANG_TOKEN_KEY),
    }


def _place(variables: Mapping[str, str]) -> tuple[Path, str | None]:
    """Return this host's folder of the run directory, and where that lies if it is in a bucket."""
    given = variables[pods.DIRECTORY_VARIABLE]
    return (Path(pods.SCRATCH_MOUNT) / "run", given) if "://" in given else (Path(given), None)


def _config(variables: Mapping[str, str]) -> AgentConfig:
    """Return the configuration by this pod's variables and mounts; JobError if job, class or contract is refused."""
    if (contract := variables.get(pods.CONTRACT_VARIABLE, pods.CONTRACT)) not in pods.CONTRACTS:
        given = f"an image that knows the contracts {any_of(pods.CONTRACTS)}"
        expected = f"one of the operator's release, which made this pod by contract {contract}"
        raise JobError([Problem(path="spec.pod.image", given=given, expected=expected)])
    job_file, tokens = Path(pods.JOB_MOUNT) / pods.JOB_KEY, Path(pods.TOKEN_MOUNT)
    directory, url = _place(variables)
    address = variables[pods.ADDRESS_VARIABLE]
    return AgentConfig(
        run=variables[pods.RUN_VARIABLE],
        host=int(variables[pods.RANK_VARIABLE]),
        pod_attempt=int(variables.get(pods.POD_ATTEMPT_VARIABLE, 0)),  # an earlier operator does not set it
        num_hosts=num_hosts(load_own(job_file).spec.hardware),
        job_file=job_file,
        directory=directory,
        url=url,
        scratch=Path(pods.SCRATCH_MOUNT),
        local=Path(pods.SCRATCH_MOUNT) / pods.LOCAL_FOLDER,
        listen=f"{address}:{pods.AGENT_PORT}",
        address=address,
        gang_token_file=tokens / pods.GANG_TOKEN_KEY,
        status_token_file=tokens / pods.STATUS_TOKEN_KEY,
        started_at=float(variables[pods.STARTED_VARIABLE]),
    )


def _work(config: AgentConfig) -> int:
    _make(config.directory / LOGS)
    if config.url:
        return _work_in_bucket(config, config.url)
    with claimed(config.directory, config.run) if config.host == 0 else nullcontext():
        return _work_in(config)


def _work_in_bucket(config: AgentConfig, url: str) -> int:
    # Here, for what they stand on takes time and memory that a pod with a volume need not spend.
    from shardwise.launcher.agent.run_copy import OutrunError, RunCopy  # noqa: PLC0415
    from shardwise.launcher.claim_in_bucket import claimed_in_bucket  # noqa: PLC0415

    copy = RunCopy(config.directory, url, config.host)
    with (
        claimed_in_bucket(copy, config.run, load_own(config.job_file).metadata.name)
        if config.host == 0
        else nullcontext()
    ):
        while True:
            with suppress(OutrunError):
                code = _work_in(config, copy)
                copy.finish()
                return code
            copy.take_kept()


def _work_in(config: AgentConfig, copy: "RunCopy | None" = None) -> int:
    with _shown(config):
        if config.host == 0:
            keep_job(config.directory, resolve(load_own(config.job_file)))
        return asyncio.run(_serve(config, copy))


def _make(folder: Path) -> None:
    """Make the folder if it is missing: every host writes to the run directory, and any may be the first."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = (
            f"{folder}: cannot be made ({error.strerror}); spec.pod.directory must be on a volume that user "
            f"{os.getuid()} may write to"
        )
        raise in_words(error, message, RunDirectoryError) from error


async def _serve(config: AgentConfig, copy: "RunCopy | None") -> int:
    orphaned = asyncio.get_running_loop().create_future()  # never: no process above this one can end before it
    return await agent_main.serve(config, orphaned, asked_to_end=Host.leave, copy=copy)


@contextmanager
def _shown(config: AgentConfig) -> Iterator[None]:
    """Have a thread show the events of the run and the output of this host's trainer."""
    console, errors = consoles(width=_COLUMNS)
    sees_events = config.host == 0 or config.url is None
    output = Output(config.directory, console, errors, host=config.host, sees_events=sees_events, in_pod=True)
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


def _leave(record: TerminationRecord) -> None:
    """Write the record where the kubelet looks for the container's termination message."""
    Path(pods.TERMINATION_LOG).write_text(record.dumps(), encoding="utf-8")


if __name__ == "__main__":
    main()
