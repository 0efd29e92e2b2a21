"""The example of a served model on a real cluster: what it answers, and to whom; imported by tests."""

import json
from typing import Any

import yaml
from tests.kubernetes.jobs import ROOT, Job

EXAMPLE = ROOT / "examples" / "serving" / "model.yaml"
TOKEN = "a-token-of-thirty-two-characters"  # noqa: S105  opens nothing
# Run in a pod: ask for 8 tokens, and print the answer's status with its content; None if there is no way there.
ASK = """
import json, sys, urllib.error, urllib.request
address, token = sys.argv[1:]
headers = {"Authorization": f"Bearer {token}"}
body = json.dumps({"prompt": "make ", "max_tokens": 8, "temperature": 0}).encode()
try:
    with urllib.request.urlopen(urllib.request.Request(address, body, headers), timeout=20) as answer:
        print(json.dumps([answer.status, json.load(answer)]))
except urllib.error.HTTPError as error:
    print(json.dumps([error.code, json.load(error)]))
except OSError:
    print(json.dumps([None, None]))
"""


def answers_its_clients_alone(job: Job, image: str, *, is_enforced: bool) -> None:
    """Apply the example beside the job that it is of, ask it from pods with and without its label, and delete it."""
    objects = list(yaml.safe_load_all(EXAMPLE.read_text()))
    deployment = objects[0]
    name, asks = deployment["metadata"]["name"], objects[2]["spec"]["ingress"][0]["from"][0]["podSelector"]
    deployment["spec"]["template"]["spec"]["containers"][0]["image"] = image
    job.kubectl("create", "secret", "generic", name, f"--from-literal=token={TOKEN}")
    job.kubectl("apply", "--filename=-", stdin=yaml.safe_dump_all(objects))
    labels = ",".join(f"{key}={value}" for key, value in asks["matchLabels"].items())
    run = (f"--image={image}", "--restart=Never", "--command", "--", "sleep", "600")
    job.kubectl("run", "client", f"--labels={labels}", *run)
    job.kubectl("run", "stranger", *run)
    job.kubectl("wait", "--for=condition=Ready", "pod/client", "pod/stranger", "--timeout=120s")
    job.kubectl("rollout", "status", f"deployment/{name}", "--timeout=300s")

    address = f"http://{name}/v1/completions"
    status, answer = _asked(job, "client", address, TOKEN)
    assert (status, answer["model"], answer["usage"]["completion_tokens"]) == (200, job.name, 8)
    assert _asked(job, "client", address, TOKEN)[1]["choices"] == answer["choices"]
    assert _asked(job, "client", address, "guess")[0] == 401
    assert _asked(job, "stranger", address, "guess")[0] == (None if is_enforced else 401)
    job.kubectl("delete", "pod", "client", "stranger", "--grace-period=0", "--force")
    job.kubectl("delete", "--filename", str(EXAMPLE), "--wait=true")
    job.kubectl("wait", "--for=delete", "pod", "--selector=model=cpu-two-hosts", "--timeout=60s")


def _asked(job: Job, pod: str, address: str, token: str) -> tuple[int | None, dict[str, Any]]:
    status, answer = json.loads(job.inside(pod, ASK, address, token))
    return status, answer
