"""Jobs as a person writes them, and what the API server says to them."""

from typing import Any

from tests.cluster.client import Client
from tests.job.wrong_files import IN_CLUSTER

from shardwise.job.document import read_document
from shardwise.job.overrides import apply_overrides

JOBS = "/apis/shardwise.dev/v1alpha1/namespaces/default/trainingjobs"


def job(*overrides: str) -> dict[str, Any]:
    """The job of `in-cluster.yaml` with overrides, as data; JobError where an override is no YAML that we read."""
    return apply_overrides(read_document(IN_CLUSTER), overrides).data


def create(client: Client, manifest: dict[str, Any]) -> None:
    """Ask whether the server would take the job, as `kubectl apply` does; RefusedError where it would not."""
    client.request("POST", f"{JOBS}?dryRun=All&fieldValidation=Strict", manifest)
