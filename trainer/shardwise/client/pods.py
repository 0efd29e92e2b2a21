"""The pods of a job in a cluster, and their logs."""

from collections.abc import Iterator, Mapping
from typing import Any

from shardwise.client.api import Api, NotFoundError
from shardwise.protocol.errors import ClusterError
from shardwise.protocol.pods import AGENT, HOST_LABEL, JOB_LABEL, POD_ATTEMPT_LABEL, RANK_VARIABLE, ROUND_LABEL

_NO_LOG_YET = ("ContainerCreating", "PodInitializing", "is waiting to start", "not have a host assigned")


class Pods:
    """The pods of one job."""

    def __init__(self, api: Api, namespace: str, job: str) -> None:
        self._api, self._job, self._path = api, job, f"/api/v1/namespaces/{namespace}/pods"

    def newest(self, host: int) -> str | None:
        """Return the name of the last pod that a host has had; None if it has none now."""
        pods = self._api.get(self._path, labelSelector=f"{JOB_LABEL}={self._job},{HOST_LABEL}")["items"]
        its_own = [pod for pod in pods if _rank(pod) == host]
        return str(max(its_own, key=_order)["metadata"]["name"]) if its_own else None

    def log(self, pod: str, *, follow: bool, stamped: bool, since: str | None = None) -> Iterator[str]:
        """Yield the lines of a pod's log, with their times if asked; none if it has no log yet, or is gone.

        With `since`, a time, older lines are left out.
        """
        path = f"{self._path}/{pod}/log"
        try:
            asked = {name: "true" for name, wanted in (("follow", follow), ("timestamps", stamped)) if wanted}
            asked |= {"sinceTime": since} if since else {}
            yield from self._api.lines(path, container=AGENT, **asked)
        except NotFoundError:  # it was replaced between two requests
            return
        except ClusterError as error:
            if not any(words in str(error) for words in _NO_LOG_YET):
                raise


def _rank(pod: Mapping[str, Any]) -> int:
    """Return which host of the job a pod is, counted over all slices, as its agent is told."""
    agent = next(each for each in pod["spec"]["containers"] if each["name"] == AGENT)
    return int(next(each["value"] for each in agent["env"] if each["name"] == RANK_VARIABLE))


def _order(pod: Mapping[str, Any]) -> tuple[int, int]:
    """Return round and attempt: in another round a host may have another place, which counts pods of its own."""
    labels = pod["metadata"]["labels"]
    return int(labels[ROUND_LABEL]), int(labels[POD_ATTEMPT_LABEL])
