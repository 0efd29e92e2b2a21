"""What the operator and the pods of a job agree on: labels, variables, ports, mounts, files, and what a pod leaves.

The operator renders it (`shardwise_operator`), the agent in a pod reads it (`launcher/pod.py`), and so does the plan
(`cli/plan.py`); they meet nowhere else.
"""

import json
from dataclasses import asdict, dataclass, replace
from typing import Annotated

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from shardwise.job.words import size

# Labels of every pod of a job; written by the operator, never changed.
JOB_LABEL = "shardwise.dev/job"
SLICE_LABEL = "shardwise.dev/slice"  # which slice, from 0
HOST_LABEL = "shardwise.dev/host"  # which host of its slice, from 0
ATTEMPT_LABEL = "shardwise.dev/attempt"  # how many pods this host has had before in the life of the job
ROUND_LABEL = "shardwise.dev/round"  # how often the job was resumed

# What the pod that plans a job has in place of a slice and a host: its label, and its key among the job's pods.
PLAN_LABEL = "shardwise.dev/plan"
PLAN = "plan"

# The scheduling gate of a pod whose slice has no place yet.
SLICE_GATE = "shardwise.dev/slice"

# Mounts. The scratch folder is an emptyDir, short because unix sockets lie in it.
JOB_MOUNT = "/etc/shardwise/job"
TOKEN_MOUNT = "/etc/shardwise/tokens"  # noqa: S105  a folder
SCRATCH_MOUNT = "/sw"
JOB_KEY = "job.yaml"  # the job as its author wrote it, but for `pod`
CLASS_KEY = "class.yaml"  # its accelerator class
GANG_TOKEN_KEY = "gang"  # noqa: S105  a file: what Ray and the agents know each other by; never leaves the pods
STATUS_TOKEN_KEY = "status"  # noqa: S105  a file: what reads and asks at host 0; the operator knows it too
TERMINATION_LOG = "/dev/termination-log"

# Where the agent of host 0 serves /status, /metrics, POST /save and POST /stop, and the others' polls.
AGENT_PORT = 8490

# What this module says, as a number: another one where something changes its meaning, not where something is added.
# What is added has a default on the other side, so that an operator works with images of the release before its own.
# By 1 the operator gave host 0 a name, and told it to the others, which look into the run directory by 2.
CONTRACT = "2"
CONTRACTS = ("1", "2")  # by which an agent of this release finds its part

# Variables of the agent's container.
CONTRACT_VARIABLE = "SHARDWISE_POD_CONTRACT"  # by which number the pod was made
ADDRESS_VARIABLE = "SHARDWISE_POD_ADDRESS"  # the pod's own ip
RANK_VARIABLE = "SHARDWISE_POD_RANK"  # slice x hosts of a slice + host
ATTEMPT_VARIABLE = "SHARDWISE_POD_ATTEMPT"  # as the label of that name
RUN_VARIABLE = "SHARDWISE_POD_RUN"  # names one round of one job
STARTED_VARIABLE = "SHARDWISE_POD_STARTED_AT"  # of the round, in seconds since the epoch
DIRECTORY_VARIABLE = "SHARDWISE_POD_DIRECTORY"  # the run directory, on a volume that all hosts see
OWN_VARIABLE_PREFIXES = ("SHARDWISE_", "TPU_", "MEGASCALE_", "JAX_", "RAY_", "XLA_")

LAST_RECORD_BYTES = 4096
_MOST_BYTES = 12  # of one character in JSON

_Count = Annotated[int, Field(ge=0, le=2**31 - 1)]  # as in the CRD, which would refuse a status that passes it
_Word = Annotated[str, Field(max_length=63)]


def _a_number(text: str) -> str:
    """The text, ValueError where it is no number; "nan" is one."""
    float(text)
    return text


_Number = Annotated[_Word, AfterValidator(_a_number)]
_Seconds = Annotated[float, Field(ge=0.0, le=1e12, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class LastRecord:
    """What an agent says of its run when it ends, in the termination message of its container.

    `code` is the run's exit code (`ExitCode`), which all agents of a run that is over say and end with, and one that
    cannot begin, because its job or its volume is refused. It is None where this agent ended alone: its pod was told to
    go, for which the run was saved if there was time, or it failed. The host then needs another pod, and the run goes
    on. The other fields are None or empty where they are not known, `incarnation` is -1 before the first. `rank` and
    `exit` are those of the trainer that `cause` is about; `restarts` counts by cause; `tail` is the end of its log.
    """

    code: int | None
    host: int
    incarnation: int
    step: _Count
    steps: _Count
    loss: _Number | None
    checkpoint_step: _Count | None
    digest: Annotated[str, Field(max_length=128)] | None
    restarts: Annotated[dict[_Word, _Count], Field(max_length=16)]
    goodput: dict[str, _Seconds]
    cause: _Word | None
    rank: int | None
    exit: str | None
    message: str
    tail: str

    def dumps(self) -> str:
        """One line of JSON of at most `LAST_RECORD_BYTES`; the tail loses its beginning first, then the message."""
        record = self
        while len(line := json.dumps(asdict(record)).encode()) > LAST_RECORD_BYTES:
            beyond = len(line) - LAST_RECORD_BYTES
            if record.tail:
                record = replace(record, tail=record.tail[max(1, beyond // _MOST_BYTES) :])
            else:
                record = replace(record, message=record.message[: -max(1, beyond // _MOST_BYTES)])
        return line.decode()

    @classmethod
    def loads(cls, line: str) -> "LastRecord | None":
        """The inverse of `dumps`; None for what is no record, which a container that was killed leaves.

        What a newer release has added is left out.
        """
        try:
            return _RECORD.validate_json(line)
        except ValidationError:
            return None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a plan says of a job, in short, for the termination message of its container.

    `needed_bytes` are those of one device at the peak of a step, 0 where the compiler refuses the program without a
    figure; `limit_bytes` what a device has, None where the class does not say it. `change` is one with which a job that
    does not fit fits, with its figures. `stand_in` is whether another compiler than the hardware's has judged it.
    """

    fits: bool | None
    needed_bytes: int
    limit_bytes: int | None
    change: str | None
    stand_in: bool

    @property
    def words(self) -> str:
        """One line for people."""
        there = size(self.limit_bytes) if self.limit_bytes else ""
        needed = f"peak {size(self.needed_bytes)} a device" + (f" of {there}" if there else "")
        if not self.needed_bytes:
            needed = f"the compiler finds no room for it in {there}"
        unknown = "" if there else "; the class does not say how much there is"
        change = f"; what makes it fit: {self.change}" if self.change else ""
        judged = "; judged by the compiler for CPUs, as the image has none for the class" if self.stand_in else ""
        return f"{needed}{unknown}{change}{judged}"

    def dumps(self) -> str:
        """One line of JSON, far below what a termination message may hold."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, line: str) -> "Verdict | None":
        """The inverse of `dumps`; None for what is no verdict, such as the last lines of a log."""
        try:
            return _VERDICT.validate_json(line)
        except ValidationError:
            return None


_RECORD, _VERDICT = TypeAdapter(LastRecord), TypeAdapter(Verdict)
