"""An operator that dies after each of its writes, through a job's whole life on a real API server.

Only here the operator dies between any two writes: what it finds when it comes back is whatever it had done so far.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.cluster.api_server import ApiServer
from tests.operator.building import manifest
from tests.operator.collecting import Collector, Received
from tests.operator.living import Living, until
from tests.operator.operating import Operator, Place, StandInAgents
from tests.operator.runtime.meddling import Asked, Meddler

from shardwise.protocol.run_status import RunSummary

_SECONDS = 120.0


class _Mortal(Meddler):
    """Cuts an operator off before it hears of its first write."""

    def __init__(self, server: ApiServer, writes: list[str]) -> None:
        super().__init__(server)
        self.struck = threading.Event()
        self._writes = writes
        self.written = self._strike

    def _strike(self, asked: Asked) -> bool:
        self.dead = True
        self._writes.append(f"{asked.method} {asked.path}")
        self.struck.set()
        return False


@contextmanager
def _dying(
    server: ApiServer, namespace: str, agents: StandInAgents, folder: Path, collector: str
) -> Iterator[list[str]]:
    """Operators, one after the other, that each die of their first write; all that they have written."""
    writes, over, place = list[str](), threading.Event(), Place(server.client, namespace)
    lease = ("leases", "shardwise", "apis/coordination.k8s.io/v1")

    def live() -> None:
        while not over.is_set():
            between = _Mortal(server, writes)
            through = between.kubeconfig(server.kubeconfig, folder)
            with between, Operator(through, namespace, agents, collector=collector):
                while not (between.struck.wait(0.05) or over.is_set()):
                    pass
                between.dead = True
            if place.there(*lease):  # else the next one waits for its end
                server.client.request("DELETE", place.path(*lease))

    thread = threading.Thread(target=live, name="operators")
    thread.start()
    try:
        yield writes
    finally:
        over.set()
        thread.join()


def test_an_operator_killed_after_every_write(
    place: Place, api_server: ApiServer, namespace: str, agents: StandInAgents, tmp_path: Path
) -> None:
    """The job loses a pod, is suspended, resumed and completes: each pod is made once, each loss is charged once.

    Its trace is whole, though no operator has heard of a status that it has written.
    """
    names: set[tuple[str, str]] = set()

    def say(address: str, answer: RunSummary | None) -> None:
        del address
        names.update((name, pod["metadata"]["uid"]) for name, pod in place.pods().items())
        agents.answer = answer
        while agents.stopped:  # one by one: the operator may ask while this looks
            agents.stopped.pop()
            hosts.stops = True

    hosts = Living(place, "job", say, steps_per_second=100.0)
    hosts.holds_at = 40
    with Collector() as collector, hosts, _dying(api_server, namespace, agents, tmp_path, collector.url) as writes:
        place.apply(manifest())
        until("step 40", lambda: place.status().get("progress", {}).get("step") == 40, _SECONDS)
        hosts.evict("job-0-0-0")
        hosts.holds_at = 60
        until("step 60", lambda: place.status()["progress"]["step"] == 60, _SECONDS)
        place.change("job", suspend=True)
        until("the suspend", lambda: place.status()["phase"] == "Suspended" and not place.pods(), _SECONDS)
        hosts.holds_at = 101
        place.change("job", suspend=False)
        until("the end", lambda: place.status()["phase"] == "Complete", _SECONDS)
        until("the root", lambda: "TrainingJob" in {each.name for each in collector.spans}, _SECONDS)
        status = place.status()

    _check_whole(collector.spans, status)
    assert status["restarts"] == {"eviction": 1}
    assert status["attempts"] == {"0-0": 2, "0-1": 1}
    assert sorted(name for name, _ in names) == ["job-0-0-0", "job-0-0-1", "job-0-0-2", "job-0-1-0", "job-0-1-1"]
    assert len(writes) > 20, "the job's life had few writes, and so few deaths"


def _check_whole(spans: list[Received], status: dict[str, Any]) -> None:
    """Each phase of the job is one span, which may have come more than once, but never with other content."""
    one = {each.span: replace(each, resource={}) for each in spans}
    *parts, root = sorted(one.values(), key=lambda each: (each.name == "TrainingJob", each.start, each.end))

    assert all(one[each.span] == replace(each, resource={}) for each in spans)
    assert [part.attributes["shardwise.job.phase.number"] for part in parts] == list(range(len(parts)))
    assert [part.end for part in parts[:-1]] == [part.start for part in parts[1:]]
    assert parts[-1].end == root.end
    last = [part.name for part in parts][-len(status["phases"]) + 1 :]
    assert [*last, "Complete"] == [each["name"] for each in status["phases"]]
    causes = [part.attributes.get("shardwise.job.restart.cause") for part in parts]
    assert [cause for cause in causes if cause] == ["eviction"]
    assert {"Running", "Recovering", "Suspending", "Suspended"} <= {part.name for part in parts}
