"""One training job in a cluster: its status as types, its end, the logs of its hosts."""

import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from shardwise.client.api import MERGE, Api, NotFoundError
from shardwise.protocol.errors import ClusterError
from shardwise.protocol.job_status import JobStatus
from shardwise.protocol.pods import AGENT, HOST_LABEL, JOB_LABEL, POD_ATTEMPT_LABEL, RANK_VARIABLE, ROUND_LABEL

JOBS = "/apis/shardwise.dev/v1alpha1/namespaces/{namespace}/trainingjobs"
RESTING = ("Complete", "Failed", "Suspended")
"""Phases in which nothing more happens by itself."""
_LOOK_SECONDS = 1.0
_NO_LOG_YET = ("ContainerCreating", "PodInitializing", "is waiting to start", "not have a host assigned")


class Job(NamedTuple):
    """A job as the API server has it: `generation` counts changes of its spec, which the operator may not know yet."""

    generation: int
    status: JobStatus

    @property
    def is_resting(self) -> bool:
        """Whether nothing more happens by itself; what the operator has not looked at yet may still begin."""
        return self.status.observed_generation == self.generation and self.status.phase in RESTING


class ClusterJob:
    """A job by its name; every method asks the API server, and raises ClusterError where it refuses."""

    def __init__(self, api: Api, namespace: str, name: str) -> None:
        self._api, self.namespace, self.name = api, namespace, name
        self._path = f"{JOBS.format(namespace=namespace)}/{name}"

    def read(self) -> Job:
        """Return the job as it is; what a newer operator has added to its status is left out."""
        found = self._api.get(self._path)
        status = JobStatus.model_validate(found.get("status", {}), extra="ignore")
        return Job(found["metadata"]["generation"], status)

    @property
    def status(self) -> JobStatus:
        """The status of the job as it is."""
        return self.read().status

    def follow(self) -> Iterator[JobStatus]:
        """Yield the status whenever it has changed, until the job is complete, failed or suspended."""
        last: Job | None = None
        while last is None or not last.is_resting:
            if (job := self.read()) != last:
                yield job.status
                last = job
            else:
                time.sleep(_LOOK_SECONDS)

    def wait(self) -> JobStatus:
        """Return the status with which the job comes to rest: complete, failed or suspended."""
        *_, last = self.follow()
        return last

    def stop(self) -> None:
        """Suspend the job: it is saved, and its pods are given back. `Cluster.submit` goes on with it."""
        self._api.patch(self._path, {"spec": {"suspend": True}}, MERGE)

    def delete(self) -> None:
        """Delete the job and its pods; the run directory and the checkpoints stay."""
        self._api.delete(self._path)

    def logs(self, host: int = 0, *, follow: bool = False) -> Iterator[str]:
        """Yield the lines of a host's newest pod, each with its newline.

        Args:
            host: counted over all slices, from 0.
            follow: go on with what is written, and with the pod that replaces this one, until the job comes to rest.

        """
        pod, told = "", 0
        while True:
            # Before the log: what is written before a job rests is in it.
            is_over = not follow or self.read().is_resting
            newest = self._newest_pod(host)
            if newest is None and is_over and not pod:
                raise ClusterError(f"tj/{self.name} has no pod of host {host} in namespace {self.namespace}")
            if newest is not None:
                pod, told = newest, told if newest == pod else 0
                # Of a log that is asked for again after its connection was cut, what has been told is passed over.
                for number, line in enumerate(self._log(pod, follow=follow and not is_over)):
                    if number >= told:
                        told = number + 1
                        yield line
            if is_over:
                return
            time.sleep(_LOOK_SECONDS)

    def _log(self, pod: str, *, follow: bool) -> Iterator[str]:
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/log"
        try:
            yield from self._api.lines(path, container=AGENT, **({"follow": "true"} if follow else {}))
        except NotFoundError:  # it was replaced between two requests
            return
        except ClusterError as error:
            if not any(words in str(error) for words in _NO_LOG_YET):
                raise

    def _newest_pod(self, host: int) -> str | None:
        """Return the name of the last pod that a host has had; None if it has none now."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        pods = self._api.get(path, labelSelector=f"{JOB_LABEL}={self.name},{HOST_LABEL}")["items"]
        its_own = [pod for pod in pods if _rank(pod) == host]
        return str(max(its_own, key=_order)["metadata"]["name"]) if its_own else None


def _rank(pod: Mapping[str, Any]) -> int:
    """Return which host of the job a pod is, counted over all slices, as its agent is told."""
    agent = next(each for each in pod["spec"]["containers"] if each["name"] == AGENT)
    return int(next(each["value"] for each in agent["env"] if each["name"] == RANK_VARIABLE))


def _order(pod: Mapping[str, Any]) -> tuple[int, int]:
    """Return round and attempt: in another round a host may have another place, which counts pods of its own."""
    labels = pod["metadata"]["labels"]
    return int(labels[ROUND_LABEL]), int(labels[POD_ATTEMPT_LABEL])
