"""An operator in this process, on a real API server, with stand-ins for what a machine without nodes has not got.

`Operator` runs the real manager, caches, queue and controller in threads. `StandInAgents` answers for host 0 of every
job. `StandInKubelet` brings pods to the states that a scheduler and a kubelet would bring them to.
"""

import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from tests.cluster.client import Client, RefusedError
from tests.cluster.commands import wait

from shardwise.protocol.pods import TerminationRecord, Verdict
from shardwise.protocol.run_status import RunProgress, RunSummary
from shardwise_operator.config import Settings
from shardwise_operator.controller import JobController
from shardwise_operator.job_metrics import JobMetrics
from shardwise_operator.observe.agents import AgentError, Agents, Target
from shardwise_operator.observe.nodes import NodeWatch
from shardwise_operator.observe.observe import Observer
from shardwise_operator.observe.poll import Poller
from shardwise_operator.render.secret import Tokens
from shardwise_operator.runtime.cache import Cache
from shardwise_operator.runtime.connection import connect
from shardwise_operator.runtime.elector import Elector
from shardwise_operator.runtime.manager import Manager
from shardwise_operator.runtime.metrics import Metrics
from shardwise_operator.runtime.pace import Limiter
from shardwise_operator.runtime.queue import WorkQueue
from shardwise_operator.runtime.recorder import Recorder
from shardwise_operator.runtime.tracing import Tracing, checked_endpoint
from shardwise_operator.runtime.transport import Api
from shardwise_operator.write.apply import Applier
from shardwise_operator.write.catalog import Catalog
from shardwise_operator.write.requests import Requests
from shardwise_operator.write.spans import Traces

_SECONDS = 300.0  # before a test gives up; nothing is measured with it
MERGE = "application/merge-patch+json"


class StandInAgents(Agents):
    """Host 0 of every job, without HTTP: the test says what it answers; None is silence."""

    def __init__(self) -> None:
        """Nobody answers yet."""
        super().__init__()
        self.answer: RunSummary | None = None
        self.stopped: list[str] = []
        self.saved: list[str] = []

    def status(self, target: Target) -> RunSummary:
        """Answer as the test says."""
        if self.answer is None:
            raise AgentError(f"{target.address}: silence")
        return self.answer

    def save(self, target: Target) -> None:
        """Keep who was asked; a test that answers nothing hears nothing."""
        self.status(target)
        self.saved.append(target.address)

    def stop(self, target: Target) -> None:
        """Keep who was asked."""
        self.stopped.append(target.address)


def told(phase: str = "running", *, step: int = 10, **fields: Any) -> RunSummary:
    """Return the status that host 0 serves of a run of 100 steps."""
    progress = RunProgress(
        step=step,
        of=100,
        loss=2.5,
        held_out_loss=2.75,
        tokens_per_second=1000.0,
        mfu=0.25,
        step_seconds=2.0,
        eta_seconds=2.0 * (100 - step),
    )
    known = {"attempt": 0, "progress": progress, "goodput": {"step": 50.0, "start": 50.0}}
    return RunSummary.model_validate({"phase": phase, **known, **fields})


class Operator:
    """The operator of one namespace, for the length of a `with` statement."""

    def __init__(
        self, kubeconfig: Path, namespace: str, agents: Agents, *, collector: str = "", **settings: Any
    ) -> None:
        """It has an identity of its own, and sends spans to a collector if one is named by its URL."""
        filled: dict[str, Any] = {
            "trainer_image": "localhost/trainer:dev",
            "operator_namespace": namespace,
            "managed_by": "",
            "poll_seconds": 0.2,
            "tokens": Tokens(b"0" * 32),
            **settings,
        }
        self.settings = Settings(**filled)
        self.metrics, self._stop = Metrics(), threading.Event()
        connection = connect(str(kubeconfig))
        api = Api(connection, self.metrics, limiter=Limiter(500, 500))
        elector = Elector(
            Api(connection, self.metrics, limiter=Limiter(50, 50)),
            namespace=namespace,
            name="shardwise",
            identity=uuid.uuid4().hex,
            lost=lambda reason: print(f"the lease is lost: {reason}"),  # noqa: T201  pytest shows it with a failure
        )
        self._tracing: Tracing | None = None
        if collector:
            endpoint = checked_endpoint(collector)
            self._tracing = Tracing(endpoint, self.metrics, version="dev", instance=elector.identity)
        cache, queue = Cache(), WorkQueue(self.metrics)
        self._poller = Poller(agents, self.settings.poll_seconds, queue.add)
        self._requests = Requests(agents, queue.add)
        self._manager = Manager(api, cache, queue, elector, self.metrics, workers=4, namespace=namespace)
        self._controller = JobController(
            cache,
            api,
            settings=self.settings,
            observer=Observer(cache, api, self.settings),
            applier=Applier(api, self._requests, self.settings.tokens),
            poller=self._poller,
            recorder=Recorder(api, self.metrics, component="shardwise"),
            catalog=Catalog(cache, api, NodeWatch(cache, self._manager.watch, self._manager.unwatch)),
            traces=Traces(self._tracing.send) if self._tracing else Traces(),
        )
        self.metrics.registry.register(JobMetrics(self._controller.jobs, self._poller.latest, leads=elector.leads))
        self._thread = threading.Thread(target=self._manager.run, args=(self._controller, self._stop), name="operator")

    def requests(self, verb: str, *, but: tuple[str, ...] = ()) -> int:
        """How often the API server was asked so, but for some kinds."""
        (family,) = [each for each in self.metrics.registry.collect() if each.name == "shardwise_operator_api_requests"]
        counted = [each for each in family.samples if each.name.endswith("_total")]
        return round(
            sum(each.value for each in counted if each.labels["verb"] == verb and each.labels["kind"] not in but)
        )

    def has_heard_of(self, job: dict[str, Any]) -> bool:
        """Whether a job is in its cache as it is given here."""
        return job["metadata"]["resourceVersion"] in [
            each["metadata"]["resourceVersion"] for each in self._controller.jobs()
        ]

    def spans(self, result: str) -> float:
        """How many spans had this result."""
        return self.metrics.registry.get_sample_value("shardwise_operator_spans_total", {"result": result}) or 0.0

    def __enter__(self) -> Self:
        if self._tracing:
            self._tracing.__enter__()
        self._poller.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._poller.__exit__()
        self._requests.__exit__()
        if self._tracing:
            self._tracing.__exit__()


class Place:
    """One namespace as a test sees and changes it; plays the scheduler and the kubelet for its pods."""

    def __init__(self, client: Client, namespace: str) -> None:
        """It is there."""
        self.client, self.namespace = client, namespace

    def path(self, plural: str, name: str = "", group: str = "api/v1") -> str:
        """Where objects of the namespace are."""
        return f"/{group}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def apply(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Make a job."""
        body = {**job, "metadata": {**job["metadata"], "namespace": self.namespace}}
        made: dict[str, Any] = self.client.request("POST", self._job(), body)
        return made

    def train(self, job: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Create a job of two hosts and have its pods run: the job as created, and its status when it is Running."""
        made = self.apply(job)
        self.until_pods("job-0-0-0", "job-0-1-0")
        self.run("job-0-0-0", "job-0-1-0")
        return made, self.until_phase("Running")

    def change(self, name: str, **spec: Any) -> None:
        """Change fields of a job's spec."""
        self.client.request("PATCH", self._job(name), {"spec": spec}, MERGE)

    def job(self, name: str = "job") -> dict[str, Any]:
        """The job as it is."""
        found: dict[str, Any] = self.client.request("GET", self._job(name))
        return found

    def status(self, name: str = "job") -> dict[str, Any]:
        """Its status."""
        status: dict[str, Any] = self.job(name).get("status", {})
        return status

    def delete(self, name: str = "job") -> None:
        """Delete the job."""
        self.client.request("DELETE", self._job(name))

    def pods(self, job: str = "job") -> dict[str, dict[str, Any]]:
        """The pods of a job by name."""
        listed = self.client.request("GET", f"{self.path('pods')}?labelSelector=shardwise.dev/job={job}")
        return {each["metadata"]["name"]: each for each in listed["items"]}

    def until(self, what: str, holds: Callable[[], object]) -> None:
        """Wait for something, within a bound."""
        wait(what, holds, seconds=_SECONDS)

    def until_phase(self, phase: str, name: str = "job") -> dict[str, Any]:
        """Wait until the job is in a phase; its status."""
        self.until(f"{name} to be {phase}", lambda: self.status(name).get("phase") == phase)
        return self.status(name)

    def until_pods(self, *names: str, job: str = "job") -> None:
        """Wait until a job has exactly these pods."""
        self.until(f"the pods {names}", lambda: set(self.pods(job)) == set(names))

    def bind(self, pod: str, node: str = "node-a") -> None:
        """The scheduler's part."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        self.client.request("POST", f"{self.path('pods', pod)}/binding", {"metadata": {"name": pod}, "target": target})

    def run(self, *pods: str, ready: bool = True) -> None:
        """The kubelet's part: the container runs. Addresses are of the range for documentation."""
        for number, pod in enumerate(pods):
            if "nodeName" not in self.client.request("GET", self.path("pods", pod))["spec"]:
                self.bind(pod)
            conditions = [{"type": "Ready", "status": str(ready)}]
            self.report(pod, phase="Running", podIP=f"192.0.2.{number + 1}", conditions=conditions)

    def end(
        self,
        pod: str,
        code: int,
        last: TerminationRecord | Verdict | None = None,
        *,
        reason: str = "Error",
        **status: Any,
    ) -> None:
        """The kubelet's part: the container has ended."""
        terminated = {"exitCode": code, "reason": reason, "message": last.dumps() if last else ""}
        container = {
            "name": "plan" if "-plan-" in pod else "agent",
            "state": {"terminated": terminated},
            "image": "",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
        }
        phase = "Failed" if code else "Succeeded"
        self.report(pod, phase=phase, containerStatuses=[container], **status)
        if self.leaving(pod):
            self.remove(pod)

    def report(self, pod: str, **status: Any) -> None:
        """Write a pod's status."""
        self.client.request("PATCH", f"{self.path('pods', pod)}/status", {"status": status}, MERGE)

    def remove(self, pod: str) -> None:
        """The pod is gone, as after `kubectl delete` on a node that answers."""
        try:
            self.client.request("DELETE", self.path("pods", pod), {"gracePeriodSeconds": 0})
        except RefusedError as refusal:
            if refusal.status != 404:  # the operator deletes an ended pod, too
                raise

    def leaving(self, pod: str) -> bool:
        """Whether somebody has asked to delete a pod that is still there."""
        found = self.find("pods", pod)
        return found is not None and "deletionTimestamp" in found["metadata"]

    def there(self, plural: str, name: str, group: str = "api/v1") -> bool:
        """Whether an object exists."""
        return self.find(plural, name, group) is not None

    def find(self, plural: str, name: str, group: str = "api/v1") -> dict[str, Any] | None:
        """An object; None where there is none, as of an ended pod that the operator has deleted at once."""
        try:
            found: dict[str, Any] = self.client.request("GET", self.path(plural, name, group))
        except RefusedError as refusal:
            if refusal.status == 404:
                return None
            raise
        return found

    def _job(self, name: str = "") -> str:
        return self.path("trainingjobs", name, "apis/shardwise.dev/v1alpha1")
