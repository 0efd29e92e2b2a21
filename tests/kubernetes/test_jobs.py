"""Jobs on a real cluster: the operator and the images of this tree, installed with the chart, and pods that train.

Each compares with the same file trained by `shardwise run`: the digest is the same, bit for bit, whatever happened.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.kubernetes.jobs import EXAMPLES, STATUS, Job, losses, manifest, train_here

Apply = Callable[[Mapping[str, Any]], Job]
Operator = Callable[..., str]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Mapping[str, Any]], tuple[str, dict[int, float]]]:
    """Return what a job ends with on this machine: its digest, and the loss of every step."""
    known: dict[str, tuple[str, dict[int, float]]] = {}

    def trained(job: Mapping[str, Any]) -> tuple[str, dict[int, float]]:
        key = json.dumps(job["spec"]["training"], sort_keys=True) + job["spec"]["hardware"]["topology"]
        if key not in known:
            folder = tmp_path_factory.mktemp("here") / "job"
            summary = train_here(job, folder)
            known[key] = (summary["digest"], losses(folder / "run" / "metrics.jsonl"))
        return known[key]

    return trained


def test_a_job_by_hand(apply: Apply, operator: Operator, here: Callable[..., Any]) -> None:
    """Two pods on two nodes train as `shardwise run` does, and kubectl shows the truth.

    A finished job stays as it is when the operator is replaced, and completes at once when it is applied again.
    """
    example = manifest("cpu-two-hosts")
    job = apply(example)
    job.until_step(1)
    nodes = job.kubectl("get", "pods", "--output=jsonpath={.items[*].spec.nodeName}").split()
    assert len(set(nodes)) == len(nodes) == 2
    row = job.kubectl("get", "tj", job.name, "--no-headers").split()
    step, loss = int(row[2]), float(row[3])
    assert row[:2] == [job.name, "Running"]
    assert loss == pytest.approx(job.losses[step], abs=1e-4)

    job.kubectl("wait", "--for=condition=Complete", f"tj/{job.name}", "--timeout=600s")
    digest, curve = here(example)
    finished = job.status
    assert finished["digest"] == digest
    assert job.losses == curve
    assert finished["checkpoint"]["step"] == finished["progress"]["step"] == example["spec"]["training"]["steps"]
    assert (job.folder / "checkpoints" / f"step-{finished['checkpoint']['step']:08}" / "COMMITTED").exists()

    operator("delete", "pods", "--all", "--wait=true")
    operator("rollout", "status", "deployment", "--timeout=120s")
    assert job.status == finished
    job.delete()
    job.apply(example)
    job.until_phase("Complete")
    assert job.status["digest"] == digest
    assert job.losses == curve


def test_whatever_is_killed(apply: Apply, operator: Operator, here: Callable[..., Any]) -> None:
    """A killed trainer restarts in its pod; Ray and operator may go; a deleted pod, host 0's too, is replaced alone."""
    small = {"model": {"preset": "tiny", "seqLen": 64}, "batch": {"sequences": 8}}
    example = manifest("cpu-two-hosts", steps=200, checkpoint={"everySteps": 10}, **small)
    example["spec"] |= {"hardware": {"accelerator": "cpu-sim", "topology": "2x2"}, "recovery": {"backoff": "10ms"}}
    job = apply(example)
    job.until_step(12)
    pods = job.pods
    assert list(pods) == ["cpu-two-hosts-0-0-0", "cpu-two-hosts-0-1-0"]

    victim = json.loads(job.inside("cpu-two-hosts-0-0-0", STATUS))["hosts"][1]["trainerPid"]
    job.inside("cpu-two-hosts-0-1-0", f"import os; os.kill({victim}, 9)")
    job.until("the restart to be told", lambda: job.status.get("restarts") == {"failure": 1})
    job.until_step(job.step + 3)
    job.kill("cpu-two-hosts-0-1-0", "raylet")
    operator("delete", "pods", "--all", "--wait=false")
    job.until_step(job.step + 10)
    assert job.pods == pods
    assert job.status["restarts"] == {"failure": 1}

    job.kubectl("delete", "pod", "cpu-two-hosts-0-1-0", "--wait=false")
    job.until("the other pod of host 1", lambda: "cpu-two-hosts-0-1-1" in job.pods)
    job.until("its restart to be told", lambda: sum(job.status.get("restarts", {}).values()) == 2)
    job.until("it to train", lambda: job.phase == "Running")
    job.until_step(job.step + 3)
    assert job.pods["cpu-two-hosts-0-0-0"] == pods["cpu-two-hosts-0-0-0"]

    job.kubectl("delete", "pod", "cpu-two-hosts-0-0-0", "--grace-period=0", "--force")
    job.until("the other pod of host 0", lambda: "cpu-two-hosts-0-0-1" in job.pods)
    assert "cpu-two-hosts-0-1-1" in job.pods
    job.until_phase("Complete", 600)

    digest, curve = here(example)
    assert job.status["digest"] == digest
    assert job.losses == curve
    assert job.status["restartCount"] == 3
    assert job.status["restarts"]["failure"] == 1


def test_suspended_and_resumed_elsewhere(apply: Apply) -> None:
    """A suspend loses no step and gives the pods back; the same run goes on on another topology, and has every step."""
    job = apply(manifest("suspend-resume"))
    job.until_step(5)
    job.patch(suspend=True)
    job.kubectl("wait", "--for=condition=Suspended", f"tj/{job.name}", "--timeout=120s")
    saved = job.status["checkpoint"]["step"]
    assert saved == max(job.losses)
    assert not job.pods

    job.kubectl("apply", "--filename", EXAMPLES / "resume-elsewhere.yaml")
    job.until_phase("Complete", 600)
    steps = [json.loads(line) for line in (job.folder / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in steps if "event" not in record] == list(range(1, 201))
    assert [record["step"] for record in steps if record.get("event") == "restored"] == [saved]
    assert job.status.get("restarts", {}) == {}


# Run in another pod: what host 0 answers to those who have no token, or a wrong one.
ASK = """
import json, sys, urllib.request, urllib.error
def code(method, path, headers):
    data = b"{}" if method == "POST" else None
    asked = urllib.request.Request(f"http://{sys.argv[1]}:8490{path}", data, headers, method=method)
    try:
        return urllib.request.urlopen(asked, timeout=10).status
    except urllib.error.HTTPError as error:
        return error.code
asked = [("GET", "/status"), ("GET", "/metrics"), ("POST", "/save"), ("POST", "/stop"), ("POST", "/gang")]
print(json.dumps([code(*words, headers) for words in asked for headers in ({}, {"Authorization": "Bearer guess"})]))
"""
# Run in host 0's pod: the port that Ray's head listens on.
HEAD = "import glob; print(open(glob.glob('/sw/head-*/s/gcs_server_port_*')[0]).read())"
JOIN = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False)"


def test_without_a_token_nobody_gets_in(apply: Apply) -> None:
    """Another pod, which knows where everything listens, is told nothing, stops nothing and does not join Ray."""
    job = apply(manifest("cpu-two-hosts", steps=2000))
    job.until_step(1)
    pod = "cpu-two-hosts-0-0-0"
    said = job.kubectl("get", "pod", pod, "--output=jsonpath={.status.podIP} {.spec.containers[0].image}")
    address, image = said.split()
    job.kubectl("run", "stranger", f"--image={image}", "--restart=Never", "--command", "--", "sleep", "600")
    job.kubectl("wait", "--for=condition=Ready", "pod/stranger", "--timeout=60s")

    assert json.loads(job.inside("stranger", ASK, address)) == [401] * 10
    head = f"{address}:{job.inside(pod, HEAD).strip()}"
    refusal = job.refused("exec", "stranger", "--", "env", "HOME=/tmp", "timeout", "60", "python", "-c", JOIN, head)
    assert "token" in refusal.lower() or "auth" in refusal.lower(), refusal
    job.until_step(job.step + 1)

    assert "No such file" in job.refused("exec", pod, "--", "ls", "/var/run/secrets/kubernetes.io")
