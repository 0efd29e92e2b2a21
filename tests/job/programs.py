"""Jobs of an own program: a right one, and changes that are wrong by themselves."""

from tests.job.wrong_files import IN_CLUSTER

from shardwise.job.document import Document, read_document
from shardwise.job.overrides import apply_overrides

# One override that is wrong by itself, the path that the message names, and fragments of the rest.
WRONG = [
    ("program={}", "spec.program", ["expected either module or command"]),
    ("program={args: [a]}", "spec.program", ["expected either module or command"]),
    ("program={module: a.b, command: [python]}", "spec.program", ["expected either module or command"]),
    ("program.env={1ST: a}", "spec.program.env", ["letters, digits and '_', no digit first"]),
    ("program.env={'A B': a}", "spec.program.env", ["letters, digits and '_', no digit first"]),
    ("program.env={RANK: '1'}", "spec.program.env", ["none of RANK, WORLD_SIZE"]),
    ("program.env={SHARDWISE_RANK: '1'}", "spec.program.env", ["do not begin with SHARDWISE_, RAY_"]),
    ("preflight=plan", "spec.preflight", ["a plan compiles the trainer's step"]),
    ("hardware.accelerator=none", "spec.hardware.accelerator", ["cpu-sim"]),
    ("hardware.topology=1x999", "spec.hardware.topology", ["64"]),
    ("pod.directory=/elsewhere", "spec.pod.directory", ["a volume that all hosts share"]),
]


def program_job(*overrides: str) -> Document:
    """The job of `in-cluster.yaml` with a program in the place of its training."""
    document = read_document(IN_CLUSTER)
    del document.data["spec"]["training"]
    return apply_overrides(document, ["program={command: [python, my.py], args: [--fast]}", *overrides])
