"""The objects beside the pods: what the round is made of, and who may speak to the pods."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from shardwise.protocol.pods import AGENT_PORT, JOB_LABEL
from shardwise_operator.observe.observed import Observed
from shardwise_operator.render.names import MANAGED_BY_LABEL, MANAGER, config_map_name, metadata, policy_name
from shardwise_operator.runtime.kinds import CONFIG_MAPS, NETWORK_POLICIES, Kind

_OPERATOR = {"app.kubernetes.io/name": "shardwise", "app.kubernetes.io/component": "operator"}  # as the chart's pods


@dataclass(frozen=True)
class Child:
    """An object that a round needs before its pods: its name, and how it is rendered where it is missing."""

    kind: Kind
    name: str
    render: Callable[[], dict[str, Any]]

    @property
    def manifest(self) -> dict[str, Any]:
        """The object."""
        return self.render()


def children(seen: Observed, operator_namespace: str, *, policy: bool = True) -> Iterator[Child]:
    """Every object that a round needs before its pods, but the Secret, which nobody may look for; with its `policy`."""
    assert seen.state.round is not None
    yield Child(CONFIG_MAPS, config_map_name(seen.name, seen.state.round), lambda: config_map(seen))
    if policy:
        yield Child(NETWORK_POLICIES, policy_name(seen.name), lambda: network_policy(seen, operator_namespace))


def config_map(seen: Observed) -> dict[str, Any]:
    """What the pods of this round are made of, immutable."""
    assert seen.state.round is not None
    meta = metadata(seen, config_map_name(seen.name, seen.state.round))
    return CONFIG_MAPS.manifest(meta, immutable=True, data=seen.round_snapshot.data)


def network_policy(seen: Observed, operator_namespace: str) -> dict[str, Any]:
    """The job's pods hear each other, and the operator's pods on the agent's port; nobody else."""
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
