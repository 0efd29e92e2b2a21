"""Jobs whose run directory is in a bucket, on a real API server, and the pods that the operator makes of them."""

import pytest
from tests.cluster.client import Client, RefusedError
from tests.operator.api.jobs import create, job
from tests.operator.building import begun, seen

from shardwise.job.accelerators import BUILT_IN
from shardwise.job.load import as_data
from shardwise.protocol.pods import AGENT, DIRECTORY_VARIABLE
from shardwise_operator.observe.snapshot import take_snapshot
from shardwise_operator.render.pods import Place, pod_manifest

CLASSES = {name: as_data(accelerator) for name, accelerator in BUILT_IN.items()}


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_no_volume(shardwise_api: Client, scheme: str) -> None:
    """The server takes a job whose pods mount nothing, and its pods are told where the run directory is."""
    url = f"{scheme}://runs/mine"
    manifest = job(f"pod={{directory: {url}}}", f"training.checkpoint.path={url}/checkpoints")
    create(shardwise_api, manifest)

    made_of = take_snapshot(manifest, CLASSES, image="trainer")
    pod = pod_manifest(seen(begun(hosts=made_of.hosts), made_of=made_of), made_of.hosts[0], Place())
    (agent,) = [each for each in pod["spec"]["containers"] if each["name"] == AGENT]
    assert {"name": DIRECTORY_VARIABLE, "value": url} in agent["env"]
    assert all("emptyDir" in volume or volume["name"].startswith("shardwise-") for volume in pod["spec"]["volumes"])


@pytest.mark.parametrize("path", ["file:///runs/checkpoints", ""])
def test_checkpoints_elsewhere(shardwise_api: Client, path: str) -> None:
    """Checkpoints that are not in a bucket either would be those of one pod."""
    given = [f"training.checkpoint.path={path}"] if path else []
    with pytest.raises(RefusedError, match="in a bucket only the run directory of a job can lie that has its"):
        create(shardwise_api, job("pod={directory: s3://runs/mine}", *given))
