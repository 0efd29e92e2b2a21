"""Keep the AcceleratorCatalog equal to the classes, and their nodes watched.

The catalogue has all classes in one object, in which the admission policy looks them up. It is reconciled when a class
changes, or the catalogue itself, which others may edit or delete.
"""

import logging

from shardwise_operator.api.catalog import catalog_of
from shardwise_operator.observe.nodes import NodeWatch
from shardwise_operator.runtime.cache import Cache
from shardwise_operator.runtime.kinds import ACCELERATOR_CATALOGS, ACCELERATOR_CLASSES
from shardwise_operator.runtime.transport import Api

# Not a job's key: it has no namespace.
CATALOG_KEY = ("", "accelerator-catalog")

_log = logging.getLogger(__name__)


class Catalog:
    """The one AcceleratorCatalog of the cluster."""

    def __init__(self, cache: Cache, api: Api, nodes: NodeWatch) -> None:
        """Read the classes from `cache`, write through `api`, have `nodes` watch what they name."""
        self._cache, self._api, self._nodes = cache, api, nodes

    def reconcile(self) -> float | None:
        """Write the catalogue if it differs from the classes, and watch the nodes of every class.

        Return in how many seconds to do so again though no class changed, None for never.
        """
        again_seconds = self._nodes.reconcile()
        wanted = catalog_of(self._cache.list(ACCELERATOR_CLASSES))
        found = self._cache.get(ACCELERATOR_CATALOGS, "", wanted["metadata"]["name"])
        if found is None:
            self._api.create(ACCELERATOR_CATALOGS, wanted)
        elif found.get("spec") != wanted["spec"]:
            # Replaced as a whole: an apply would keep what others have added to its list.
            version = {"resourceVersion": found["metadata"]["resourceVersion"]}
            self._api.replace(ACCELERATOR_CATALOGS, {**wanted, "metadata": {**wanted["metadata"], **version}})
        else:
            return again_seconds
        _log.info("the catalogue holds %d classes", len(wanted["spec"]["classes"]))
        return again_seconds
