"""GKE from nothing to a job: Terraform and gcloud commands make the pools that the classes and the job ask for."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hcl2
import yaml

from shardwise.job.accelerators import BUILT_IN
from shardwise.job.load import load
from shardwise.job.topology import parse_topology

ROOT = Path(__file__).parents[1]
TERRAFORM = ROOT / "examples" / "terraform" / "gke-tpu" / "main.tf"
JOB = ROOT / "examples" / "kubernetes" / "tpu-v6e-multi-slice.yaml"
GKE = ROOT / "docs" / "gke.md"


def plain(value: Any) -> Any:
    """What python-hcl2 has read, with texts out of their quotes and a block as the mapping it is."""
    match value:
        case dict():
            return {plain(key): plain(each) for key, each in value.items() if key != "__is_block__"}
        case list():
            return [plain(each) for each in value]
        case str():
            return value.removeprefix('"').removesuffix('"')
    return value


def terraform(group: str) -> list[tuple[str, Any]]:
    """The blocks of the example of a group, such as `variable`, by their first labels."""
    with TERRAFORM.open() as file:
        return [pair for block in plain(hcl2.load(file))[group] for pair in block.items()]


def resources(kind: str) -> dict[str, dict[str, Any]]:
    """The resources of a kind in the example, by their names."""
    return {name: body for found, named in terraform("resource") if found == kind for name, body in named.items()}


def fenced(language: str) -> list[str]:
    """The blocks of the page in a language."""
    blocks = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", GKE.read_text(), re.MULTILINE | re.DOTALL)
    return [block for found, block in blocks if found == language]


def commands(*words: str) -> Iterator[dict[str, str]]:
    """The options of each command of the page that begins with these words."""
    for block in fenced(""):
        for line in block.replace("\\\n", " ").splitlines():
            typed = shlex.split(line)
            if tuple(typed[: len(words)]) == words:
                given = " ".join(typed[len(words) :])
                yield dict(re.findall(r"--([\w-]+)(?: (?!--)(\S+))?", given))


def test_terraform_makes_the_slices_of_the_job() -> None:
    """Machine, grid, machines of a slice and their kind of price are the job's; each slice is a pool of its own."""
    job = load(JOB)
    topology = parse_topology(BUILT_IN[job.spec.hardware.accelerator], job.spec.hardware.topology)
    assert topology
    assert job.spec.pod
    assert job.spec.pod.spec["nodeSelector"] == {"cloud.google.com/gke-spot": "true"}

    pool = resources("google_container_node_pool")["slice"]
    variables = dict(terraform("variable"))

    assert pool["placement_policy"] == [{"type": "COMPACT", "tpu_topology": job.spec.hardware.topology}]
    assert pool["node_count"] == topology.hosts
    (node,) = pool["node_config"]
    assert (node["machine_type"], node["spot"]) == (topology.machine, "${var.spot}")
    assert variables["spot"]["default"] is True
    assert (pool["count"], variables["slices"]["default"]) == ("${var.slices}", job.spec.hardware.slices)


def test_terraform_gives_the_bucket_to_the_job_s_pods() -> None:
    """The pods' service account may use the bucket, by the identity that cluster and nodes give it."""
    job = load(JOB)
    assert job.spec.pod
    (cluster,) = resources("google_container_cluster").values()
    pools = resources("google_container_node_pool").values()
    (member,) = resources("google_storage_bucket_iam_member").values()

    assert member["member"].endswith(f".svc.id.goog/subject/ns/training/sa/{job.spec.pod.spec['serviceAccountName']}")
    assert cluster["workload_identity_config"] == [{"workload_pool": "${var.project}.svc.id.goog"}]
    modes = [node["workload_metadata_config"] for pool in pools for node in pool["node_config"]]
    assert modes == [[{"mode": "GKE_METADATA"}]] * 2


def test_each_pool_of_the_page_is_a_slice_of_a_class() -> None:
    """The machine, the grid and the number of machines in each gcloud command go together in some class."""
    offered = {
        (machine.name, grid): parse_topology(accelerator, grid)
        for accelerator in BUILT_IN.values()
        for machine in accelerator.spec.machines
        for grid in machine.topologies
    }
    pools = [*commands("gcloud", "container", "node-pools", "create")]

    assert len(pools) > 1
    for pool in pools:
        topology = offered[pool["machine-type"], pool["tpu-topology"]]
        assert topology
        assert int(pool["num-nodes"]) == topology.hosts


def test_the_page_and_terraform_make_the_same_cluster() -> None:
    """Region, network, identity and file system of the two ways agree."""
    (made,) = commands("gcloud", "container", "clusters", "create")
    (cluster,) = resources("google_container_cluster").values()

    assert ("enable-dataplane-v2" in made, cluster["datapath_provider"]) == (True, "ADVANCED_DATAPATH")
    assert made["workload-pool"].endswith(".svc.id.goog")
    assert made["addons"] == "GcpFilestoreCsiDriver"
    assert cluster["addons_config"] == [{"gcp_filestore_csi_driver_config": [{"enabled": True}]}]


def test_the_claim_of_the_page_is_the_job_s() -> None:
    """The job mounts the volume that the page claims, and many pods may write to it."""
    (claim,) = (yaml.safe_load(block) for block in fenced("yaml") if "PersistentVolumeClaim" in block)
    job = load(JOB)
    assert job.spec.pod

    (volume,) = job.spec.pod.spec["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
