"""An operator as a process, for the tests of leadership: while it leads it counts up in a ConfigMap, and signs.

python counting_operator.py KUBECONFIG NAMESPACE IDENTITY
"""

import logging
import sys
from collections.abc import Sequence

from shardwise_operator.runtime.cache import Cache
from shardwise_operator.runtime.connection import connect
from shardwise_operator.runtime.elector import Elector, Timing
from shardwise_operator.runtime.kinds import CONFIG_MAPS
from shardwise_operator.runtime.manager import Manager, Watch, stop_on_signals
from shardwise_operator.runtime.metrics import Metrics
from shardwise_operator.runtime.pace import Limiter
from shardwise_operator.runtime.queue import Key, WorkQueue
from shardwise_operator.runtime.transport import Api


class Counting:
    """Reconciles one ConfigMap for ever."""

    def __init__(self, api: Api, identity: str) -> None:
        self._api = api
        self._identity = identity

    @property
    def watches(self) -> Sequence[Watch]:
        """The ConfigMap called counter."""
        return [
            Watch(kind=CONFIG_MAPS, keys=lambda o: [(o["metadata"]["namespace"], "counter")], labels="test=counter")
        ]

    def reconcile(self, key: Key) -> float:
        """Count up once, on what is there now, and again soon."""
        counter = self._api.get(CONFIG_MAPS, *key)
        counter["data"] = {"by": self._identity, "count": str(int(counter["data"]["count"]) + 1)}
        self._api.replace(CONFIG_MAPS, counter)
        return 0.05


def main(kubeconfig: str, namespace: str, identity: str) -> None:
    """Run until SIGTERM, or until the Lease is lost."""
    logging.basicConfig(level=logging.INFO)
    metrics, connection = Metrics(), connect(kubeconfig)
    own = Api(connection, metrics, limiter=Limiter(50, 50), read_seconds=1)
    timing = Timing(lease=6, renew=4, retry=0.5)
    elector = Elector(own, namespace=namespace, name="operator", identity=identity, timing=timing)
    api = Api(connection, metrics, limiter=Limiter(50, 50), may_write=elector.leads)
    queue = WorkQueue(metrics)
    manager = Manager(api, Cache(), queue, elector, metrics, workers=2, namespace=namespace)
    manager.run(Counting(api, identity), stop_on_signals())


if __name__ == "__main__":
    main(*sys.argv[1:])
