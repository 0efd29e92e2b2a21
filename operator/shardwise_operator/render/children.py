"""The objects beside the pods: what the round is made of, and who may speak to the pods."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from shardwise.protocol.pods import AGENT_PORT, JOB_LABEL
from shardwise_operator.observe.observed import Observed
from shardwise_operator.render.names import (
    MANAGED_BY_LABEL,
    MANAGER,
    SEAL_ANNOTATION,
    config_map_name,
    metadata,
    policy_name,
)
from shardwise_operator.render.secret import Tokens
from shardwise_operator.runtime.kinds import CONFIG_MAPS, NETWORK_POLICIES, Kind

_OPERATOR = {"app.kubernetes.io/name": "shardwise", "app.kubernetes.io/component": "operator"}  # as the chart's pods


class Child(NamedTuple):
    """An object that a round needs before its pods."""

    kind: Kind
    manifest: dict[str, Any]


def children(seen: Observed, operator_namespace: str, tokens: Tokens, *, policy: bool = True) -> Iterator[Child]:
    """Return missing objects that the pods need first, except the Secret, which the operator may not read."""
    assert seen.state.round is not None
    if not seen.has_child(CONFIG_MAPS, config_map_name(seen.name, seen.state.round)):
        yield Child(CONFIG_MAPS, config_map(seen, tokens))
    if policy and not seen.has_child(NETWORK_POLICIES, policy_name(seen.name)):
        yield Child(NETWORK_POLICIES, network_policy(seen, operator_namespace))


def config_map(seen: Observed, tokens: Tokens) -> dict[str, Any]:
    """Return what the pods of this round are made of, immutable, with the operator's seal."""
    round_, data = seen.state.round, seen.round_snapshot.data
    assert round_ is not None
    meta = metadata(seen, config_map_name(seen.name, round_))
    meta["annotations"] = {SEAL_ANNOTATION: tokens.seal(seen.uid, round_, data)}
    return CONFIG_MAPS.manifest(meta, immutable=True, data=data)


def network_policy(seen: Observed, operator_namespace: str) -> dict[str, Any]:
    """Return the policy by which a job's pods hear each other, and the operator's on the agent's port; nobody else."""
    own = {"matchLabels": {JOB_LABEL: seen.name, MANAGED_BY_LABEL: MANAGER}}
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": operator_namespace}},
        "podSelector": {"matchLabels": _OPERATOR},
    }
    ingress = [
        {"from": [{"podSelector": own}]},
        {"from": [operator], "ports": [{"port": AGENT_PORT, "protocol": "TCP"}]},
    ]
    spec = {"podSelector": own, "policyTypes": ["Ingress"], "ingress": ingress}
    return NETWORK_POLICIES.manifest(metadata(seen, policy_name(seen.name)), spec=spec)
