"""A real API server with the CRDs, classes, catalogue and policies that are checked in."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.api_server import ApiServer
from tests.cluster.client import Client, RefusedError
from tests.cluster.commands import wait

from shardwise.job.accelerators import BUILT_IN
from shardwise.job.load import as_data
from shardwise_operator.api.catalog import catalog_of

CHART = Path(__file__).parents[3] / "charts" / "shardwise"
APPLY = "application/apply-patch+yaml"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
API = "/apis/shardwise.dev/v1alpha1"
BINDING = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/shardwise-jobs"


@pytest.fixture(scope="session")
def shardwise_api() -> Iterator[Client]:
    """Return the client of an API server that knows Shardwise's objects; its namespace default is for everybody."""
    with ApiServer() as server:
        client = server.client
        for path in sorted((CHART / "crds").glob("*.yaml")):
            client.kubectl("apply", "--server-side", "--filename", path)
        wait("the CRDs", lambda: client.answers(f"{API}/acceleratorcatalogs") and client.answers(f"{API}/trainingjobs"))
        client.kubectl("apply", "--filename", CHART / "files" / "classes")
        client.kubectl("apply", "--server-side", "--filename", "-", stdin=yaml.safe_dump(_catalog()))
        client.kubectl("apply", "--filename", CHART / "files" / "policy")
        wait("the policies", lambda: works(client, "accelerators") and works(client, "jobs"))
        yield client


@contextmanager
def without_policy_of_jobs(client: Client) -> Iterator[None]:
    """Leave the policy of classes alone there as long as this lasts."""
    client.request("DELETE", BINDING)
    try:
        wait("the policy to be gone", lambda: not works(client, "jobs"))
        yield
    finally:
        client.kubectl("apply", "--filename", CHART / "files" / "policy" / "jobs-binding.yaml")
        wait("the policy", lambda: works(client, "jobs"))


def _catalog() -> dict[str, Any]:
    return catalog_of(as_data(accelerator) for accelerator in BUILT_IN.values())


def works(client: Client, policy: str) -> bool:
    """Whether the policy refuses a job on a class that there is not, whose warm-up is longer than it is."""
    from tests.operator.api.jobs import create, job  # noqa: PLC0415  reads no fixture, and conftest comes first

    wrong = {"accelerators": "hardware.accelerator=none", "jobs": "training.optimizer.schedule={warmupSteps: 1000000}"}
    try:
        create(client, job(wrong[policy]))
    except RefusedError as refusal:
        return f"ValidatingAdmissionPolicy 'shardwise-{policy}'" in str(refusal)
    return False
