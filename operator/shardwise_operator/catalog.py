"""What follows from the classes: the AcceleratorCatalog, all of them in one object, and the watches of their nodes.

The admission policy looks things up in the catalogue. Called by the controller when a class changes, or the catalogue
itself, which others may edit or delete. It knows the cluster's classes only, and no job.
"""

import logging

from shardwise_operator.api.catalog import catalog_of
from shardwise_operator.node_watch import NodeWatch
from shardwise_operator.runtime.cache import Cache
from shardwise_operator.runtime.kinds import ACCELERATOR_CATALOGS, ACCELERATOR_CLASSES
from shardwise_operator.runtime.transport import Api

# In no namespace, where no job is.
CATALOG_KEY = ("", "accelerator-catalog")

_log = logging.getLogger(__name__)


class Catalog:
    """The one object, and what it is made from."""

    def __init__(self, cache: Cache, api: Api, nodes: NodeWatch) -> None:
        """Read the classes from `cache`, write through `api`, have `nodes` watch what they name."""
        self._cache, self._api, self._nodes = cache, api, nodes

    def reconcile(self) -> None:
        """Make the catalogue say what the classes say, and watch their nodes."""
        self._nodes.reconcile()
        wanted = catalog_of(self._cache.list(ACCELERATOR_CLASSES))
        found = self._cache.get(ACCELERATOR_CATALOGS, "", wanted["metadata"]["name"])
        if found is None:
            self._api.create(ACCELERATOR_CATALOGS, wanted)
        elif found.get("spec") != wanted["spec"]:  # as a whole: an applied list would keep what somebody has added
            version = {"resourceVersion": found["metadata"]["resourceVersion"]}
            self._api.replace(ACCELERATOR_CATALOGS, {**wanted, "metadata": {**wanted["metadata"], **version}})
        else:
            return
        _log.info("the catalogue holds %d classes", len(wanted["spec"]["classes"]))
