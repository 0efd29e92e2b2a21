"""Jobs on a real cluster: the operator and the images of this tree, installed with the chart, and pods that train.

Each compares with the same file trained by `shardwise run`: the digest is the same, bit for bit, whatever happened.

Only here the operator and the launcher recover together: pods, images, volumes and network policies are real.
"""

import json
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.cluster.cluster import Cluster
from tests.kubernetes.jobs import EXAMPLES, STATUS, STEPS, Ended, Job, manifest, small
from tests.kubernetes.serving import answers_its_clients_alone

Apply = Callable[[Mapping[str, Any]], Job]
Operator = Callable[..., str]
Here = Callable[[Mapping[str, Any]], Ended]

# The first pods of cpu-two-hosts.
HOST_0, HOST_1 = "cpu-two-hosts-0-0-0", "cpu-two-hosts-0-1-0"
MORE_STEPS = 10


def test_a_job_by_hand(apply: Apply, here: Here, cluster: Cluster) -> None:
    """Two pods on two nodes train as `shardwise run` does; kubectl shows the truth, and the page of the run from a pod.

    The cluster warns of nothing. Another job evaluates what was trained. A Deployment serves it, to whoever has the
    token, and the label where the cluster enforces its NetworkPolicy.
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
    show = ("shardwise", "page", example["spec"]["pod"]["directory"], "--out", "-")
    page = job.kubectl("exec", HOST_0, "--container=agent", "--", *show)
    assert f"<title>{job.name} - shardwise</title>" in page
    assert page.rstrip().endswith("</html>")

    job.kubectl("wait", "--for=condition=Complete", f"tj/{job.name}", "--timeout=600s")
    assert job.warnings == []
    finished = job.status
    assert Ended(finished["digest"], job.losses) == here(example)
    assert finished["checkpoint"]["step"] == finished["progress"]["step"] == example["spec"]["training"]["steps"]
    assert (job.folder / "checkpoints" / f"step-{finished['checkpoint']['step']:08}" / "COMMITTED").exists()

    evaluation = apply(manifest("evaluate"))
    evaluation.until_phase("Complete")
    log = (evaluation.folder / "logs" / "attempt-0" / "host-0.log").read_text()
    known = json.loads(log[log.index("\n{") :])
    assert (known["step"], list(known["sets"])) == (finished["progress"]["step"], ["readme"])
    assert known["sets"]["readme"]["loss"] == pytest.approx(job.losses[known["step"]], rel=0.3)

    image = job.kubectl("get", "pod", HOST_0, "--output=jsonpath={.spec.containers[0].image}")
    answers_its_clients_alone(job, image, is_enforced=cluster.enforces_policies)


def test_whatever_is_killed(apply: Apply, operator: Operator, here: Here) -> None:
    """A killed trainer restarts in its pod; Ray and operator may go; a deleted pod, host 0's too, is replaced alone.

    They go on from what is in the pods' own memory: a pod that replaces a killed one has it from the one that is left.
    A finished job stays as it is when the operator is replaced, and completes at once when it is applied again.
    """
    example = small(steps=STEPS, checkpoint={"everySteps": STEPS, "local": {"everySteps": 5}})
    example["spec"]["recovery"] = {"backoff": "10ms"}
    job = apply(example)
    job.until("a local checkpoint", lambda: job.taken and job.saved_locally)
    pods = job.pods
    assert list(pods) == [HOST_0, HOST_1]

    victim = json.loads(job.inside(HOST_0, STATUS))["hosts"][1]["trainerPid"]
    job.inside(HOST_1, f"import os; os.kill({victim}, 9)")
    job.until("the restart", lambda: len(job.began) == 2)
    assert (job.starts[1].get("local"), job.began[1] >= 5) == (True, True)
    job.kill(HOST_1, "raylet")
    operator("delete", "pods", "--all", "--wait=false")
    job.until_taken(len(job.taken) + MORE_STEPS)
    assert job.pods == pods
    assert len(job.began) == 2

    job.kubectl("delete", "pod", HOST_1, "--wait=false")
    job.until("the other pod of host 1 to train", lambda: len(job.began) == 3)
    left = job.pods
    assert (list(left), left[HOST_0]) == ([HOST_0, "cpu-two-hosts-0-1-1"], pods[HOST_0])

    job.until("its copy of the other one's part", lambda: job.saved_locally)
    held = job.saved_locally[-1]
    os.kill(job.first_process("cpu-two-hosts-0-1-1"), signal.SIGKILL)
    job.until("a third pod of host 1 to train", lambda: len(job.began) == 4)
    assert (job.starts[3].get("local"), job.began[3] >= held) == (True, True)
    left = job.pods
    assert (list(left), left[HOST_0]) == ([HOST_0, "cpu-two-hosts-0-1-2"], pods[HOST_0])

    job.kubectl("delete", "pod", HOST_0, "--grace-period=0", "--force")
    job.until("the other pod of host 0", lambda: "cpu-two-hosts-0-0-1" in job.pods)
    assert job.pods["cpu-two-hosts-0-1-2"] == left["cpu-two-hosts-0-1-2"]
    job.until_phase("Complete", 600)
    job.until("the last pod's end", lambda: job.status["hosts"]["ready"] == 0)
    finished, ended = job.status, Ended(job.status["digest"], job.losses)
    assert ended == here(example)
    assert (finished["restartCount"], finished["restarts"]["failure"]) == (4, 1)

    operator("delete", "pods", "--all", "--wait=true")
    operator("rollout", "status", "deployment", "--timeout=120s")
    assert job.status == finished
    job.delete()
    job.apply(example)
    job.until_phase("Complete")
    assert Ended(job.status["digest"], job.losses) == ended


def test_suspended_and_resumed_elsewhere(apply: Apply, cluster: Cluster) -> None:
    """A suspend loses no step and gives the pods back; the same run goes on on another topology, and has every step.

    While it trains no stranger gets in.
    """
    job = apply(manifest("suspend-resume"))
    job.until_step(5)
    nobody_gets_in(job, unreachable=cluster.enforces_policies)
    job.patch(suspend=True)
    job.kubectl("wait", "--for=condition=Suspended", f"tj/{job.name}", "--timeout=120s")
    saved = job.status["checkpoint"]["step"]
    assert saved == max(job.losses)
    assert not job.pods

    job.kubectl("apply", "--filename", EXAMPLES / "resume-elsewhere.yaml")
    job.until_step(saved + 5)
    assert list(job.pods) == ["suspend-resume-0-0-1"]
    taken = job.taken  # once: the run goes on
    assert taken == list(range(1, len(taken) + 1))
    assert job.began == [0, saved]
    assert job.status.get("restarts", {}) == {}


# Run in another pod: what host 0 answers to those who have no token, or a wrong one; null where nothing comes back.
ASK = """
import json, sys, urllib.request, urllib.error
def code(method, path, headers):
    data = b"{}" if method == "POST" else None
    asked = urllib.request.Request(f"http://{sys.argv[1]}:8490{path}", data, headers, method=method)
    try:
        return urllib.request.urlopen(asked, timeout=10).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None
asked = [("GET", "/status"), ("GET", "/metrics"), ("POST", "/save"), ("POST", "/stop"), ("POST", "/poll")]
print(json.dumps([code(*words, headers) for words in asked for headers in ({}, {"Authorization": "Bearer guess"})]))
"""
# Run in host 0's pod: the port that Ray's head listens on.
HEAD = "import glob; print(open(glob.glob('/sw/head-*/s/gcs_server_port_*')[0]).read())"
# Run in a pod: the TCP ports on which it listens for others.
LISTENING = """
import json, pathlib
rows = [row.split() for row in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
rows += [row.split() for row in pathlib.Path("/proc/net/tcp6").read_text().splitlines()[1:]]
listening = {row[1].rpartition(":") for row in rows if row[3] == "0A"}
print(json.dumps(sorted({int(port, 16) for address, _, port in listening if address != "0100007F"})))
"""
# Run in a pod: those of another pod's ports that can be reached.
REACHED = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def reached(port):
    try:
        socket.create_connection((sys.argv[1], port), timeout=5).close()
    except OSError:
        return None
    return port
ports = json.loads(sys.argv[2])
print(json.dumps([port for port in ThreadPoolExecutor(len(ports)).map(reached, ports) if port]))
"""
JOIN = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False)"


def nobody_gets_in(job: Job, *, unreachable: bool) -> None:
    """Another pod, which knows where everything listens, is told nothing, stops nothing and does not join Ray.

    Where the cluster enforces the job's NetworkPolicy, it reaches nothing, though the job's pods and the operator do.
    """
    host = f"{job.name}-0-0-0"
    said = job.kubectl("get", "pod", host, "--output=jsonpath={.status.podIP} {.spec.containers[0].image}")
    address, image = said.split()
    job.kubectl("run", "stranger", f"--image={image}", "--restart=Never", "--command", "--", "sleep", "600")
    job.kubectl("wait", "--for=condition=Ready", "pod/stranger", "--timeout=60s")

    assert json.loads(job.inside("stranger", ASK, address)) == [None if unreachable else 401] * 10
    listening = json.loads(job.inside(host, LISTENING))
    assert len(listening) > 5  # the agent, Ray's, and the coordinator of JAX
    assert json.loads(job.inside(f"{job.name}-0-1-0", REACHED, address, json.dumps(listening))) == listening
    if unreachable:
        assert json.loads(job.inside("stranger", REACHED, address, json.dumps(listening))) == []
    head = f"{address}:{job.inside(host, HEAD).strip()}"
    refusal = job.refused("exec", "stranger", "--", "env", "HOME=/tmp", "timeout", "60", "python", "-c", JOIN, head)
    assert unreachable or "token" in refusal.lower() or "auth" in refusal.lower(), refusal
    job.kubectl("delete", "pod", "stranger", "--grace-period=0", "--force")
    job.until_step(job.step + 1)

    assert "No such file" in job.refused("exec", host, "--", "ls", "/var/run/secrets/kubernetes.io")
