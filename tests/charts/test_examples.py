"""examples/kubernetes: every job passes the check that the operator makes too, and says what a cluster needs."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.charts.helm import JOBS, ROOT, Helm, named
from tests.cluster.api_server import ApiServer
from typer.testing import CliRunner

from shardwise.cli.app import app
from shardwise.job.identity import identity
from shardwise.job.load import dump, load
from shardwise.job.paths import is_url
from shardwise.job.resolve import resolve

Golden = Callable[[str, str], None]

each = pytest.mark.parametrize("job", JOBS, ids=lambda path: path.stem)


@each
def test_checked(job: Path, golden: Golden) -> None:
    """`shardwise check` passes the file, and a change of what it resolves to is seen in review."""
    result = CliRunner().invoke(app, ["check", str(job)])

    assert (result.exit_code, result.output[:3]) == (0, "ok\n")
    golden(f"resolved-{job.name}", dump(resolve(load(job))))


@each
def test_runs_where_the_volume_is(job: Path) -> None:
    """The run directory is named after the job, below the volume `runs` that all hosts mount, or in the bucket."""
    loaded = load(job)
    pod = loaded.spec.pod

    assert pod is not None
    if is_url(pod.directory):
        assert pod.directory == f"gs://YOUR-BUCKET/{loaded.metadata.name}"
        return
    assert pod.directory == f"/runs/{loaded.metadata.name}"
    assert ("runs", "/runs") in {(mount["name"], mount["mountPath"]) for mount in pod.agent["volumeMounts"]}


@each
def test_commands_name_the_file(job: Path) -> None:
    """The first comment has a command that applies this file or says how it is reached."""
    assert f"kubectl apply -f {job.relative_to(ROOT)}" in job.read_text(encoding="utf-8")


def test_resumed_elsewhere() -> None:
    """resume-elsewhere.yaml is the run of suspend-resume.yaml on another topology and another mesh."""
    here, there = (load(JOBS[0].parent / name) for name in ("suspend-resume.yaml", "resume-elsewhere.yaml"))

    assert here.metadata.name == there.metadata.name
    assert identity(resolve(here), data_fingerprint="") == identity(resolve(there), data_fingerprint="")
    assert here.spec.hardware != there.spec.hardware
    assert here.spec.training.mesh != there.spec.training.mesh


def test_a_served_model(api_server: ApiServer, namespace: str, helm: Helm) -> None:
    """The example's pods are of the chart's image, of whom its other parts are, and meet Pod Security "restricted"."""
    kubectl = api_server.client.kubectl
    objects = list(yaml.safe_load_all((ROOT / "examples" / "serving" / "model.yaml").read_text(encoding="utf-8")))
    deployment, service, policy = (each["spec"] for each in objects)
    template, labels = deployment["template"], deployment["selector"]["matchLabels"]
    operator = named(helm.render("shardwise"), "Deployment", "shardwise")["spec"]["template"]["spec"]["containers"][0]

    assert template["spec"]["containers"][0]["image"] in str(operator["command"] + operator.get("args", []))
    assert labels == template["metadata"]["labels"] == service["selector"] == policy["podSelector"]["matchLabels"]
    kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": template["spec"]}
    create = ("create", "--namespace", namespace, "--dry-run=server", "--filename=-")
    assert "pod/x created" in kubectl(*create, stdin=yaml.safe_dump(pod))
    assert len(kubectl(*create, stdin=yaml.safe_dump_all(objects)).splitlines()) == len(objects)


def test_every_kind_is_there() -> None:
    """The folder has what the documentation promises."""
    assert {job.stem for job in JOBS} == {
        "cpu-two-hosts",
        "cpu-two-slices",
        "evaluate",
        "gpu-h100-queued",
        "gpu-hosts",
        "own-program",
        "own-text-from-a-volume",
        "resume-elsewhere",
        "suspend-resume",
        "tpu-v5e-queued",
        "tpu-v5e-single-host",
        "tpu-v5p-experts",
        "tpu-v5p-long-sequences",
        "tpu-v5p-multi-host",
        "tpu-v6e-finetune-llama",
        "tpu-v6e-multi-slice",
    }
