"""What the operator and the pods of a job agree on: labels, variables, ports, mounts, files, and what a pod leaves.

The operator renders it; the agent in a pod (`launcher/pod.py`) and the plan (`cli/plan.py`) read it.
"""

import json
from typing import Annotated

from pydantic import AfterValidator, Field

from shardwise.protocol.message import Count, Message, Seconds, ShortText
from shardwise.protocol.text import size, writable

# Labels of every pod of a job; written by the operator, never changed.
JOB_LABEL = "shardwise.dev/job"
SLICE_LABEL = "shardwise.dev/slice"  # which slice, from 0
HOST_LABEL = "shardwise.dev/host"  # which host of its slice, from 0
POD_ATTEMPT_LABEL = "shardwise.dev/attempt"  # how many pods this host has had before in the life of the job
ROUND_LABEL = "shardwise.dev/round"  # how often all pods were made anew, as by a resume

# What the pod that plans a job has in place of a slice and a host: its label, and its key among the job's pods.
PLAN_LABEL = "shardwise.dev/plan"
PLAN = "plan"

# The scheduling gate of a pod whose slice has no place yet.
SLICE_GATE = "shardwise.dev/slice"

# The container of a host's pod that is ours; that of a plan's pod is called as its key.
AGENT = "agent"

# Mounts. The scratch folder is an emptyDir, short because unix sockets lie in it.
JOB_MOUNT = "/etc/shardwise/job"
TOKEN_MOUNT = "/etc/shardwise/tokens"  # noqa: S105  a folder
SCRATCH_MOUNT = "/sw"
LOCAL_FOLDER = "local"  # in the scratch folder: what keeps local checkpoints, in memory, of a job that makes any
JOB_KEY = "job.yaml"  # the job as its author wrote it, but for `pod`
CLASS_KEY = "class.yaml"  # its accelerator class
GANG_TOKEN_KEY = "gang"  # noqa: S105  a file: what Ray and the agents know each other by; never leaves the pods
STATUS_TOKEN_KEY = "status"  # noqa: S105  a file: what opens the HTTP of host 0; the operator knows it too
TERMINATION_LOG = "/dev/termination-log"

# Where the agent of host 0 serves /status, /metrics, POST /save and POST /stop, and the others' polls.
AGENT_PORT = 8490

# The version of this module: another one if something changes its meaning, not if something is added. What is added has
# a default on the other side, so that an operator works with images of the release before its own. By 1 the operator
# gave host 0 a name for the others to find it by; since 2 they look into the run directory. With 3 the messages of the
# agents name attempts and Ray sessions.
CONTRACT = "3"
CONTRACTS = ("3",)  # those that an agent of this release understands

# Variables of the agent's container.
CONTRACT_VARIABLE = "SHARDWISE_POD_CONTRACT"  # by which number the pod was made
ADDRESS_VARIABLE = "SHARDWISE_POD_ADDRESS"  # the pod's own ip
RANK_VARIABLE = "SHARDWISE_POD_RANK"  # slice x hosts of a slice + host
POD_ATTEMPT_VARIABLE = "SHARDWISE_POD_ATTEMPT"  # as the label of that name
RUN_VARIABLE = "SHARDWISE_POD_RUN"  # names one round of one job
STARTED_VARIABLE = "SHARDWISE_POD_STARTED_AT"  # of the round, in seconds since the epoch
DIRECTORY_VARIABLE = "SHARDWISE_POD_DIRECTORY"  # the run directory, on a volume that all hosts see or in a bucket
OWN_VARIABLE_PREFIXES = ("SHARDWISE_", "TPU_", "MEGASCALE_", "JAX_", "RAY_", "XLA_")

# The kubelet keeps 12 KiB of a pod, and gives each container the same part, a service mesh's too. A record that it cuts
# is none: https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure.
TERMINATION_RECORD_BYTES = 12 * 1024 // 6  # so that five containers may be beside ours
_MOST_BYTES = 6  # of one character in JSON


def _a_number(text: str) -> str:
    """Return the text; ValueError if it is no number. "nan" is one."""
    float(text)
    return text


_Number = Annotated[ShortText, AfterValidator(_a_number)]
_Words = Annotated[str, AfterValidator(writable)]
_Bytes = Annotated[int, Field(ge=0, le=2**63)]  # one far beyond is too large even for a float, as words need it


class TerminationRecord(Message):
    """What an agent leaves of its run when it ends, in the termination message of its container.

    `code` is the run's exit code (`ExitCode`): all agents of a run that is over end with it, and so does one that
    cannot begin because its job or its volume is refused. It is None if this agent ended alone: its pod was told to go
    (and the run was saved, if there was time), or it failed. The host then needs another pod, and the run goes on.

    The other fields are None or empty if they are not known. `rank` and `exit` are those of the trainer that `cause` is
    about; `restarts` counts by cause; `goodput` is in seconds by category; `tail` is the end of that trainer's log.
    """

    code: int | None
    host: int
    attempt: int | None = None
    step: Count = 0
    steps: Count = 0
    loss: _Number | None = None
    held_out_loss: _Number | None = None
    checkpoint_step: Count | None = None
    digest: Annotated[str, Field(max_length=128)] | None = None
    restarts: Annotated[dict[ShortText, Count], Field(max_length=16)] = Field(default_factory=dict)
    goodput: dict[str, Seconds] = Field(default_factory=dict)
    cause: ShortText | None = None
    rank: int | None = None
    exit: _Words | None = None
    message: _Words
    tail: _Words = ""

    def dumps(self) -> str:
        """Return one line of at most `TERMINATION_RECORD_BYTES`; the log is cut from its beginning, then the message.

        All else of a run takes less than half of that, and stays whole.
        """
        record = self
        while (beyond := len(_line(record).encode()) - TERMINATION_RECORD_BYTES) > 0 and record.tail + record.message:
            cut = max(1, beyond // _MOST_BYTES)
            shorter = {"tail": record.tail[cut:]} if record.tail else {"message": record.message[:-cut]}
            record = record.model_copy(update=shorter)
        return _line(record)


def _line(record: TerminationRecord) -> str:
    # As UTF-8: in ASCII a character may take twelve bytes.
    return json.dumps(record.model_dump(mode="json"), ensure_ascii=False, separators=(",", ":"))


class Verdict(Message):
    """The result of a plan in short, for the termination message of its container.

    `needed_bytes` are those of one device at the peak of a step, 0 if the compiler refuses the program without a
    figure; `limit_bytes` what a device has, None if the class does not name it. `change` is a change that makes a job
    fit which does not, with its figures. `stand_in` is true if another compiler than the hardware's has judged it.
    """

    fits: bool | None
    needed_bytes: _Bytes
    limit_bytes: _Bytes | None
    change: str | None
    stand_in: bool

    @property
    def words(self) -> str:
        """Return one line for people."""
        there = size(self.limit_bytes) if self.limit_bytes else ""
        needed = f"peak {size(self.needed_bytes)} a device" + (f" of {there}" if there else "")
        if not self.needed_bytes:
            needed = f"the compiler finds no room for it in {there}"
        unknown = "" if there else "; the class does not say how much there is"
        change = f"; what makes it fit: {self.change}" if self.change else ""
        judged = "; judged by the compiler for CPUs, as the image has none for the class" if self.stand_in else ""
        return f"{needed}{unknown}{change}{judged}"

    def dumps(self) -> str:
        """Return one line of JSON, far below what a termination message may hold."""
        return self.model_dump_json()
