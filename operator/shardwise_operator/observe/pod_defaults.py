"""What a platform team gives to the pods of every job. A job's own template goes over it.

It becomes a part of the round's snapshot, as the job and its class do: a change of it changes no pod of a running job.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from shardwise.job.document import parse_document
from shardwise.job.load import as_data
from shardwise.job.spec.base import Annotations, Grammar, MarkKey
from shardwise.job.spec.pod import Toleration, VariableName
from shardwise.job.validate import validate_as
from shardwise.protocol.pods import AGENT, OWN_VARIABLE_PREFIXES
from shardwise.protocol.strict_model import StrictModel
from shardwise.protocol.text import any_of

_Name = Annotated[str, Field(min_length=1, max_length=253)]


def _free(name: str) -> str:
    if name.startswith(OWN_VARIABLE_PREFIXES):
        raise ValueError(f"expected a name that does not begin with {any_of(OWN_VARIABLE_PREFIXES)}")
    return name


def _of_label(key: str) -> str:
    if not re.fullmatch(_LABEL_KEY, key):
        raise ValueError("expected the key of a label: letters, digits, '-', '_' and '.' after PREFIX/, if it has one")
    return key


def _possible(toleration: Toleration) -> Toleration:
    if toleration.operator == "Exists" and toleration.value:
        raise ValueError("expected no value with Exists")
    if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
        raise ValueError("expected tolerationSeconds with NoExecute alone")
    return toleration


# As Kubernetes has them, which would refuse every pod of every job.
_NAME_OF_LABEL = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL_KEY = f"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_NAME_OF_LABEL}"
_Variable = Annotated[VariableName, AfterValidator(_free)]
_Labels = dict[
    Annotated[MarkKey, AfterValidator(_of_label)],
    Annotated[
        str,
        Field(max_length=63, pattern=f"^({_NAME_OF_LABEL})?$"),
        Grammar("letters, digits, '-', '_' and '.', a letter or digit first and last"),
    ],
]


class SecretReference(StrictModel):
    """A Secret of the job's namespace."""

    name: _Name = Field(description="Its name.")


class PodDefaults(StrictModel):
    """The part of a pod's template that may have defaults."""

    labels: _Labels = Field(default_factory=dict, max_length=64, description="Labels.")
    annotations: Annotations = Field(default_factory=dict, max_length=64, description="Annotations.")
    env: dict[_Variable, Annotated[str, Field(max_length=32768)]] = Field(
        default_factory=dict, max_length=64, description="Variables of the trainers, over those of the class."
    )
    node_selector: _Labels = Field(
        default_factory=dict, max_length=64, description="Labels of the nodes, beside those that the class asks for."
    )
    tolerations: tuple[Annotated[Toleration, AfterValidator(_possible)], ...] = Field(
        (), strict=False, max_length=16, description="Taints that the pods may ignore, beside the job's own."
    )
    image_pull_secrets: tuple[SecretReference, ...] = Field(
        (), strict=False, max_length=16, description="Secrets that open registries, beside the job's own."
    )
    service_account_name: _Name | None = Field(None, description="The service account, unless the job names one.")
    runtime_class_name: _Name | None = Field(
        None, description="The RuntimeClass, such as gVisor's or nvidia, unless the job names one."
    )
    user_of_namespace: bool = Field(
        default=False, description="Name no user: admission gives the pods the numbers of their namespace."
    )

    def below(self, template: Mapping[str, Any]) -> dict[str, Any]:
        """Return a job's PodTemplateSpec with these defaults below it."""
        metadata, spec = dict(template.get("metadata", {})), dict(template.get("spec", {}))
        maps = ((metadata, "labels", self.labels), (metadata, "annotations", self.annotations))
        for group, field, given in (*maps, (spec, "nodeSelector", self.node_selector)):
            if given:
                group[field] = {**given, **group.get(field, {})}
        if self.env:
            spec["containers"] = self._with_env(spec.get("containers", []))
        if self.tolerations:
            spec["tolerations"] = [*spec.get("tolerations", []), *map(as_data, self.tolerations)]
        if self.image_pull_secrets:
            own = [secret.get("name") for secret in spec.get("imagePullSecrets", [])]
            further = [{"name": each.name} for each in self.image_pull_secrets if each.name not in own]
            spec["imagePullSecrets"] = [*spec.get("imagePullSecrets", []), *further]
        for field, name in (
            ("serviceAccountName", self.service_account_name),
            ("runtimeClassName", self.runtime_class_name),
        ):
            if name:
                spec.setdefault(field, name)
        return {**template, **({"metadata": metadata} if metadata else {}), **({"spec": spec} if spec else {})}

    def _with_env(self, containers: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return the containers with the variables in the agent's, which a template need not have."""
        agent: Mapping[str, Any] = next((each for each in containers if each["name"] == AGENT), {"name": AGENT})
        own = agent.get("env", [])
        named = {each["name"] for each in own}
        further = [{"name": name, "value": value} for name, value in self.env.items() if name not in named]
        return [{**agent, "env": [*further, *own]}, *(each for each in containers if each["name"] != AGENT)]


def read_pod_defaults(text: str) -> PodDefaults:
    """Return the defaults that a text in JSON or YAML has; JobError if it is no such thing."""
    return validate_as(PodDefaults, parse_document(text, source="--pod-defaults"))


NO_DEFAULTS = PodDefaults()
