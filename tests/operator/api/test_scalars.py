"""YAML's odd scalars: kubectl with the API server, and our reader, come to the same verdict."""

from pathlib import Path

import pytest
from tests.cluster.client import Client
from tests.job.wrong_files import IN_CLUSTER

from shardwise.job.load import loads
from shardwise.protocol.errors import JobError

EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "kubernetes").glob("*.yaml"))


def text(field: str, scalar: str) -> str:
    """The job with one more field of `training`, written as it stands."""
    return IN_CLUSTER.read_text().replace("    seed: 0\n", f"    {field}: {scalar}\n")


def accepted_by_reader(document: str) -> bool:
    """Whether the loader takes the file."""
    try:
        loads(document)
    except JobError:
        return False
    return True


@pytest.mark.parametrize(
    ("field", "scalar", "is_right"),
    [
        ("evaluation", "{batches: 1e1}", True),
        ("evaluation", "{batches: 10.0}", True),
        ("evaluation", "{batches: 0o17}", True),
        ("evaluation", "{batches: 0x1F}", True),
        ("evaluation", "{batches: +7}", True),
        ("evaluation", "{batches: 1.5}", False),
        ("evaluation", "{batches: 1:30}", False),
        ("evaluation", "{batches: '10'}", False),
        ("loss", "{zLoss: 3e-4}", True),
        ("loss", "{zLoss: .5}", True),
        ("loss", "{zLoss: 1}", True),
        ("loss", "{zLoss: .inf}", False),
        ("loss", "{zLoss: '3e-4'}", False),
        ("tracking", "{tensorboard: True}", True),
        ("tracking", "{tensorboard: 1}", False),
        ("tracking", "{tensorboard: 'true'}", False),
        ("tracking", "{wandbProject: 1:30}", True),
        ("tracking", "{wandbProject: 2026}", False),
        ("tracking", "{wandbProject: 1.2.3}", True),
        ("evaluation", "{everySteps: ~, batches: '10'}", False),
    ],
)
def test_both_readers_agree(shardwise_api: Client, field: str, scalar: str, *, is_right: bool) -> None:
    """A file that one of them takes, the other takes; a file that one refuses, the other refuses."""
    document = text(field, scalar)
    words = ("apply", "--dry-run=server", "--filename", "-")
    if is_right:
        shardwise_api.kubectl(*words, stdin=document)
    else:
        shardwise_api.refused(*words, stdin=document)

    assert accepted_by_reader(document) is is_right


def test_whole_quantities_need_no_quotes(shardwise_api: Client) -> None:
    """`cpu: 2` is a quantity to both, as it is in a pod."""
    document = IN_CLUSTER.read_text().replace("cpu: 250m", "cpu: 2, example.com/thing: 1e3")
    shardwise_api.kubectl("apply", "--dry-run=server", "--filename", "-", stdin=document)

    assert accepted_by_reader(document)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.name))
def test_examples_are_taken(shardwise_api: Client, path: Path) -> None:
    """Every example for a cluster passes schema, rules and policy, and the reader."""
    shardwise_api.kubectl("apply", "--dry-run=server", "--filename", path)

    assert accepted_by_reader(path.read_text())


@pytest.mark.parametrize("scalar", ["on", "yes", "017", "1_000", "0b101", "~", ""])
def test_disputed_scalars_are_refused_by_our_reader(scalar: str) -> None:
    """What kubectl or the API server read in a way of their own (nothing is left out there) never passes the reader."""
    assert not accepted_by_reader(text("evaluation", f"{{batches: {scalar}}}"))
    assert not accepted_by_reader(text("tracking", f"{{tensorboard: {scalar}}}"))
