"""The manifests of an admission policy of jobs, and of the binding by which it holds everywhere."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardwise_operator.runtime.kinds import POLICIES, POLICY_BINDINGS, TRAINING_JOBS


def admission(
    about: str,
    conditions: Mapping[str, str],
    *,
    variables: Mapping[str, str],
    validations: Sequence[Mapping[str, str]],
    spec: Mapping[str, Any] | None = None,
    binding: Mapping[str, Any] | None = None,
) -> dict[str, dict[str, Any]]:
    """Return a policy and its binding, by the names of their files. No write of a status is held against it.

    Args:
        about: what it is about, the end of its name.
        conditions: by name, in CEL, what must hold for a job to be looked at.
        variables: by name, in CEL, in the order of their use.
        validations: what must hold, with messages, as the API server takes them.
        spec: further fields of the policy.
        binding: further fields of the binding.

    """
    name = f"shardwise-{about}"
    jobs = {
        "apiGroups": [TRAINING_JOBS.group],
        "apiVersions": [TRAINING_JOBS.version],
        "operations": ["CREATE", "UPDATE"],
        "resources": [TRAINING_JOBS.plural],
    }
    policy = {
        "failurePolicy": "Fail",
        **(spec or {}),
        "matchConstraints": {"resourceRules": [jobs]},
        "matchConditions": _named(conditions),
        "variables": _named(variables),
        "validations": list(validations),
    }
    bound = {"policyName": name, **(binding or {}), "validationActions": ["Deny"]}
    return {
        about: POLICIES.manifest({"name": name}, spec=policy),
        f"{about}-binding": POLICY_BINDINGS.manifest({"name": name}, spec=bound),
    }


def _named(expressions: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "expression": expression} for name, expression in expressions.items()]
