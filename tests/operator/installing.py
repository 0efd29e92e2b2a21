"""The types of jobs in an API server, as the chart brings them. For tests of the operator."""

from functools import partial
from pathlib import Path

from tests.cluster.client import Client
from tests.cluster.commands import wait
from tests.operator.building import CLASSES

_CRDS = Path(__file__).parents[2] / "charts" / "shardwise" / "crds"


def install_types(client: Client) -> None:
    """Have an API server know the CRDs and the classes."""
    client.kubectl("apply", "--server-side", "--filename", _CRDS)
    for plural in ("trainingjobs", "acceleratorclasses", "acceleratorcatalogs"):
        wait(plural, partial(client.answers, f"/apis/shardwise.dev/v1alpha1/{plural}"))
    client.kubectl("apply", "--server-side", "--filename", CLASSES)
