"""What keeps the cluster's packets on the machine, where Docker is one of our own. Called by `engine`.

A packet to a Service that has no rule yet would leave by the default route, and something out there may answer it.
"""

from tests.cluster.commands import attempt, run
from tests.cluster.kind.places import BRIDGE, NODE_NETWORK, POD_NETWORK, SERVICE_NETWORK

_RANGES = f"{{ {NODE_NETWORK}, {POD_NETWORK}, {SERVICE_NETWORK} }}"
_RULES = f"""
table ip shardwise-kind {{
    chain outbound {{
        type filter hook postrouting priority filter;
        oifname {{ "{BRIDGE}", "lo" }} accept
        ip daddr {_RANGES} drop
        ip saddr {_RANGES} drop
    }}
}}
"""


def keep_inside() -> None:
    """From now on nothing from or to the cluster's ranges leaves the machine."""
    run("nft", "-f", "-", stdin=_RULES)


def remove() -> None:
    """Remove the table, and the bridge that a crashed Docker leaves; what is not there is no failure."""
    attempt("nft", "delete", "table", "ip", "shardwise-kind")
    attempt("ip", "link", "delete", BRIDGE)
