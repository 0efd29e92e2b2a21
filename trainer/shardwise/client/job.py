"""One training job in a cluster: its status as types, its end, the logs of its hosts."""

import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from shardwise.client.api import MERGE, Api, CutOffError
from shardwise.client.pods import Pods
from shardwise.client.untold import Untold
from shardwise.protocol.errors import ClusterError
from shardwise.protocol.job_status import JobStatus

JOBS = "/apis/shardwise.dev/v1alpha1/namespaces/{namespace}/trainingjobs"
RESTING = ("Complete", "Failed", "Suspended")
"""Phases in which nothing more happens by itself."""
_LOOK_SECONDS = 1.0
_NEEDED = {"phase", "observedGeneration"}  # without them nobody could say how a job stands, or wait for its end


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
        return Job(found["metadata"]["generation"], _what_fits(found.get("status", {}), self.name))

    @property
    def status(self) -> JobStatus:
        """The status of the job as it is."""
        return self.read().status

    def follow(self) -> Iterator[JobStatus]:
        """Yield the status whenever it has changed, until the job is complete, failed or suspended.

        An API server that has answered may be away for five minutes, which is said once on standard error.
        """
        asked, last = ClusterJob(self._api.patient(), self.namespace, self.name), None
        while last is None or not last.is_resting:
            if (job := asked.read()) != last:
                yield job.status
                last = job
            else:
                time.sleep(_LOOK_SECONDS)

    def wait(self) -> JobStatus:
        """Return the status with which the job comes to rest: complete, failed or suspended."""
        return deque(self.follow(), maxlen=1).pop()  # the others are not kept: a long run has hundreds of thousands

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
            follow: go on with what is written, and with the pod that replaces this one, until the job comes to rest; an
                API server that is away is waited for as `follow` does.

        """
        api = self._api.patient() if follow else self._api
        asked, pods = ClusterJob(api, self.namespace, self.name), Pods(api, self.namespace, self.name)
        pod, untold = "", Untold()
        while True:
            # Before the log: what is written before a job rests is in it.
            job = asked.read() if follow else None
            is_over = job is None or job.is_resting
            newest = pods.newest(host)
            hosts = job.status.hosts if job else None
            if newest is None and not pod and hosts and host >= hosts.of:
                raise ClusterError(f"tj/{self.name} has no host {host}: it has {hosts.of}, counted from 0")
            if newest is None and is_over and not pod:
                raise ClusterError(f"tj/{self.name} has no pod of host {host} in namespace {self.namespace}")
            if newest is not None:
                pod, untold = newest, untold if newest == pod else Untold()
                lines = pods.log(pod, follow=follow and not is_over, stamped=follow, since=untold.since)
                # Of a log that is asked for again, as while the next pod is awaited, what was told is passed over.
                try:
                    yield from untold.of(lines) if follow else lines
                except CutOffError:
                    if is_over:
                        raise
            if is_over:
                return
            time.sleep(_LOOK_SECONDS)


def _what_fits(given: Mapping[str, Any], name: str) -> JobStatus:
    """Return the status without the fields that do not fit this release; ClusterError if one of `_NEEDED` does not."""
    try:
        return JobStatus.model_validate(given, extra="ignore")
    except ValidationError as error:
        unfit = {each["loc"][0] for each in error.errors()}
        if strange := [f"{field} {given[field]}" for field in sorted(_NEEDED & unfit)]:
            raise ClusterError(
                f"tj/{name} has a status that this release cannot read ({', '.join(strange)}), "
                "as of a newer operator; update shardwise"
            ) from error
        return JobStatus.model_validate({key: given[key] for key in given.keys() - unfit}, extra="ignore")
