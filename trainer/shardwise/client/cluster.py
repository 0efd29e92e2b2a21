"""A cluster's namespace: jobs are submitted there, and found there."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardwise.client.api import APPLY, Api
from shardwise.client.job import JOBS, ClusterJob
from shardwise.job.document import Document, read_document
from shardwise.job.load import check
from shardwise.job.overrides import apply_overrides
from shardwise.protocol.errors import UsageError

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
"""Of any object of a cluster. A path with another one would be that of other objects, or of all of them."""


class Cluster:
    """The training jobs of one namespace."""

    def __init__(
        self, *, namespace: str | None = None, context: str | None = None, kubeconfig: str | Path | None = None
    ) -> None:
        """Find the cluster as kubectl does.

        Args:
            namespace: None for that of the context.
            context: None for the current one.
            kubeconfig: None for $KUBECONFIG, ~/.kube/config, or the service account of the pod that this is.

        Raises:
            ClusterError: there is no such file or context.

        """
        self._api = Api(str(kubeconfig) if kubeconfig else None, context)
        self._wanted, self.namespace = namespace, namespace or self._api.namespace

    def submit(self, job: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> ClusterJob:
        """Apply a job: it is new, or changed, or goes on after `stop`.

        Args:
            job: the job file, or what is in one. What its author left out is not sent.
            overrides: changes as `--set` takes them, such as "training.steps=500".

        Raises:
            JobError: mistakes that can be seen here; nothing was sent.
            ClusterError: the API server refuses the job, and why.
            UsageError: the job names another namespace than was asked for.

        """
        document = Document(data=dict(job), places={}) if isinstance(job, Mapping) else read_document(Path(job))
        document = apply_overrides(document, overrides)
        metadata = check(document).metadata
        namespace = self._namespace_of(metadata.namespace)
        spec = {"suspend": False, **document.data["spec"]}
        path = JOBS.format(namespace=namespace) + f"/{metadata.name}"
        self._api.patch(path, {**document.data, "spec": spec}, APPLY)
        return ClusterJob(self._api, namespace, metadata.name)

    def job(self, name: str) -> ClusterJob:
        """Return the job of this name; whether it is there is found out when it is asked.

        Raises:
            UsageError: no job can have this name.

        """
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r}: expected the name of a job, lower-case letters, digits, '-' and '.', as `kubectl get tj` "
                "prints it"
            )
        return ClusterJob(self._api, self.namespace, name)

    def jobs(self) -> list[ClusterJob]:
        """Return the jobs that are there, by name."""
        found = self._api.get(JOBS.format(namespace=self.namespace))["items"]
        return [self.job(name) for name in sorted(each["metadata"]["name"] for each in found)]

    def _namespace_of(self, written: str | None) -> str:
        """Return where a job goes: the namespace that it names itself, or else this one."""
        if written and self._wanted and written != self._wanted:
            raise UsageError(f"the job's metadata.namespace is {written}, and {self._wanted} was asked for; give one")
        return written or self.namespace
