"""A job and its operator in the simulated cluster of `world.py`, and what can be done to them. For tests of faults."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tests.operator.building import SETTINGS, manifest, snapshot
from tests.operator.world import Cluster, KilledError, Launcher, Queue, World

from shardwise_operator.decide.decide import decide
from shardwise_operator.decide.plan import RequestStop
from shardwise_operator.observe.observe import Observer
from shardwise_operator.observe.poll import Poll
from shardwise_operator.observe.workload import QUEUE_LABEL
from shardwise_operator.runtime.kinds import TRAINING_JOBS
from shardwise_operator.write.apply import Applier
from shardwise_operator.write.status import compose

HOUR, DAY = 3600.0, 86_400.0
STEP_SECONDS = 10.0
_MOST_PASSES = 50  # that follow one another's writes


class Life:
    """A job on slices of tpu-v5p, in pools of its own, with an operator that looks after it."""

    def __init__(
        self, *, topology: str, slices: int, pools: int, steps: int, least: int | None = None, queued: bool = False
    ) -> None:
        """Nothing has happened yet; with `least` the job goes on with so few slices; `queued`, it waits in a queue."""
        self.world = World()
        self.queue = Queue(self.world)
        self.settings = replace(SETTINGS, kueue=queued)
        labels = {
            "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
            "cloud.google.com/gke-tpu-topology": topology,
            "node.kubernetes.io/instance-type": "ct5p-hightpu-4t",
        }
        job = manifest(hardware={"accelerator": "tpu-v5p", "topology": topology, "slices": slices})
        job["spec"]["training"] |= {"steps": steps, "batch": {"sequences": 768}}
        if queued:
            job["metadata"]["labels"] = {QUEUE_LABEL: "team"}
        job["spec"]["recovery"] = {} if least is None else {"minSlices": least}
        made_of = snapshot(job)
        self.hosts = made_of.hosts
        self.cluster = Cluster(self.world, labels, pools=pools, hosts=len(self.hosts) // slices)
        self.launcher = Launcher(
            self.cluster,
            made_of.job.spec.recovery,
            steps=steps,
            full_step_seconds=STEP_SECONDS,
            save_seconds=0.5 * HOUR,
        )
        job["metadata"] |= {"creationTimestamp": "2027-01-15T08:00:00Z", "generation": 1}
        self.world.put(TRAINING_JOBS, job)
        self.begun, self.silent_until, self.again_at = self.world.now, 0.0, 0.0
        self.start_operator()

    @property
    def job(self) -> Any:
        """As the API server has it."""
        return self.world.find(TRAINING_JOBS, "job")

    @property
    def status(self) -> dict[str, Any]:
        """The job's."""
        status: dict[str, Any] = self.job.get("status", {})
        return status

    def start_operator(self) -> None:
        """Another process of it, which knows nothing but what the API server has."""
        requests: Any = SimpleNamespace(send=self._asked, forget=lambda _: None)
        world: Any = self.world
        self.observer = Observer(world, world, self.settings)
        self.applier = Applier(world, requests, self.settings.tokens)
        at_once: Any = _AtOnce()  # threads would make another order each time
        self.applier._pool = at_once
        self.world.writes_left, self.world.changed = None, True

    def run(self, seconds: float) -> None:
        """Go on until the job has finished, or for so long; at each time it comes to rest in a few passes."""
        end, passes = self.world.now + seconds, Counter[float]()
        while self.world.now < end and self.status.get("phase") not in ("Complete", "Failed"):
            if self.world.now >= self.silent_until and (self.world.changed or self.world.now >= self.again_at):
                passes = Counter({self.world.now: passes[self.world.now] + 1})
                assert passes[self.world.now] <= _MOST_PASSES, self.status
                try:
                    self._pass()
                except KilledError:
                    self.start_operator()
            else:
                self.world.pass_time(min(end, max(self.again_at, self.silent_until, self.world.now + 1.0)))

    def silence(self, seconds: float) -> None:
        """Have the API server not answer for a while; after it another operator leads."""
        self.silent_until = self.world.now + seconds
        self.start_operator()

    def fail_storage(self, seconds: float) -> None:
        """Have the storage fail for a while."""
        self.launcher.storage_is_well = False

        def well() -> None:
            self.launcher.storage_is_well = True

        self.world.later(seconds, well)

    def suspend(self, *, suspended: bool) -> None:
        """Change the job as a person does."""
        self.change(suspend=suspended)

    def change(self, **spec: Any) -> None:
        """Change fields of the job's spec."""
        job = self.job
        metadata = {**job["metadata"], "generation": job["metadata"]["generation"] + 1}
        self.world.put(TRAINING_JOBS, {**job, "metadata": metadata, "spec": {**job["spec"], **spec}})

    def _pass(self) -> None:
        self.world.changed = False
        job = self.job
        seen = self.observer.observe(job, self._poll(job), self.world.now)
        plan = decide(seen, self.settings, self.world.now)
        outcome = self.applier.apply(seen, plan)
        status = compose(seen, plan, outcome, job.get("status", {}), self.world.now)
        if status != job.get("status"):
            self.world.count_write()
            self.world.put(TRAINING_JOBS, {**job, "status": status})
        self.queue.look()
        self.cluster.schedule()
        self.launcher.look(self.job)
        self.again_at = self.world.now + min(600.0, max(1.0, plan.requeue_after_seconds or 600.0))

    def _poll(self, job: Any) -> Poll | None:
        leader = "0-0" in self.launcher.alive(job)
        return Poll(heard_at=self.world.now, fresh_seconds=10.0, status=self.launcher.status()) if leader else None

    def _asked(self, _key: object, _target: object, step: object) -> bool:
        if isinstance(step, RequestStop):
            self.launcher.stop(self.job)
        else:
            self.launcher.save()
        return True


class _AtOnce:
    """What is submitted is done."""

    def submit(self, do: Callable[..., Any], *args: Any) -> Future[Any]:
        """Do it."""
        done = Future[Any]()
        try:
            done.set_result(do(*args))
        except KilledError as error:
            done.set_exception(error)
        return done
