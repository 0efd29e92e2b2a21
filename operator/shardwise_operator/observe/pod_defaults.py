"""What a platform team gives to the pods of every job. A job's own template goes over it.

It becomes a part of the round's snapshot, as the job and its class do: a change of it changes no pod of a running job.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from shardwise.job.document import parse_document
from shardwise.job.spec.base import Annotations, MarkKey
from shardwise.job.spec.pod import LabelValue
from shardwise.job.validate import validate_as
from shardwise.protocol.strict_model import StrictModel

_Name = Annotated[str, Field(min_length=1, max_length=253)]


class SecretReference(StrictModel):
    """A Secret of the job's namespace."""

    name: _Name = Field(description="Its name.")


class PodDefaults(StrictModel):
    """The part of a pod's template that may have defaults."""

    labels: dict[MarkKey, LabelValue] = Field(default_factory=dict, max_length=64, description="Labels.")
    annotations: Annotations = Field(default_factory=dict, max_length=64, description="Annotations.")
    image_pull_secrets: tuple[SecretReference, ...] = Field(
        (), strict=False, max_length=16, description="Secrets that open registries, beside the job's own."
    )
    service_account_name: _Name | None = Field(None, description="The service account, unless the job names one.")
    user_of_namespace: bool = Field(
        default=False, description="Name no user: admission gives the pods the numbers of their namespace."
    )

    def below(self, template: Mapping[str, Any]) -> dict[str, Any]:
        """Return a job's PodTemplateSpec with these defaults below it."""
        metadata, spec = dict(template.get("metadata", {})), dict(template.get("spec", {}))
        for field, marks in (("labels", self.labels), ("annotations", self.annotations)):
            if marks:
                metadata[field] = {**marks, **metadata.get(field, {})}
        if self.image_pull_secrets:
            own = [secret.get("name") for secret in spec.get("imagePullSecrets", [])]
            further = [{"name": each.name} for each in self.image_pull_secrets if each.name not in own]
            spec["imagePullSecrets"] = [*spec.get("imagePullSecrets", []), *further]
        if self.service_account_name:
            spec.setdefault("serviceAccountName", self.service_account_name)
        return {**template, **({"metadata": metadata} if metadata else {}), **({"spec": spec} if spec else {})}


def read_pod_defaults(text: str) -> PodDefaults:
    """Return the defaults that a text in JSON or YAML has; JobError if it is no such thing."""
    return validate_as(PodDefaults, parse_document(text, source="--pod-defaults"))


NO_DEFAULTS = PodDefaults()
