"""Jobs as a cache has them, for the tests of the page of all jobs."""

import json
import re
from collections.abc import Iterable
from typing import Any

from tests.operator.building import NOW, manifest

from shardwise.page.render import filled
from shardwise_operator.page.read_jobs import read_jobs
from shardwise_operator.page.serve import PACKAGE, TEMPLATE
from shardwise_operator.runtime.kinds import timestamp

Job = dict[str, Any]
HOSTILE = "</script><script>document.title='taken over'</script><!-- \u2028 & <b> {{document}}"


def job(name: str = "job", phase: str | None = None, *, namespace: str = "default", **status: Any) -> Job:
    """Return a job that was made 1,000 s ago; without a phase nobody has looked at it yet."""
    made = manifest(name)
    made["metadata"] |= {"namespace": namespace, "creationTimestamp": timestamp(NOW - 1000), "uid": f"uid-{name}"}
    return {**made, "status": {"phase": phase, **status}} if phase else made


def condition(kind: str, status: str, since: float, **fields: str) -> dict[str, str]:
    """Return a condition that came to this status at a time."""
    return {"type": kind, "status": status, "lastTransitionTime": timestamp(since), **fields}


def running(name: str = "job", **changed: Any) -> Job:
    """Return a running job of which everything is known."""
    status: dict[str, Any] = {
        "reason": "Running",
        "phases": [{"name": "Running", "number": 0, "start": timestamp(NOW - 300)}],
        "conditions": [condition("Ready", "True", NOW - 300)],
        "progress": {
            "step": 500,
            "of": 2000,
            "loss": "2.5000",
            "tokensPerSecond": "12500",
            "mfu": "41.5%",
            "eta": "1h5m",
            "slowestHost": "0-1",
            "observedAt": timestamp(NOW - 3),
        },
        "checkpoint": {"step": 400, "time": timestamp(NOW - 120)},
        "restarts": {"hang": 1, "failure": 2, "eviction": 0},
        "goodput": "79%",
        "hosts": {"ready": 2, "of": 2},
        "attempts": {"0-0": 3, "0-1": 0},
        "pods": {"0-0": "uid-0", "0-1": "uid-1"},
    }
    return job(name, "Running", **{**status, **changed})


def many() -> list[Job]:
    """Return five jobs, as different as jobs are."""
    waiting = job("waits", "Pending", namespace="team", reason="Unschedulable", message="0 of 4 nodes fit")
    waiting["spec"]["pod"]["template"]["metadata"] = {"labels": {"kueue.x-k8s.io/queue-name": "night"}}
    slow = running("slow", progress={"step": 7, "of": 10, "loss": "nan", "tokensPerSecond": "900"}, restarts={})
    ended = job("ended", "Complete", completionTime=timestamp(NOW - 50), progress={"step": 40, "of": 40}, goodput="90%")
    return [running("fast"), slow, waiting, ended, job("new", namespace="team")]


def page_of(jobs: Iterable[Job], namespace: str = "") -> str:
    """Return the page of these jobs."""
    data = read_jobs(jobs, namespace=namespace, now=NOW).model_dump_json(exclude_defaults=True)
    return filled(PACKAGE, TEMPLATE, title="Training jobs", data=data)


def told_of(page: str) -> dict[str, Any]:
    """Return the document that a page has."""
    (data,) = re.findall(r'id="document">(.*?)</script>', page, re.DOTALL)
    told: dict[str, Any] = json.loads(data)
    return told
