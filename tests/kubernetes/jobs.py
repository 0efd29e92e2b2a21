"""A job in a cluster as a test handles it: applied, watched, hurt, and compared with the same job on one machine."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import outside
from tests.cluster.client import Client, RefusedError
from tests.cluster.commands import ClusterError, attempt, wait

from shardwise.job.document import read_document, write_document

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "kubernetes"
ENDLESS = 1_000_000  # steps
# More steps than are taken while a test hurts a small job; the same for all, so that one `shardwise run` serves them.
STEPS = 300
TRAINING_JOBS = "/apis/shardwise.dev/v1alpha1/namespaces/{}/trainingjobs"

# Run in a pod: what host 0 says of the run, to whoever has the token.
STATUS = """
import json, os, urllib.request
token = open("/etc/shardwise/tokens/status").read()
address = json.load(open(os.environ["SHARDWISE_POD_DIRECTORY"] + "/logs/leader"))["address"]
asked = urllib.request.Request(f"http://{address}/status", headers={"Authorization": f"Bearer {token}"})
print(urllib.request.urlopen(asked, timeout=10).read().decode())
"""
# Run in a pod: kill the processes of it whose command line has a word.
KILL = """
import os, pathlib, signal, sys
found = [p for p in pathlib.Path("/proc").glob("[0-9]*") if sys.argv[1].encode() in (p / "cmdline").read_bytes()]
found = [int(p.name) for p in found if int(p.name) != os.getpid()]
for number in found:
    os.kill(number, signal.SIGKILL)
print(len(found))
"""


def manifest(example: str) -> dict[str, Any]:
    """Return an example's job."""
    return read_document(EXAMPLES / f"{example}.yaml").data


def small(**training: Any) -> dict[str, Any]:
    """Return a job of two hosts, of which each holds half of the state, and whose steps cost next to nothing."""
    job = manifest("cpu-two-hosts")
    job["spec"]["hardware"]["topology"] = "2x1"
    model = {"preset": "tiny", "layers": 2, "embed": 64, "seqLen": 32}
    job["spec"]["training"] |= {"model": model, "mesh": {"fsdp": True}, "batch": {"sequences": 8}}
    job["spec"]["training"] |= {"steps": ENDLESS, **training}
    return job


def let_in(client: Client, namespace: str, job: Mapping[str, Any]) -> bool:
    """Whether the admission policy knows the job's class by now."""
    try:
        client.kubectl("--namespace", namespace, "apply", "--dry-run=server", "--filename=-", stdin=json.dumps(job))
    except ClusterError:
        return False
    return True


@dataclass(frozen=True)
class Ended:
    """What a job has come to: the digest of its last state, and the loss of every step."""

    digest: str
    losses: dict[int, float]


def train_here(job: Mapping[str, Any], folder: Path) -> Ended:
    """Train a job on this machine with the command that a person uses; what was trained in the folder is trained."""
    file, directory = folder / "job.yaml", folder / "run"
    if not (directory / "summary.json").exists():
        folder.mkdir()
        file.write_text(write_document(job))
        command = [str(Path(sys.executable).with_name("shardwise")), "run", str(file), "--dir", str(directory)]
        done = subprocess.run(command, cwd=ROOT, env=outside(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    digest: str = json.loads((directory / "summary.json").read_text())["digest"]
    return Ended(digest, losses(directory / "metrics.jsonl"))


def losses(metrics: Path) -> dict[int, float]:
    """Return the loss of every step in a run's metrics, of the last time that it was taken."""
    return {record["step"]: record["loss"] for record in _records(metrics) if "event" not in record}


def read_proc(path: Path) -> str:
    """A file of /proc, in which the words of a command line are apart; empty where the process has ended."""
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def own_number(pid: int) -> int:
    """The number of a process in its container."""
    (line,) = (line for line in read_proc(Path(f"/proc/{pid}/status")).splitlines() if line.startswith("NSpid:"))
    return int(line.split()[-1])


def _records(metrics: Path) -> list[dict[str, Any]]:
    """All that a run has written so far; a line that is being written is not there yet."""
    lines = metrics.read_text().splitlines(keepends=True) if metrics.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


class Job:
    """A TrainingJob in a namespace whose claim `runs` is a folder of this machine."""

    def __init__(self, client: Client, namespace: str, volume: Path, job: Mapping[str, Any]) -> None:
        """Nothing is applied yet."""
        self._client, self._namespace = client, namespace
        self.name: str = job["metadata"]["name"]
        self.folder = volume / Path(job["spec"]["pod"]["directory"]).name
        self._metrics = self.folder / "metrics.jsonl"
        self._path = f"{TRAINING_JOBS.format(namespace)}/{self.name}"
        self.apply(job)

    def apply(self, job: Mapping[str, Any]) -> None:
        """Do what `kubectl apply` does."""
        self.kubectl("apply", "--filename=-", stdin=json.dumps(job))

    def patch(self, **spec: Any) -> None:
        """Change fields of the spec."""
        self.kubectl("patch", "tj", self.name, "--type=merge", "--patch", json.dumps({"spec": spec}))

    def delete(self) -> None:
        """Delete the job where it is there, and wait until nothing of it is left."""
        self.kubectl("delete", "tj", self.name, "--wait=true", "--ignore-not-found")
        kinds = "pods,configmaps,secrets,networkpolicies"
        words = ("get", kinds, f"--selector=shardwise.dev/job={self.name}", "--output=name")
        wait(f"{self.name} to be gone", lambda: not self.kubectl(*words), 60)

    def kubectl(self, *words: str | Path, stdin: str | None = None) -> str:
        """Run kubectl in the job's namespace."""
        return self._client.kubectl("--namespace", self._namespace, *words, stdin=stdin)

    def refused(self, *words: str) -> str:
        """Run a kubectl that must fail in the job's namespace, and return what it said."""
        return self._client.refused("--namespace", self._namespace, *words)

    @property
    def status(self) -> dict[str, Any]:
        """The status that the operator has written; empty before the first."""
        try:
            found: dict[str, Any] = self._client.request("GET", self._path)
        except RefusedError:
            return {}
        status: dict[str, Any] = found.get("status", {})
        return status

    @property
    def phase(self) -> str:
        """The phase in the status."""
        return str(self.status.get("phase"))

    @property
    def step(self) -> int:
        """The newest step in the status; 0 before the first."""
        return int(self.status.get("progress", {}).get("step", 0))

    @property
    def losses(self) -> dict[int, float]:
        """The loss of every step, as it lies on the volume."""
        return losses(self._metrics)

    @property
    def began(self) -> list[int]:
        """The step that each start of the trainers went on from, in order; 0 where there was no checkpoint."""
        return [start["step"] for start in self.starts]

    @property
    def starts(self) -> list[dict[str, Any]]:
        """What was written of each start of the trainers, in order."""
        return [record for record in _records(self._metrics) if record.get("event") in ("started", "restored")]

    @property
    def saved_locally(self) -> list[int]:
        """The step of each local checkpoint since the last start."""
        records = _records(self._metrics)
        last = max(number for number, record in enumerate(records) if record.get("event") in ("started", "restored"))
        return [record["step"] for record in records[last:] if record.get("event") == "savedLocally"]

    @property
    def taken(self) -> list[int]:
        """Every step that was taken, in order; one that was lost is there twice."""
        return [record["step"] for record in _records(self._metrics) if "event" not in record]

    @property
    def pods(self) -> dict[str, str]:
        """The UID of every pod that has not ended, by name."""
        return {
            pod["metadata"]["name"]: pod["metadata"]["uid"]
            for pod in self.all_pods
            if pod["status"]["phase"] not in ("Succeeded", "Failed") and "deletionTimestamp" not in pod["metadata"]
        }

    @property
    def all_pods(self) -> list[dict[str, Any]]:
        """Every pod of the job, ended ones too."""
        path = f"/api/v1/namespaces/{self._namespace}/pods?labelSelector=shardwise.dev/job={self.name}"
        items: list[dict[str, Any]] = self._client.request("GET", path)["items"]
        return items

    @property
    def warnings(self) -> list[str]:
        """What the cluster has warned of about the job and its pods, oldest first, but for what is not the job's doing.

        The claim is the test's own, and is bound when its first pod comes. A kubelet gives its watch of a ConfigMap
        or a Secret a second to begin, and mounts it at the next try where the machine is too busy for that. So it does
        where the API server has not told its authorizer yet which node a pod is on.
        """
        path = f"/api/v1/namespaces/{self._namespace}/events?fieldSelector=type=Warning"
        told = self._client.request("GET", path)["items"]
        mine = [event for event in told if event["involvedObject"]["name"].startswith(self.name)]
        others = (
            "unbound immediate PersistentVolumeClaims",
            "failed to sync configmap cache: timed out",
            "failed to sync secret cache: timed out",
            "no relationship found between node",
        )
        mine = [event for event in mine if not any(other in event["message"] for other in others)]
        return [f"{event['involvedObject']['name']}: {event['reason']}: {event['message']}" for event in mine]

    def inside(self, pod: str, script: str, *words: str) -> str:
        """Run a Python script in a pod."""
        return self.kubectl("exec", pod, "--", "python", "-c", script, *words)

    def kill(self, pod: str, word: str) -> None:
        """Kill the processes of a pod whose command line has this word; there must be one."""
        assert int(self.inside(pod, KILL, word)) >= 1

    def processes(self, pod: str, word: str) -> list[int]:
        """The processes of a pod whose command line has this word, by their numbers outside of it."""
        uid = self.pods[pod]
        return [
            int(folder.name)
            for folder in Path("/proc").glob("[0-9]*")
            if f"pod{uid}" in read_proc(folder / "cgroup") and word in read_proc(folder / "cmdline")
        ]

    def first_process(self, pod: str) -> int:
        """The first process of a pod's container, all of which ends with it."""
        (first,) = (pid for pid in self.processes(pod, "shardwise") if own_number(pid) == 1)
        return first

    def until(self, what: str, ready: Callable[[], object], seconds: float = 300) -> None:
        """Wait; else fail with all that the cluster knows of the job."""
        try:
            wait(what, ready, seconds)
        except ClusterError as failure:
            asked = (
                ("describe", "tj", self.name),
                ("get", "pods", "--output=wide"),
                ("get", "events", "--sort-by=.lastTimestamp"),
                ("logs", f"--selector=shardwise.dev/job={self.name}", "--prefix", "--tail=30"),
            )
            kubectl = ("kubectl", "--kubeconfig", self._client.kubeconfig, "--namespace", self._namespace)
            pytest.fail("\n\n".join((str(failure), *(attempt(*kubectl, *words)[1] for words in asked))))

    def until_step(self, step: int) -> None:
        """Wait until the status tells this step, or a later one."""
        self.until(f"step {step} of {self.name}", lambda: self.step >= step or self.phase in ("Failed", "Complete"))
        assert self.phase not in ("Failed", "Complete"), self.status

    def until_taken(self, steps: int) -> None:
        """Wait until the run itself has taken so many steps, whatever its status says."""
        self.until(f"{steps} steps of {self.name}", lambda: len(self.taken) >= steps)

    def until_phase(self, phase: str, seconds: float = 300) -> None:
        """Wait for a phase; a job that has failed meanwhile fails the test."""
        self.until(f"{self.name} to be {phase}", lambda: self.phase in (phase, "Failed"), seconds)
        assert self.phase == phase, self.status
